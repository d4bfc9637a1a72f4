"""Ranks that utilisation, power or MFU show to be slow, where their own compute alone does not.

A collective that waits keeps its kernel spinning, so a GPU that waits for another rank is utilised at 100 % and draws
less power than one that computes. Waits within a compiled graph count as compute of all ranks: there these figures
alone distinguish the slow rank.

    figure                              named
    utilisation below the peers'        the rank: its GPU waits for its host, and theirs spin in a collective
    power above, at equal utilisation   the rank, if steps got longer too: it computes, and the others wait for it
    power below, at equal utilisation   none: it is a rank that waits; but the rank, if its GPU is slowed
    MFU below the peers'                the rank, if its steps take longer: the others do not wait for it

A figure counts in windows without evaluation, save or compilation, and against three peers or more with the same GPU
model and place. A rank that waits longer than its peers, or has other work, is not named. Without a reading that shows
why, it is named only if it came apart from its peers while it trained, as in ``onset``: GPUs differ a little, and logs
on rank 0 leave its GPU idle.
"""

import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from muster.domain.policy.stragglers import StragglerPolicy
from muster.domain.robust import figures_in, peers_of_each
from muster.domain.spread import Figure
from watch.stragglers.causes import CLOCK, THROTTLE, Explained, StragglerCause, explain
from watch.stragglers.compare import SAME_WORK, Compared, Group, noise_of, peers_of
from watch.stragglers.findings import OddFigure, Straggler
from watch.stragglers.windows import LEAST_BEFORE, MFU, POWER, UTILISATION

LEAST_PEERS: Final = 3
HIGH_UTILISATION: Final = 90.0
"""Below it, in percent, a GPU's lower power shows that it is idle, not that it waits in a collective."""
_KEYS: Final[Mapping[Figure, str]] = {
    Figure.UTILISATION: UTILISATION,
    Figure.POWER: POWER,
    Figure.MFU: MFU,
}
_LEAST_S: Final = 1e-9


