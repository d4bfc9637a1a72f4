"""Unpacking of a rank's file as a resume does it, before any of its content is in the model.

``muster ckpt verify`` does the same, so that it finds what a resume would find.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from muster.train.checkpoint import exchange, state
from muster.train.parallel.shards import CoverageError
from muster.train.runtime import rng

if TYPE_CHECKING:
    from muster.train.checkpoint.manifest import FileRecord


def unpacked(file: FileRecord, content: bytes | bytearray | Path) -> dict[str, Any]:
    """Return the part in a file, whose bytes were verified before; of a path, its tensors stay on the disk until used.

    Raises:
        CoverageError: it cannot be unpacked, has another form, or holds another rank's random numbers.
    """
    try:
        part = state.mapped(content) if isinstance(content, Path) else state.unpacked(content)
        exchange.require_form(part)
        numbers = part["rng"]
    except Exception as fault:  # torch, zipfile and pickle raise errors of any class for content that is not theirs
        words = str(fault).strip().partition("\n")[0]
        raise CoverageError(f"{file.name} cannot be unpacked: {type(fault).__name__}: {words}") from fault
    rng.require_own(numbers, file.rng_sha256, file.rank)
    return part
