"""The judgement of the network: all ranks wait longer than before, and none computes longer.

It needs reported work that is as before: a larger model or longer sequences have more to exchange.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from muster.domain.policy.stragglers import StragglerPolicy
from watch.stragglers.compare import LEAST_PAST, usual_of
from watch.stragglers.robust import figures_in
from watch.stragglers.windows import Window

_LEAST_PAIRS: Final = 3
_SLOW_PAIR: Final = 0.8
"""A pair is slow below so much of the median bandwidth of all pairs."""


@dataclass(frozen=True, slots=True)
class SlowNetwork:
    """All ranks wait longer than before, and none computes longer. ``pair``: the slowest one by a test, if known."""

    wait_s: float
    usual_wait_s: float
    num_slow: int
    num_windows: int
    first_step: int
    last_step: int
    pair: tuple[int, ...] = ()
    evidence: tuple[str, ...] = ()


def slow_network(
    aligned: Mapping[int, Mapping[int, Window]],
    firsts: Sequence[int],
    recent: Sequence[int],
    size: int,
    rules: StragglerPolicy,
    pairs: Mapping[tuple[int, int], float],
) -> SlowNetwork | None:
    """Return that collectives take longer than before, if each rank waits longer and none computes longer."""
    past = [first for first in firsts if first < recent[0]]
    if len(aligned) < 2 or len(past) < LEAST_PAST:
        return None
    slow = [first for first in recent if _all_wait_longer(aligned, first, past, rules)]
    if len(slow) < rules.num_slow:
        return None
    waits = figures_in(windows[each].get("wait_s") for windows in aligned.values() for each in slow if each in windows)
    before = figures_in(windows[each].get("wait_s") for windows in aligned.values() for each in past if each in windows)
    pair, evidence = _slow_pair(pairs)
    return SlowNetwork(
        statistics.median(waits),
        statistics.median(before),
        len(slow),
        len(recent),
        slow[0] + 1,
        slow[-1] + size,
        pair,
        evidence,
    )


def _all_wait_longer(
    aligned: Mapping[int, Mapping[int, Window]], first: int, past: Sequence[int], rules: StragglerPolicy
) -> bool:
    own_ratios: list[float] = []
    for windows in aligned.values():
        before = [windows[each] for each in past if each in windows]
        window = windows.get(first)
        if window is None or len(before) < LEAST_PAST:
            return False
        usual, wait_s, work = usual_of(before), window.least_wait_s, window.get("work")
        waits = [each.least_wait_s for each in before if each.least_wait_s is not None]
        if len(waits) < len(before) or wait_s is None or usual.own_s <= 0:
            return False
        usual_wait_s = statistics.median(waits)
        if wait_s - usual_wait_s < (rules.ratio - 1) * (usual.own_s + usual_wait_s):
            return False
        if not usual.work or work is None or abs(work / usual.work - 1) > rules.ratio - 1:
            return False  # it may have more to exchange
        own_ratios.append(window.means["own_s"] / usual.own_s)
    # Of a window the least waits count, so a pause of one rank explains none of them.
    return statistics.median(own_ratios) < 1 + (rules.ratio - 1) / 2


def _slow_pair(pairs: Mapping[tuple[int, int], float]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the slowest pair by the test of pairs, if it is slower than the others, with its evidence."""
    if len(pairs) < _LEAST_PAIRS:
        return (), ()
    pair, slowest = min(pairs.items(), key=lambda each: (each[1], each[0]))
    usual = statistics.median(pairs.values())
    if slowest >= _SLOW_PAIR * usual:
        return (), ()
    words = f"ranks {pair[0]} and {pair[1]} exchanged {slowest / 1e9:.2f} GB/s by the test of pairs, usual "
    return pair, (f"{words}{usual / 1e9:.2f} GB/s",)
