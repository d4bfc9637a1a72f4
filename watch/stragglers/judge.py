"""The judge of stragglers: which ranks are slow in K of the M newest windows, and why.

    ranks of a place      compared with        slow in
    three or more         each other           K of M windows
    two                   each other           M of M, or K of M if the own past confirms it
    one                   its own past         K of M, and its work is as before or readings explain it all

A rank with peers that no reading of its host or GPU explains is named only if it became slow: additional work of its
program since the first windows is an imbalance (``onset``).

If no rank is slow in K windows, the network may be (``network``). Utilisation, power and MFU may show a slow rank that
its own compute does not show (``gpu_figures``).
"""

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from muster.domain.policy.stragglers import StragglerPolicy
from muster.domain.robust import by_place, figures_in
from watch.stragglers.alignment import MOST_SIZES, aligned
from watch.stragglers.causes import Explained, StragglerCause, explain
from watch.stragglers.compare import (
    LEAST_PAST,
    Compared,
    Group,
    is_same_work,
    one_at,
    peers_of,
    usual_of,
    with_past,
    with_peers,
)
from watch.stragglers.findings import Imbalance, Judgement, Straggler
from watch.stragglers.gpu_figures import FiguresJudge, words_of_figure
from watch.stragglers.network import SlowNetwork, slow_network
from watch.stragglers.onset import became_slow
from watch.stragglers.windows import RankWindows, Window

MOST_FOUND: Final = 16
"""Of one judgement: more slow ranks than these have one cause outside of them."""
LONGEST_QUIET: Final = 20
"""After so many windows in which a rank is not slow its finding has ended, however long it had lasted."""


def judge(
    ranks: Sequence[RankWindows],
    rules: StragglerPolicy,
    *,
    usual_s: Mapping[int, float] | None = None,
    named: Collection[int] = (),
) -> Judgement:
    """Judge the ranks of an attempt by their newest windows.

    ``usual_s``: a rank's own compute in earlier attempts of the job, for a rank without peers. ``named``: ranks that
    were named and are still slow: their windows before may be forgotten.
    """
    known = [each for each in ranks if each.size > 0 and each.windows]
    if not known:
        return Judgement()
    if max(each.size for each in known) > MOST_SIZES * min(each.size for each in known):
        return Judgement()  # sizes of one job are near each other: some rank reports nonsense
    windows = aligned(known)
    firsts = _common(windows)
    recent = firsts[-rules.num_windows :]
    if len(recent) < rules.num_slow:
        return Judgement()
    newest = one_at(windows, recent[-1])
    earlier_s = {each.rank: each.earlier_s for each in known if each.earlier_s is not None}
    found = _Found(rules, recent, {each.rank: each.readings for each in known}, earlier_s, named)
    for group in by_place(windows, {each.rank: each.place for each in known}):
        found.take(group, usual_s or {})
    if all(num_slow < rules.num_slow for num_slow in found.slow_in.values()):
        found.network = slow_network(windows, firsts, recent, rules)
    figures = _by_figures(windows, known, found)
    stragglers = sorted(found.stragglers, key=lambda each: (each.usual_s - each.own_s, each.rank))[:MOST_FOUND]
    imbalances = sorted(found.imbalances, key=lambda each: (-each.own_ratio, each.rank))[:MOST_FOUND]
    is_known = found.network is not None and found.network.is_work_known
    return Judgement(
        tuple(stragglers),
        tuple(imbalances),
        found.network if is_known else None,
        None if is_known else found.network,
        found.slow_in,
        recent[0] + 1,
        newest.last_step,
        newest.size,
        tuple(figures.low_power),
    )


def _by_figures(windows: Group, known: Sequence[RankWindows], found: "_Found") -> FiguresJudge:
    """Add the ranks that utilisation, power and MFU name, and these figures to the evidence on the others."""
    figures = FiguresJudge(found.rules, found.recent, found.readings, found.named)
    places = {each.rank: f"{each.place}\n{each.model}" for each in known}
    evidence: dict[int, tuple[str, ...]] = {}
    for group in by_place(windows, places):
        evidence |= {rank: tuple(map(words_of_figure, odd.values())) for rank, odd in figures.odd_in(group).items()}
        figures.take(group)
    by_time = {each.rank for each in found.stragglers} | {each.rank for each in found.imbalances}
    found.stragglers = [
        replace(each, evidence=each.evidence + evidence.get(each.rank, ())) for each in found.stragglers
    ]
    found.stragglers += [each for each in figures.stragglers if each.rank not in by_time]
    for rank, num_slow in figures.slow_in.items():
        found.slow_in[rank] = max(num_slow, found.slow_in.get(rank, 0))
    return figures


def is_over(found: Judgement, first_step: int, last_step: int) -> bool:
    """Return whether a finding that none of the judged windows shows any more has ended.

    It was not shown for twice as many steps as it had lasted, or for ``LONGEST_QUIET`` windows: one that comes and goes
    does not end each time. ``first_step``, ``last_step``: of the finding.
    """
    needed = min(2 * (last_step + 1 - first_step), LONGEST_QUIET * found.size)
    return found.first_step is not None and found.last_step - last_step >= needed


