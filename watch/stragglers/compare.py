"""A rank's own compute in one window against the ranks of its place, or against its own past.

A straggler computes longer than its peers, and the time that it takes longer is the time for which they wait longer:

    rank 0   |== own 0.20 ==|-- wait 0.05 --|
    rank 1   |== own 0.20 ==|-- wait 0.05 --|
    rank 2   |===== own 0.25 =====|             the straggler

Each of these alone would accuse wrongly: own compute alone, since work may be uneven and no rank waits; a small wait
alone, since the last rank of any step has one.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from muster.domain.policy.stragglers import StragglerPolicy
from muster.domain.robust import LARGE_GROUP, LEAST_WIDTH, NORMAL_WIDTH, Peers, peers_of_each
from watch.stragglers.windows import Window

LEAST_PAST: Final = 5
"""So many windows before the judged ones make a rank's past known."""
MOST_PEERS: Final = 64
"""Peers whose readings explain a slow rank."""
SAME_WORK: Final = 0.05
"""A rank's work is the same as before if it differs by less than this share."""

Group = Mapping[int, Mapping[int, Window]]
"""The windows of the ranks of one place, by rank and first step."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A rank in one window. ``usual`` figures are the median of its peers, or of its own past.

    ``is_slow``: by all signs. ``is_steady``: also without the report with its longest steps, so no single pause made
    it slow. ``is_imbalance``: it would be slow, but its work explains its time. ``work_ratio`` None: a program that
    reports neither tokens nor samples.
    """

    window: Window
    own_s: float
    usual_s: float
    wait_s: float | None
    usual_wait_s: float | None
    work_ratio: float | None
    is_slow: bool
    is_steady: bool
    is_imbalance: bool

    @property
    def excess_s(self) -> float:
        return self.own_s - self.usual_s


def with_peers(group: Group, firsts: Sequence[int], rules: StragglerPolicy) -> dict[int, list[Compared]]:
    """Compare the ranks of a place of two ranks or more in each window, in the order of ``firsts``."""
    noise = _noise(group, firsts)
    found: dict[int, list[Compared]] = {rank: [] for rank in group}
    for first in firsts:
        present = {rank: windows[first] for rank, windows in group.items() if first in windows}
        present = {rank: window for rank, window in present.items() if "wait_s" in window.means}
        if len(present) < 2:
            continue
        owns = peers_of_each({rank: window.means["own_s"] for rank, window in present.items()})
        steady = peers_of_each({rank: window.steady_own_s for rank, window in present.items()})
        waits = peers_of_each({rank: window.means["wait_s"] for rank, window in present.items()})
        works = _works(present)
        for rank, window in present.items():
            work = works.get(rank)
            usual = Usual(
                owns[rank].median,
                steady[rank].median,
                noise[rank],
                waits[rank].median,
                None if work is None else work.median,
            )
            found[rank].append(compare(window, usual, rules))
    return found


@dataclass(frozen=True, slots=True)
class Usual:
    """What is usual of a rank. ``noise``: the width of own compute, as a share. None: not compared."""

    own_s: float
    steady_s: float
    noise: float
    wait_s: float | None
    work: float | None


def with_past(
    windows: Mapping[int, Window], firsts: Sequence[int], rules: StragglerPolicy, *, usual_s: float | None
) -> list[Compared]:
    """Compare a rank without peers with the windows before ``firsts``; empty where its past is not known.

    ``usual_s``: its usual own compute in earlier attempts, where this one's past is short. Windows of another size than
    the newest do not count: without peers, so large a change is more likely work of another kind.
    """
    size = windows[max(windows)].size if windows else 0
    windows = {first: window for first, window in windows.items() if window.size == size}
    past = [window for first, window in sorted(windows.items()) if not firsts or first < firsts[0]]
    if len(past) >= LEAST_PAST:
        usual = replace(usual_of(past), wait_s=None)  # without peers no rank waits for it
    elif usual_s is not None and usual_s > 0:
        usual = Usual(usual_s, usual_s, LEAST_WIDTH, None, None)
    else:
        return []
    return [compare(windows[first], usual, rules) for first in firsts if first in windows]


def usual_of(past: Sequence[Window]) -> Usual:
    """Return what was usual in earlier windows."""
    owns = Peers.of([window.means["own_s"] for window in past])
    waits = [window.means["wait_s"] for window in past if "wait_s" in window.means]
    works = [window.means["work"] for window in past if "work" in window.means]
    return Usual(
        owns.median,
        statistics.median(window.steady_own_s for window in past),
        owns.width / owns.median if owns.median > 0 else LEAST_WIDTH,
        statistics.median(waits) if len(waits) == len(past) else None,
        statistics.median(works) if len(works) == len(past) else None,
    )


