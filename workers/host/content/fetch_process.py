"""Process that makes the work folder and the environment of one attempt, started by its supervisor: it ends with that.

It has a low priority, so that ranks and the launcher keep the host's CPUs. It writes lines of JSON: how far it is, that
it is done, or why not.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from muster.content.faults import DamagedError
from muster.domain.stored_content import FolderKind
from muster.failpoints import require_known
from workers.host.content.chunks import Save
from workers.host.content.faults import FetchError
from workers.host.content.fetch import Fetch, used_places
from workers.host.content.fetch_order import FetchOrder, Progress, report
from workers.host.content.places import Place
from workers.host.content.whole_copy import Limits, Source
from workers.host.supervisor.files import CLEAN, ORDER, read_json

NICE: Final = 10


class Lazy:
    """A source that is made with the first question: a start from a whole copy needs none, and spares its imports."""

    def __init__(self, make: Callable[[], Source]) -> None:
        self._make = make
        self._made: Source | None = None

    @property
    def _source(self) -> Source:
        if self._made is None:
            self._made = self._make()
        return self._made

    def manifest(self) -> bytes:
        return self._source.manifest()

    def chunks(self, lacking: Mapping[str, int], save: Save) -> None:
        if lacking:
            self._source.chunks(lacking, save)


def run(order: FetchOrder) -> dict[str, Any]:
    """Return the last line."""
    progress = Progress()
    what = "bundle"
    try:
        if order.git is not None:
            order = msgspec.structs.replace(order, digest=_bundle_of_commit(order, progress))
        _fetch_bundle(order, progress)
        if order.environment is None:
            return {"is_done": True}
        what = "environment"
        return {"is_done": True, "venv": _environment(order, progress)}
    except FetchError as fault:
        return {"what": what, "why": str(fault), "is_of_host": fault.IS_OF_HOST}
    except (DamagedError, OSError) as fault:
        return {"what": what, "why": f"this host cannot keep it: {fault}", "is_of_host": True}


def _fetch_bundle(order: FetchOrder, progress: Progress) -> None:
    def source() -> Source:
        from workers.host.content.control_plane import ContentSource  # noqa: PLC0415  # as Lazy says

        return ContentSource(order, progress, order.digest, FolderKind.BUNDLE)

    others = [
        document
        for path in Path(order.attempts_dir).glob(f"*/{ORDER}")
        if (document := read_json(path)) is not None and not (read_json(path.with_name(CLEAN)) or {}).get("clean")
    ]
    Fetch(
        Place(Path(order.content_dir), order.tenant_id, order.digest),
        Lazy(source),
        Path(order.folder),
        Limits(order.cache_bytes, order.free_bytes),
        used_places(Path(order.content_dir), others),
        are_linked=order.are_linked,
        owner=order.owner,
    ).run()


def _bundle_of_commit(order: FetchOrder, progress: Progress) -> str:
    """Return the digest of the bundle of the order's commit."""
    from workers.host.content.environment_plane import BuildPlane  # noqa: PLC0415  # most jobs have none
    from workers.host.content.git_making import GitMaking  # noqa: PLC0415  # as above

    return GitMaking(order, BuildPlane(order, progress, FolderKind.BUNDLE), progress).made()


def _environment(order: FetchOrder, progress: Progress) -> str:
    from workers.host.content.environment import EnvironmentMaking  # noqa: PLC0415  # most jobs have none
    from workers.host.content.environment_plane import BuildPlane  # noqa: PLC0415  # as above

    progress.turn_to("environment")
    return str(EnvironmentMaking(order, BuildPlane(order, progress, FolderKind.ENVIRONMENT), progress).made())


def main() -> None:
    """Read the order from the descriptor that the first argument names."""
    with contextlib.suppress(OSError):
        os.nice(NICE)
    with open(int(sys.argv[1]), "rb") as asked:  # noqa: PTH123  # a descriptor
        order = msgspec.json.decode(asked.read(), type=FetchOrder)
    require_known()
    # httpx does without its own command, whose libraries of colours are a quarter of the CPU that our imports take.
    sys.modules["httpx._main"] = None  # type: ignore[assignment]  # as the import system has it for "there is none"
    report(run(order))


if __name__ == "__main__":
    main()
