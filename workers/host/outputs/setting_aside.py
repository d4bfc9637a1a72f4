"""What an attempt has left for its tenant, set aside at its end by renames: nothing waits for its upload.

In the host worker's state folder::

    outputs/ATTEMPT                 the output folder of a running attempt
    set_aside/ATTEMPT/output        the same after its end, in a folder that no program reaches
    set_aside/ATTEMPT/work          its work folder, if the job names files in it
    set_aside/ATTEMPT.step-N/copy   copies of the files that the job names, made at a checkpoint
    set_aside/.../collection.json   what is to be uploaded of it; it is written last
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from muster.domain.stored_content import HostOutputsState
from muster.durable import write_durably
from muster.failpoints import declare, failpoint
from workers.host.content.places import OUTPUTS, SET_ASIDE, WORK
from workers.host.supervisor.files import ORDER, read_json, wall_ms

AFTER_MOVE: Final = declare("outputs.after_move")
COLLECTION: Final = "collection.json"
OUTPUT: Final = "output"
COPY: Final = "copy"
_CLOSED: Final = 0o700


class OutputOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The part of ``order.json`` about outputs.

    ``folder``: for all that is collected; ``seen_at``: as the program sees it. ``patterns`` count from ``below`` in the
    work folder of the attempt's bundle, or from ``in_place``, which is the tenant's; where both are None, no folder of
    this host has such files.
    """

    folder: str
    seen_at: str
    patterns: tuple[str, ...]
    max_bytes: int
    max_files: int
    below: str | None = None
    in_place: str | None = None


class Collection(msgspec.Struct, frozen=True, kw_only=True):
    """Outputs that wait for their upload. ``step``: of a checkpoint; None: of the end. ``user``: as in the order.

    ``notes``: what its copying had to leave out, as fields of ``OutputsNote``.
    """

    attempt_id: str
    fence: int
    user: dict[str, Any]
    outputs: OutputOrder
    since_ms: int
    step: int | None = None
    notes: tuple[dict[str, Any], ...] = ()

    @property
    def name(self) -> str:
        """Return the folder's name for the control plane."""
        return "final" if self.step is None else f"step-{self.step}"


def collection_of(attempt: Path) -> Collection | None:
    """Return what is to be collected of an attempt, as its order says; None: nothing."""
    order = read_json(attempt / ORDER) or {}
    if order.get("outputs") is None:
        return None
    return Collection(
        attempt_id=attempt.name,
        fence=int(order["fence"]),
        user=order.get("user") or {},
        outputs=msgspec.convert(order["outputs"], OutputOrder),
        since_ms=wall_ms(),
    )


def set_aside(state_dir: Path, attempt_id: str) -> None:
    """Take what the ended attempt leaves out of its programs' reach. Repeated after a kill, it completes the rest.

    Raises OSError: it stays where it is.
    """
    wanted = collection_of(state_dir / "attempts" / attempt_id)
    place = state_dir / SET_ASIDE / attempt_id
    if wanted is None or (place / COLLECTION).exists():
        return
    own, work = state_dir / OUTPUTS / attempt_id, state_dir / WORK / attempt_id
    takes_work = bool(wanted.outputs.patterns) and wanted.outputs.below is not None
    if not _has_any(own) and not wanted.outputs.patterns and not place.exists():
        return
    make_closed(place)
    for source, name in ((own, OUTPUT), *(((work, WORK),) if takes_work else ())):
        with contextlib.suppress(FileNotFoundError):
            _move(source, place / name)
            failpoint(AFTER_MOVE)
    write_collection(place, wanted)


def outputs_left(state_dir: Path, attempt_id: str) -> HostOutputsState:
    """Return whether outputs of the ended attempt wait here, for the proof that the control plane gets."""
    waits = (state_dir / SET_ASIDE / attempt_id / COLLECTION).exists() or _has_any(state_dir / OUTPUTS / attempt_id)
    return HostOutputsState.WAITING if waits else HostOutputsState.NOTHING


def make_closed(place: Path) -> None:
    place.parent.mkdir(mode=_CLOSED, exist_ok=True)
    place.mkdir(mode=_CLOSED, exist_ok=True)


def write_collection(place: Path, wanted: Collection) -> None:
    write_durably(place / COLLECTION, msgspec.json.encode(wanted))


def read_collection(place: Path) -> Collection | None:
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode((place / COLLECTION).read_bytes(), type=Collection)
    return None


def waiting(state_dir: Path) -> Iterator[Path]:
    """Yield the folders that were set aside whole, ends first, the longest waiting first."""
    found = [
        (wanted.step is not None, wanted.since_ms, place)
        for place in (state_dir / SET_ASIDE).glob("*/")
        if (wanted := read_collection(place)) is not None
    ]
    return (place for *_, place in sorted(found))


def _has_any(folder: Path) -> bool:
    try:
        with os.scandir(folder) as listing:
            return next(listing, None) is not None
    except OSError:
        return False


def _move(source: Path, target: Path) -> None:
    """Rename a folder of a program. We need a right to write in it, which the program may have taken from its user."""
    if os.geteuid() != 0:
        with contextlib.suppress(OSError):
            source.chmod(_CLOSED)
    source.rename(target)