def compare(window: Window, usual: Usual, rules: StragglerPolicy) -> Compared:
    """Compare one window with what is usual."""
    own_s, wait_s, work = window.means["own_s"], window.get("wait_s"), window.get("work")
    work_ratio = work / usual.work if work is not None and usual.work else None
    excess_s = own_s - usual.own_s
    is_long = _is_long(own_s, usual.own_s, usual.noise, rules)
    are_waiting = usual.wait_s is None or (wait_s is not None and usual.wait_s - wait_s >= rules.wait_share * excess_s)
    has_more_work = work_ratio is not None and own_s <= rules.ratio * usual.own_s * max(work_ratio, 1.0)
    is_odd = is_long and are_waiting and usual.own_s > 0  # a program may report steps without own compute
    return Compared(
        window,
        own_s,
        usual.own_s,
        wait_s,
        usual.wait_s,
        work_ratio,
        is_slow=is_odd and not has_more_work,
        is_steady=is_odd and not has_more_work and _is_long(window.steady_own_s, usual.steady_s, usual.noise, rules),
        is_imbalance=is_odd and has_more_work,
    )


def _is_long(own_s: float, usual_s: float, noise: float, rules: StragglerPolicy) -> bool:
    return own_s > rules.ratio * usual_s and own_s - usual_s >= rules.z * noise * usual_s


def one_at(group: Group, first: int) -> Window:
    """Return one of the windows that begin at a step: ranks are compared in windows of the same size."""
    return next(windows[first] for windows in group.values() if first in windows)


def peers_of(rank: int, group: Group) -> list[int]:
    """Return the peers whose readings explain a slow rank."""
    return [other for other in group if other != rank][:MOST_PEERS]


def is_same_work(compared: Iterable[Compared]) -> bool:
    """Return whether the program reports the work of a rank, and it is as usual."""
    ratios = [each.work_ratio for each in compared]
    return bool(ratios) and all(ratio is not None and abs(ratio - 1) < SAME_WORK for ratio in ratios)


def _works(present: Mapping[int, Window]) -> dict[int, Peers]:
    """Return the work of each rank's peers; empty unless each rank reports its work."""
    works = {rank: window.means["work"] for rank, window in present.items() if "work" in window.means}
    return peers_of_each(works) if len(works) == len(present) else {}


def _noise(group: Group, firsts: Sequence[int]) -> dict[int, float]:
    """Return the width of the noise of each rank's peers as a share, from all their windows together.

    One window of two peers shows little: they may be equal by chance. Of two ranks it is the noise of their ratio
    before these windows or, without a past, that of the peer over time.
    """
    if len(group) == 2:
        return _noise_of_two(group, firsts)
    owns = {
        rank: {first: windows[first].means["own_s"] for first in firsts if first in windows}
        for rank, windows in group.items()
    }
    return noise_of(owns, firsts)


def noise_of(values: Mapping[int, Mapping[int, float]], firsts: Sequence[int]) -> dict[int, float]:
    """Return the width of the noise of a figure among each rank's peers, as a share, from all windows together.

    ``values``: by rank and first step.
    """
    if len(values) > LARGE_GROUP:
        return dict.fromkeys(values, _width(_distances(values, firsts)))
    return {
        rank: _width(_distances({other: found for other, found in values.items() if other != rank}, firsts))
        for rank in values
    }


def _noise_of_two(group: Group, firsts: Sequence[int]) -> dict[int, float]:
    (one, of_one), (other, of_other) = group.items()
    past = [first for first in of_one if first in of_other and first < firsts[0]]
    if len(past) >= LEAST_PAST:
        ratios = [of_one[first].means["own_s"] / max(of_other[first].means["own_s"], 1e-9) for first in past]
        more = _more_noise([of_one[first] for first in past], [of_one[first] for first in firsts if first in of_one])
        return dict.fromkeys(group, more * _width(_from_median(ratios)))
    return {
        rank: _width(_from_median([peer[first].means["own_s"] for first in firsts if first in peer]))
        for rank, peer in ((one, of_other), (other, of_one))
    }


def _more_noise(past: Sequence[Window], recent: Sequence[Window]) -> float:
    """Return how many times wider the noise of the recent windows is where they have fewer steps than the past ones."""
    if not recent:
        return 1.0
    sizes = max(each.size for each in past), min(each.size for each in recent)
    return max(sizes[0] / sizes[1], 1.0) ** 0.5 if sizes[1] else 1.0


def _distances(owns: Mapping[int, Mapping[int, float]], firsts: Sequence[int]) -> list[float]:
    """Return how far ranks are from their median in each window, as shares."""
    found: list[float] = []
    for first in firsts:
        found += _from_median([values[first] for values in owns.values() if first in values])
    return found


def _from_median(values: Sequence[float]) -> list[float]:
    """Return the distances of values from their median, as shares of it."""
    middle = statistics.median(values) if values else 0.0
    return [abs(value / middle - 1) for value in values] if middle > 0 else []


def _width(distances: Sequence[float]) -> float:
    return max(NORMAL_WIDTH * statistics.median(distances), LEAST_WIDTH) if distances else LEAST_WIDTH
