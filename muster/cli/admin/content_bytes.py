"""The part of ``muster content check`` that reads every object."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from control.content.lost import with_folders
from control.content.reading import Extent, Pace, extent_of, read_objects
from control.content.types import ObjectName
from control.core.unit_of_work import UnitOfWorkFactory
from muster.cli.admin.content_lines import named, object_lines
from muster.cli.framework.progress import progress
from muster.domain.ids import TenantId
from muster.sizes import size_in_words
from muster.store.faults import StoreError
from muster.store.objects import ObjectStore

_REPORTED_BYTES = 100_000_000
"""Progress is reported after so many bytes."""


@dataclass(slots=True)
class Reading:
    """What was read. ``corrupt``: with the digests of the folders that need each. ``ended``: why it ended before
    ``extent`` was read; None: it did not. ``last``: the number of the last object that was read.
    """

    extent: Extent | None = None
    num_objects: int = 0
    num_bytes: int = 0
    corrupt: dict[ObjectName, tuple[str, ...]] = field(default_factory=dict)
    last: int = 0
    ended: str | None = None

    def document(self) -> dict[str, Any]:
        if self.extent is None:
            return {}
        return {
            "read": {
                "num_objects": self.num_objects,
                "num_bytes": self.num_bytes,
                "last": self.last,
                "is_complete": self.ended is None,
            },
            "corrupt": [named(name, folders) for name, folders in self.corrupt.items()],
        }

    def lines(self) -> Iterator[str]:
        if self.extent is None:
            return
        yield (
            f"{self.num_objects:,} objects were read, {size_in_words(self.num_bytes)}:"
            f" {len(self.corrupt):,} of them have other bytes than their digest says, or are missing"
        )
        yield from object_lines(self.corrupt)
        if self.ended is not None:
            yield f"the reading ended early, {self.ended}: --after {self.last} continues it"


def read_bytes(
    units: UnitOfWorkFactory,
    store: ObjectStore,
    pace: Pace,
    *,
    tenant_id: TenantId | None,
    after: int,
    share: float,
) -> Reading:
    """Read stored objects, with a display of progress. Ctrl-C, or a store that does not answer, ends it early."""
    found = Reading(extent_of(units, tenant_id, after), last=after)
    of_bytes = (0 if found.extent is None else found.extent.num_bytes) * share
    wrong: list[ObjectName] = []
    shown = 0
    with progress("reading") as display:
        display.report("objects", 0, of_bytes)
        try:
            for read in read_objects(units, store, pace, tenant_id=tenant_id, after=after, share=share):
                found.last, found.num_objects = read.number, found.num_objects + 1
                found.num_bytes += read.name.num_bytes
                if read.fault is not None:
                    wrong.append(read.name)
                if found.num_bytes // _REPORTED_BYTES > shown:
                    shown = found.num_bytes // _REPORTED_BYTES
                    display.report(
                        f"{size_in_words(found.num_bytes)} to object {read.number}", found.num_bytes, of_bytes
                    )
        except KeyboardInterrupt:
            found.ended = "as you asked"
        except StoreError as fault:
            found.ended = f"since {fault.detail}"
    found.corrupt = with_folders(units, wrong)
    return found
