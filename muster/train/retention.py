"""Which generations go: never the newest that was read back equal, nor the newest that training has outlived well."""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING

from muster.train.generations import Generation, list_generations
from muster.train.manifest import MANIFEST

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

GOOD = "GOOD"
"""Beside the manifest: verified, and its attempt did enough steps after it. A later attempt must know it too."""


def to_remove(
    found: Sequence[Generation],
    keep: int,
    *,
    fence: int,
    verified: frozenset[str],
    good: frozenset[str],
    refused: frozenset[str],
    passed_over: frozenset[str],
) -> list[Generation]:
    """All but the newest ``keep``, the newest verified one, the newest good one, and the one that becomes good next:
    the oldest verified after that, of the running attempt ``fence``. ``found`` stands newest first.

    ``refused`` ones count for nothing, and go once there is a verified one to go on from. ``passed_over`` ones, which
    could not be used this time, count for nothing and stay: a person may want to look.
    """
    allowed = [generation for generation in found if generation.name not in refused | passed_over]
    whole = [generation for generation in allowed if generation.name in verified]
    if not whole:
        return []
    newest_good = next((generation for generation in allowed if generation.name in good), None)
    own = [generation for generation in whole if generation.fence == fence]
    maturing = [generation for generation in own if newest_good is None or generation > newest_good]
    held = {whole[0], newest_good, *maturing[-1:], *allowed[:keep]}
    return [generation for generation in allowed if generation not in held] + [
        generation for generation in found if generation.name in refused
    ]


def remove(folder: Path, gone: Iterable[Generation]) -> None:
    """The manifest goes first: what a crash leaves half removed does not verify. Raises OSError."""
    for generation in gone:
        place = folder / generation.name
        (place / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(place, ignore_errors=True)
        with contextlib.suppress(OSError):  # another generation of that step is still there
            place.parent.rmdir()


def mark_good(folder: Path, generation: Generation) -> None:
    """Raises OSError."""
    (folder / generation.name / GOOD).touch()


def good_ones(folder: Path) -> frozenset[str]:
    return frozenset(
        generation.name for generation in list_generations(folder) if (folder / generation.name / GOOD).exists()
    )
