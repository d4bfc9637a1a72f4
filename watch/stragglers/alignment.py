"""The windows of several ranks by the same steps, though ranks change the size of their windows at different times.

A rank that slows much gets smaller windows, and ranks that wait for it later than it does itself:

    slow rank   |       64       |80 |84 |88 |92 |96 |100|
    other rank  |       64       |       80      |96 |100|
    compared    |       64       |       80      |96 |100|

Sizes are powers of two, and each window begins at a multiple of its size. So of two windows that overlap, one is
within the other, and the windows of a rank within a larger one of another rank are joined. No window is split: a single
pause would make each of its pieces slow.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Final

from watch.stragglers.windows import RankWindows, Window

MOST_SIZES: Final = 256
"""A window that is more times larger than the smallest ones of its job is of nonsense, and is left out."""

Cells = Mapping[int, set[int]]
"""The first steps of the windows in which ranks are compared, by size, the largest size first."""


def aligned(ranks: Sequence[RankWindows]) -> dict[int, dict[int, Window]]:
    """Return the windows of each rank by their first step, joined to the largest of any rank that has these steps.

    Where a rank has no window yet it will have one of its size, so the others' are joined to that size there.
    """
    limit = MOST_SIZES * min((each.size for each in ranks), default=0)
    windows = {
        each.rank: [window.sized(each.size) for window in each.windows if (window.size or each.size) <= limit]
        for each in ranks
    }
    spans = {(window.first, window.size) for of_rank in windows.values() for window in of_rank}
    ends = {(windows[each.rank][-1].last_step, each.size) for each in ranks if windows[each.rank]}
    if len({size for _, size in spans | ends}) == 1:
        return {rank: {window.first: window for window in of_rank} for rank, of_rank in windows.items()}
    cells = _cells(_lengthened(spans, ends))
    return {rank: joined(of_rank, cells) for rank, of_rank in windows.items()}


def joined(windows: Iterable[Window], cells: Cells) -> dict[int, Window]:
    """Return the windows by their first step, joined to ``cells``.

    A joined window of which less than half was measured is left out.
    """
    found: dict[int, Window] = {}
    parts: dict[int, int] = {}
    for window in windows:
        for size, firsts in cells.items():
            first = window.first // size * size
            if first in firsts:
                known = found.get(first)
                found[first] = (
                    window.within(first, size) if known is None else known.with_steps(window.num_steps, window.means)
                )
                parts[first] = parts.get(first, 0) + window.size
                break
    return {first: window for first, window in found.items() if 2 * parts[first] >= window.size}


def _lengthened(spans: Iterable[tuple[int, int]], ends: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
    """Return the spans, after the end of a rank's windows at least as long as its windows are."""
    steps, sizes = zip(*sorted(ends), strict=True) if ends else ((), ())
    largest = list(accumulate(sizes, max))
    found = set()
    for first, size in spans:
        before = bisect_right(steps, first)
        least = max(size, largest[before - 1]) if before else size
        found.add((first // least * least, least))
    return found


def _cells(spans: Iterable[tuple[int, int]]) -> Cells:
    """Return the spans that lie within no other."""
    cells: dict[int, set[int]] = {}
    for first, size in sorted(spans, key=lambda each: -each[1]):
        if not any(first // larger * larger in firsts for larger, firsts in cells.items()):
            cells.setdefault(size, set()).add(first)
    return cells
