"""Record of the sample ranges that a job leaves out, next to its checkpoints: a resume leaves out the same again.

A checkpoint from before the fault cannot hold the range, and a later attempt may continue from it. So each attempt that
skips a range writes a record of its own, ``SKIPPED-<fence>``, with all ranges of the attempts before it. An overtaken
attempt changes no newer attempt's record.
"""

from __future__ import annotations

import hashlib
import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from muster.train.checkpoint.storage.stores import Store

NAME = "SKIPPED"
MOST_RANGES = 1_000
"""Ranges that a record holds, the newest of them: a program may skip without end."""
MOST_BYTES = 1 << 20
_SCHEMA = 1
"""Form of the ranges: a runtime that does not know it trains on the samples, and reports that."""


class UnreadableRangesError(ValueError):
    """A record of skipped ranges is not as it was written."""


def write(store: Store, fence: int, ranges: Sequence[Mapping[str, Any]]) -> None:
    """Write the record of an attempt. A fault of the disk or the store stops no training: it is reported."""
    try:
        store.write_skipped(fence, packed(ranges))
    except OSError as fault:
        sys.stderr.write(f"muster.train: the next attempt will not know which samples were skipped: {fault}\n")


def read(store: Store, fence: int) -> list[dict[str, Any]]:
    """Return the ranges that a job leaves out as an attempt begins; none, with a report, where they cannot be read."""
    try:
        content = store.read_skipped(fence)
        ranges = [] if content is None else unpacked(content)
    except (OSError, UnreadableRangesError) as fault:
        sys.stderr.write(f"muster.train: samples that an earlier attempt skipped are trained on: {fault}\n")
        return []
    if ranges:
        sys.stderr.write(f"muster.train: samples in {len(ranges)} ranges stay skipped, as in earlier attempts\n")
    return ranges


def packed(ranges: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the record of these ranges, with its own hash. The oldest are left out where it would be too large."""
    kept = list(ranges[-MOST_RANGES:])
    while True:
        content = json.dumps({"schema": _SCHEMA, "ranges": kept, "sha256": _digest(kept)}).encode()
        if len(content) <= MOST_BYTES or not kept:
            return content
        kept = kept[len(kept) // 2 + 1 :]


def unpacked(content: bytes) -> list[dict[str, Any]]:
    """Return the ranges of a record. Raises UnreadableRangesError."""
    try:
        document = json.loads(content)
        ranges: list[dict[str, Any]] = document["ranges"]
        is_whole = document["sha256"] == _digest(ranges) and document["schema"] == _SCHEMA
    except (ValueError, KeyError, TypeError, RecursionError) as fault:
        raise UnreadableRangesError(f"no record of skipped ranges: {fault}") from fault
    if not is_whole:
        raise UnreadableRangesError("a record of skipped ranges has changed since it was written, or has another form")
    return ranges


def _digest(ranges: Sequence[Mapping[str, Any]]) -> str:
    return hashlib.sha256(json.dumps(ranges, sort_keys=True).encode()).hexdigest()