@dataclass(slots=True)
class FiguresJudge:
    """The judge of the figures of ranks. ``named``: ranks that were named and are still slow.

    ``slow_in``: windows in which a rank is slow by a figure. ``low_power``: see ``Judgement``.
    """

    rules: StragglerPolicy
    recent: Sequence[int]
    readings: Mapping[int, Mapping[str, float]]
    named: Collection[int]
    stragglers: list[Straggler] = field(default_factory=list)
    slow_in: dict[int, int] = field(default_factory=dict)
    low_power: list[int] = field(default_factory=list)

    def take(self, group: Group) -> None:
        """Judge the ranks of one place that have the same model of GPU."""
        for rank, odd in self.odd_in(group).items():
            for each in _worst_first(odd):
                found = self._straggler(rank, group, each)
                if found is None:
                    continue
                self.slow_in[rank] = found.num_slow
                if found.num_slow >= self.rules.num_slow:
                    self.stragglers.append(found)
                break

    def odd_in(self, group: Group) -> dict[int, dict[Figure, OddFigure]]:
        """Return the figures by which each rank is apart from its peers on one side; in K windows, or once named."""
        found: dict[int, dict[Figure, OddFigure]] = {}
        for figure, name in _KEYS.items():
            for rank, odd in _odd_by(figure, _values(group, name, self.recent), self.recent, self.rules):
                if len(odd.firsts) >= self.rules.num_slow or rank in self.named:
                    found.setdefault(rank, {})[figure] = odd
        return found

    def _straggler(self, rank: int, group: Group, odd: OddFigure) -> Straggler | None:
        """Return the finding; None where the figure does not show that the others wait for this rank."""
        excess_s = self._excess_s(rank, group, odd)
        if excess_s is None:
            return None
        compared = [_compared(group, rank, first, excess_s) for first in odd.firsts]
        if any(self._is_excused(each, excess_s) for each in compared):
            return None
        explained = self._explained(rank, group, odd, compared)
        if odd.figure is Figure.POWER and odd.is_low and explained.cause is not StragglerCause.GPU:
            self.low_power.append(rank)
            return None
        is_by_program = explained.cause is StragglerCause.COMPUTE or explained.is_of_process
        if is_by_program and rank not in self.named and not self._came_apart(rank, group, odd):
            return None
        return Straggler(
            rank,
            explained.cause,
            statistics.fmean(each.own_s for each in compared),
            statistics.fmean(each.usual_s for each in compared),
            statistics.fmean(figures_in(each.wait_s for each in compared)),
            statistics.fmean(figures_in(each.usual_wait_s for each in compared)),
            len(odd.firsts),
            len(self.recent),
            odd.num_peers,
            min(odd.firsts) + 1,
            group[rank][max(odd.firsts)].last_step,
            explained.evidence,
            explained.is_of_process,
            odd,
        )

    def _excess_s(self, rank: int, group: Group, odd: OddFigure) -> float | None:
        """Return the time of a step that the figure shows the rank to lose; None if it shows none."""
        windows = [group[rank][first] for first in odd.firsts]
        step_s = statistics.fmean(window.step_s for window in windows)
        if odd.figure is Figure.UTILISATION:
            return (odd.usual - odd.value) / 100 * step_s if odd.is_low else None
        if odd.figure is Figure.MFU:
            usual_s = statistics.fmean(_usual_step_s(group, rank, first) for first in odd.firsts)
            return step_s - usual_s if odd.is_low and step_s > self.rules.ratio * usual_s else None
        if any(window.means.get(UTILISATION, 0.0) < HIGH_UTILISATION for window in windows):
            return None
        if not odd.is_low and rank not in self.named and not self._is_longer(group, odd.firsts):
            return None
        return step_s * (1 - 1 / self.rules.ratio)

    def _is_excused(self, compared: Compared, excess_s: float) -> bool:
        """Return whether the rank itself waits in this window, or has other work than its peers."""
        if compared.wait_s is None or compared.usual_wait_s is None:
            return True
        waits = compared.wait_s - compared.usual_wait_s >= self.rules.wait_share * excess_s
        return waits or (compared.work_ratio is not None and abs(compared.work_ratio - 1) >= SAME_WORK)

    def _is_longer(self, group: Group, firsts: Sequence[int]) -> bool:
        """Return whether the steps of all take longer than before these windows."""
        first = min(firsts)
        before = [window.step_s for windows in group.values() for at, window in windows.items() if at < first]
        now = [windows[at].step_s for windows in group.values() for at in firsts if at in windows]
        return len(before) >= LEAST_BEFORE and statistics.median(now) > self.rules.ratio * statistics.median(before)

    def _explained(self, rank: int, group: Group, odd: OddFigure, compared: Sequence[Compared]) -> Explained:
        peers = peers_of(rank, group)
        others = [group[other][first] for other in peers for first in odd.firsts if first in group[other]]
        own, of_others = self.readings.get(rank, {}), [self.readings.get(other, {}) for other in peers]
        is_low_power = odd.figure is Figure.POWER and odd.is_low
        if not is_low_power:  # an idle GPU lowers its clock, and so does one that draws more power: neither is a cause
            own = {name: value for name, value in own.items() if name != CLOCK}
        explained = explain(compared, others, own, of_others, self.rules)
        if is_low_power:
            is_slowed = _is_slowed(own, of_others, self.rules.ratio)
            cause = StragglerCause.GPU if is_slowed else StragglerCause.COMPUTE
            return replace(explained, cause=cause, is_of_process=False)
        return explained

    def _came_apart(self, rank: int, group: Group, odd: OddFigure) -> bool:
        """Return whether the figure was nearer to its peers' before these windows."""
        name = _KEYS[odd.figure]
        before = [first for first in sorted(group[rank]) if first < min(odd.firsts)]
        if len(before) > LEAST_BEFORE:
            before.pop()  # it came apart within this one
        values = _values(group, name, before)
        own = values.pop(rank, {})
        past = [own[first] / usual for first in own if (usual := _median(values, first)) > 0]
        if len(past) < LEAST_BEFORE:
            return False
        now, quartiles = odd.value / odd.usual, statistics.quantiles(past, n=4, method="inclusive")
        return now * self.rules.ratio < quartiles[0] if odd.is_low else now > self.rules.ratio * quartiles[2]