@dataclass(slots=True)
class _Found:
    """What is found so far, place by place."""

    rules: StragglerPolicy
    recent: Sequence[int]
    readings: Mapping[int, Mapping[str, float]]
    earlier_s: Mapping[int, float]
    named: Collection[int]
    stragglers: list[Straggler] = field(default_factory=list)
    imbalances: list[Imbalance] = field(default_factory=list)
    network: SlowNetwork | None = None
    slow_in: dict[int, int] = field(default_factory=dict)

    def take(self, group: Group, usual_s: Mapping[int, float]) -> None:
        """Judge the ranks of one place. Of many slow ranks the slowest are explained, which bounds the work."""
        peers = with_peers(group, self.recent, self.rules) if len(group) > 1 else {}
        named: list[tuple[int, list[Compared], list[Compared]]] = []
        for rank, windows in group.items():
            if len(group) > 1:
                compared = peers[rank]
                needed = self._needed(len(group), windows, compared)
            else:
                compared = with_past(windows, self.recent, self.rules, usual_s=usual_s.get(rank))
                needed = self.rules.num_slow
            slow = [each for each in compared if each.is_slow]
            if slow:
                self.slow_in[rank] = len(slow)
            num_steady = sum(each.is_steady for each in slow)
            if len(slow) >= needed and (num_steady >= needed or len(slow) >= self.rules.num_windows):
                named.append((rank, compared, slow))
            else:
                self._note_imbalance(rank, compared, len(slow))
        for rank, compared, slow in sorted(named, key=lambda each: -max(x.excess_s for x in each[2]))[:MOST_FOUND]:
            self._name(rank, group, compared, slow)

    def _needed(self, num_ranks: int, windows: Mapping[int, Window], compared: Sequence[Compared]) -> int:
        """Return in how many windows a rank with peers must be slow."""
        if num_ranks > 2:
            return self.rules.num_slow
        past = [window for first, window in windows.items() if first < self.recent[0]]
        if len(past) < LEAST_PAST:
            return self.rules.num_windows
        usual = usual_of(past)
        is_new = all(each.own_s > self.rules.ratio * usual.own_s for each in compared if each.is_slow)
        return self.rules.num_slow if is_new else self.rules.num_windows

    def _note_imbalance(self, rank: int, compared: Sequence[Compared], num_slow: int) -> None:
        uneven = [each for each in compared if each.is_imbalance]
        if len(uneven) + num_slow >= self.rules.num_slow and len(uneven) >= num_slow:
            self.imbalances.append(self._imbalance(rank, uneven, None))

    def _name(self, rank: int, group: Group, compared: Sequence[Compared], slow: Sequence[Compared]) -> None:
        explained = self._explained(rank, group, slow)
        is_plain = explained.cause is StragglerCause.COMPUTE
        has_more_memory = explained.memory_ratio is not None and explained.memory_ratio > self.rules.ratio
        if is_plain and has_more_memory and any(each.work_ratio is None for each in slow):
            self.imbalances.append(self._imbalance(rank, slow, explained.memory_ratio))
            return
        if len(group) == 1 and not explained.is_whole and not is_same_work(slow):
            return  # its program may have begun work of another kind
        is_by_program = is_plain or explained.is_of_process
        if is_by_program and len(group) > 1 and rank not in self.named and not self._became_slow(rank, group, slow):
            evidence = explained.evidence if explained.is_of_process else ()
            self.imbalances.append(replace(self._imbalance(rank, slow, None), evidence=evidence))
            return
        firsts = [each.window.first for each in slow]
        waits = figures_in(each.wait_s for each in slow)
        usual_waits = figures_in(each.usual_wait_s for each in slow)
        self.stragglers.append(
            Straggler(
                rank,
                explained.cause,
                statistics.fmean(each.own_s for each in slow),
                statistics.fmean(each.usual_s for each in slow),
                statistics.fmean(waits) if waits else None,
                statistics.fmean(usual_waits) if usual_waits else None,
                len(slow),
                len(compared),
                len(group) - 1,
                min(firsts) + 1,
                max(each.window.last_step for each in slow),
                explained.evidence,
                explained.is_of_process,
            )
        )

    def _became_slow(self, rank: int, group: Group, slow: Sequence[Compared]) -> bool:
        return became_slow(
            rank, group, peers_of(rank, group), [each.window.first for each in slow], self.earlier_s, self.rules
        )

    def _explained(self, rank: int, group: Group, slow: Sequence[Compared]) -> Explained:
        firsts = [each.window.first for each in slow]
        if len(group) > 1:
            peers = peers_of(rank, group)
            others = [group[other][first] for other in peers for first in firsts if first in group[other]]
            of_others = [self.readings.get(other, {}) for other in peers]
        else:
            others = [window for first, window in group[rank].items() if first < self.recent[0]]
            of_others = []
        return explain(slow, others, self.readings.get(rank, {}), of_others, self.rules)

    def _imbalance(self, rank: int, uneven: Sequence[Compared], memory_ratio: float | None) -> Imbalance:
        firsts = [each.window.first for each in uneven]
        works = figures_in(each.work_ratio for each in uneven)
        own = statistics.fmean(each.own_s / each.usual_s for each in uneven)
        work = statistics.fmean(works) if works else None
        last_step = max(each.window.last_step for each in uneven)
        return Imbalance(rank, own, work, memory_ratio, min(firsts) + 1, last_step)


def _common(windows: Group) -> list[int]:
    """Return the first steps of windows that more than half of the ranks have, the oldest first."""
    counts: dict[int, int] = {}
    for of_rank in windows.values():
        for first in of_rank:
            counts[first] = counts.get(first, 0) + 1
    return sorted(first for first, count in counts.items() if 2 * count > len(windows))
