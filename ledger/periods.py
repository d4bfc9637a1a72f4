"""Periods of time as sorted, disjoint pairs of milliseconds."""

from collections.abc import Iterable, Iterator
from typing import Final

FOREVER: Final = 1 << 60
"""The end of what is not over yet."""
Pair = tuple[int, int]


def joined(pairs: Iterable[Pair]) -> list[Pair]:
    """Return the time of all pairs, each moment once."""
    found: list[Pair] = []
    for start_ms, end_ms in sorted(pairs):
        if found and start_ms <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end_ms))
        elif start_ms < end_ms:
            found.append((start_ms, end_ms))
    return found


def without(start_ms: int, end_ms: int, taken: Iterable[Pair]) -> Iterator[Pair]:
    """Yield the time of one period that none of ``taken`` has. ``taken`` is as ``joined`` returns it."""
    for from_ms, until_ms in taken:
        if until_ms <= start_ms:
            continue
        if from_ms >= end_ms:
            break
        if from_ms > start_ms:
            yield start_ms, from_ms
        start_ms = max(start_ms, until_ms)
    if start_ms < end_ms:
        yield start_ms, end_ms


def end_of(end_ms: int | None) -> int:
    return FOREVER if end_ms is None else end_ms