def words_of_figure(odd: OddFigure) -> str:
    """Return a figure next to its peers', such as ``utilisation 62 %, usual 99 %``."""
    if odd.figure is Figure.POWER:
        return f"GPU power {odd.value:.0f} W, usual {odd.usual:.0f} W"
    if odd.figure is Figure.MFU:
        return f"MFU {odd.value:.1%}, usual {odd.usual:.1%}"
    return f"GPU utilisation {odd.value:.0f} %, usual {odd.usual:.0f} %"


def _values(group: Group, name: str, firsts: Sequence[int]) -> dict[int, dict[int, float]]:
    """Return a figure by rank and first step in windows that trained alone; ranks without it are left out."""
    found = {
        rank: {
            first: windows[first].means[name]
            for first in firsts
            if first in windows and windows[first].is_plain and name in windows[first].means
        }
        for rank, windows in group.items()
    }
    return {rank: values for rank, values in found.items() if values}


def _odd_by(
    figure: Figure, values: Mapping[int, Mapping[int, float]], recent: Sequence[int], rules: StragglerPolicy
) -> Iterator[tuple[int, OddFigure]]:
    """Yield the ranks that are apart from their peers, on the side on which they are more often."""
    noise = noise_of(values, recent)
    sides: dict[int, dict[bool, list[tuple[int, float, float]]]] = {}
    for first in recent:
        present = {rank: of_rank[first] for rank, of_rank in values.items() if first in of_rank}
        if len(present) <= LEAST_PEERS:
            continue
        for rank, peers in peers_of_each(present).items():
            value, usual = present[rank], peers.median
            is_far = usual > 0 and abs(value - usual) >= rules.z * noise[rank] * usual
            if is_far and (value > rules.ratio * usual or value * rules.ratio < usual):
                sides.setdefault(rank, {}).setdefault(value < usual, []).append((first, value, usual))
    for rank, by_side in sorted(sides.items()):
        firsts, own, usuals = zip(*max(by_side.values(), key=len), strict=True)
        means = statistics.fmean(own), statistics.fmean(usuals)
        yield rank, OddFigure(figure, *means, len(values) - 1, tuple(firsts))


def _worst_first(odd: Mapping[Figure, OddFigure]) -> Iterator[OddFigure]:
    """Yield what may name a rank. Power says nothing of a GPU that is idle at times, as its utilisation shows."""
    for figure in _KEYS:
        if figure in odd and not (figure is Figure.POWER and Figure.UTILISATION in odd):
            yield odd[figure]


def _compared(group: Group, rank: int, first: int, excess_s: float) -> Compared:
    window = group[rank][first]
    own_s, usual_wait_s = window.means["own_s"], _median_of(group, rank, first, "wait_s")
    work, usual_work = window.get("work"), _median_of(group, rank, first, "work")
    work_ratio = work / usual_work if work is not None and usual_work else None
    usual_s = max(own_s - excess_s, _LEAST_S)
    times_s = (usual_s + excess_s, usual_s, window.get("wait_s"), usual_wait_s)
    return Compared(window, *times_s, work_ratio, is_slow=True, is_steady=True, is_imbalance=False)


def _median_of(group: Group, rank: int, first: int, name: str) -> float | None:
    """Return the median of a rank's peers in a window; None unless one has the figure."""
    found = figures_in(
        windows[first].get(name) for other, windows in group.items() if other != rank and first in windows
    )
    return statistics.median(found) if found else None


def _usual_step_s(group: Group, rank: int, first: int) -> float:
    return statistics.median(
        windows[first].step_s for other, windows in group.items() if other != rank and first in windows
    )


def _median(values: Mapping[int, Mapping[int, float]], first: int) -> float:
    found = [of_rank[first] for of_rank in values.values() if first in of_rank]
    return statistics.median(found) if len(found) >= LEAST_PEERS else 0.0


def _is_slowed(own: Mapping[str, float], of_others: Sequence[Mapping[str, float]], ratio: float) -> bool:
    """Return whether the GPU has a lower clock than its peers', or a throttle reason that they do not have."""
    clocks = [each[CLOCK] for each in of_others if CLOCK in each]
    clock = own.get(CLOCK)
    is_lower = clock is not None and bool(clocks) and clock * ratio < statistics.median(clocks)
    return is_lower or (bool(own.get(THROTTLE)) and not any(each.get(THROTTLE) for each in of_others))
