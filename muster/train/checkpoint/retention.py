"""Choice of the generations that retention removes.

It never removes the newest that was read back equal, nor the newest good one, after which training did enough steps,
nor one from before a fault that is found only now, nor a pinned one.
"""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from muster.train.checkpoint.generations import Generation, list_generations
from muster.train.checkpoint.manifest import MANIFEST
from muster.train.runtime.failpoints import failpoint

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

GOOD = "GOOD"
"""File next to the manifest: verified, and its attempt did enough steps after it. Later attempts need it too."""
PINNED = "PINNED"
PINNED_BY_CONTROL_PLANE = "PINNED_BY_CONTROL_PLANE"
"""File next to the manifest: retention never removes the generation, with or without a server. There are two marks, so
that a server does not remove the pin of a person on the disk, of which it never received a report.
"""
PINS = (PINNED, PINNED_BY_CONTROL_PLANE)
READ = "READ"
"""File next to the manifest: the generation was read again and found as it was saved, at the time of this file."""


NO_NAMES: frozenset[str] = frozenset()


@dataclass(frozen=True)
class GenerationMarks:
    """The names of generations by their marks. ``aged``: verified, and committed longer ago than any fault
    takes to be found.

    ``refused`` ones count for nothing, and are removed after there is a verified one to continue from. ``passed_over``
    ones, which could not be used this time, count for nothing and stay, because a person may need to inspect them.
    ``pinned`` ones always stay, and count for the number to keep as any other.
    """

    verified: frozenset[str]
    good: frozenset[str] = NO_NAMES
    aged: frozenset[str] = NO_NAMES
    refused: frozenset[str] = NO_NAMES
    passed_over: frozenset[str] = NO_NAMES
    pinned: frozenset[str] = NO_NAMES


def to_remove(found: Sequence[Generation], keep: int, marks: GenerationMarks, *, fence: int) -> list[Generation]:
    """Return the generations to remove. ``found`` stands newest first.

    These stay: the newest ``keep``, the newest verified one, the newest good one and the newest aged one, and the ones
    that become good or aged next: for each, the oldest verified one after it, of the running attempt ``fence``.
    """
    allowed = [generation for generation in found if generation.name not in marks.refused | marks.passed_over]
    whole = [generation for generation in allowed if generation.name in marks.verified]
    if not whole:
        return []
    own = [generation for generation in whole if generation.fence == fence]
    held = {
        whole[0],
        *_newest_and_next(allowed, own, marks.good),
        *_newest_and_next(allowed, own, marks.aged),
        *allowed[:keep],
    }
    gone = [generation for generation in allowed if generation not in held]
    gone += [generation for generation in found if generation.name in marks.refused]
    return [generation for generation in gone if generation.name not in marks.pinned]


def _newest_and_next(allowed: Sequence[Generation], own: Sequence[Generation], such: frozenset[str]) -> set[Generation]:
    """Return the newest of ``such``, and the oldest of ``own`` after it, which becomes such next."""
    newest = next((generation for generation in allowed if generation.name in such), None)
    maturing = [generation for generation in own if newest is None or generation > newest]
    return {*([] if newest is None else [newest]), *maturing[-1:]}


def remove(folder: Path, gone: Iterable[Generation]) -> None:
    """Remove generations, each manifest first: one that a crash leaves half removed does not verify. Raises OSError."""
    for generation in gone:
        place = folder / generation.name
        failpoint("retention.before")
        (place / MANIFEST).unlink(missing_ok=True)
        failpoint("retention.half")
        shutil.rmtree(place, ignore_errors=True)
        with contextlib.suppress(OSError):  # another generation of that step is still there
            place.parent.rmdir()


def mark(folder: Path, generation: Generation, name: str) -> None:
    """Create the mark of a generation. Raises OSError."""
    (folder / generation.name / name).touch()


def unmark(folder: Path, generation: Generation, name: str) -> None:
    """Remove the mark of a generation. Raises OSError."""
    (folder / generation.name / name).unlink(missing_ok=True)


def aged_ones(folder: Path, verified: Iterable[Generation], hold_s: float, now_unix_s: float) -> frozenset[str]:
    """Return the names of generations that were committed ``hold_s`` ago or earlier, by the time of their manifest's
    file.
    """
    return frozenset(
        generation.name
        for generation in verified
        if _written_unix_s(folder, generation, now_unix_s) + hold_s <= now_unix_s
    )


def _written_unix_s(folder: Path, generation: Generation, otherwise: float, name: str = MANIFEST) -> float:
    try:
        return (folder / generation.name / name).stat().st_mtime
    except OSError:
        return otherwise


def read_ones(folder: Path) -> dict[str, float]:
    """Return the times of the last ``READ`` marks by name, in Unix seconds."""
    return {
        generation.name: read_unix_s
        for generation in list_generations(folder)
        if (read_unix_s := _written_unix_s(folder, generation, 0.0, READ)) > 0
    }


def marked_ones(folder: Path, name: str) -> frozenset[str]:
    return frozenset(
        generation.name for generation in list_generations(folder) if (folder / generation.name / name).exists()
    )
