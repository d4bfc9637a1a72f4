"""The two cheapest covers of one domain among all sets of few victims, each set tested at once.

If a domain has more candidates than that, only sets are tested that differ from the greedy run's cover in its dearest
victims and in the most promising others: swaps of one for one, of several for one, of one for several.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from scheduler.fleet.topology import Ints, Layout
from scheduler.reclaim.shares import Shares
from scheduler.reclaim.victim_sets import VictimCandidates, VictimSet
from scheduler.solve.request import Request
from scheduler.solve.slices import in_whole_slices, outermost, rooms_by_row

MAX_FREE: Final = 12
"""Most victims of which every set is tested."""
MAX_SWAPPED: Final = 10
"""Size of the sets that are tested with more victims; at most half of a set is of the known cover."""
MAX_CHECKED: Final = 1 << 18
"""Bound on cells times sets; for gangs of many cells fewer victims are tried."""
MAX_KNOWN: Final = 32
"""A greedy cover of more victims is not improved: a few of them weigh little."""
MAX_ROUNDS: Final = 3
_ROUNDING: Final = 1 + 1e-9

Costs = npt.NDArray[np.float64]


@lru_cache(maxsize=MAX_FREE + 1)
def _sets_of(number: int) -> Costs:
    """Return all sets of so many, by row; bit ``i`` of a row's number is 1 if the set has the ``i``-th."""
    return (np.arange(1 << number)[:, None] >> np.arange(number) & 1).astype(np.float64)


@dataclass(frozen=True, slots=True)
class Domain:
    """One domain. ``cells``: cells of a group of ``level`` that fit once all candidates have released theirs.

    ``counts``, ``losses``: by cell, the free GPUs and what the gang is expected to lose by its use.
    """

    layout: Layout
    request: Request
    candidates: VictimCandidates
    shares: Shares
    counts: Ints
    losses: Costs
    level: int
    cells: Ints

    def cheapest(self, known: Collection[VictimSet]) -> list[VictimSet]:
        """Return the two cheapest covers, neither within the other.

        With many candidates, return covers that are no worse than ``known``.
        """
        covers = {replace(one, loss=self._loss(one)) for one in known} if self.losses.any() else set(known)
        best, limit = min(covers, key=VictimSet.order, default=None), _limit(covers)
        if best is not None and len(best.victims) > MAX_KNOWN:
            return list(covers)
        attempts = self._attempts(limit)
        free = self._few(attempts[:MAX_FREE])
        if len(free) == len(attempts):
            return self._among(free, (), limit)
        for _ in range(MAX_ROUNDS):
            covers.update(self._alternatives(best, attempts))
            before, best = best, min(covers, key=VictimSet.order, default=None)
            if best == before:
                break
        return list(covers)

    def _attempts(self, limit: float) -> Ints:
        """Return the attempts with GPUs of a short cell, the least cost for each such cell first."""
        is_short = np.zeros(len(self.counts), dtype=np.bool_)
        is_short[self.cells] = self.counts[self.cells] < self.request.gpus_per_node
        holders = self.shares.attempts[is_short[self.shares.cells]]
        attempts, numbers = np.unique(holders, return_counts=True)
        costs = self.candidates.costs[attempts]
        by_cell = np.argsort(costs / np.minimum(numbers, self.request.nodes), kind="stable")
        found: Ints = attempts[by_cell][costs[by_cell] <= limit]
        return found

    def _alternatives(self, best: VictimSet | None, attempts: Ints) -> list[VictimSet]:
        """Return covers that keep the cheapest victims of ``best``."""
        held = () if best is None else best.victims
        dearest = sorted(held, key=lambda victim: -self.candidates.costs.item(victim))[: MAX_SWAPPED // 2]
        others = attempts[~np.isin(attempts, held)]
        free = self._few(np.concatenate([np.array(dearest, dtype=np.int64), others])[:MAX_SWAPPED])
        fixed = tuple(victim for victim in held if victim not in free)
        return self._among(free, fixed, np.inf if best is None else best.weighed)

    def _few(self, few: Ints) -> Ints:
        """Return the first of them, as many as the bound on tests allows."""
        while len(few) > 1 and len(self._near(few)) << len(few) > MAX_CHECKED:
            few = few[:-1]
        return few

    def _near(self, attempts: Ints) -> Ints:
        """Return the cells in which these attempts have GPUs."""
        held = np.concatenate([self.shares.cells_of(one) for one in attempts])
        found: Ints = self.cells[np.isin(self.cells, held)]
        return found

    def _apart(self, others: Ints, near: Ints) -> tuple[Ints, Ints]:
        """Return the ``others`` that are in slices with ``near``, and the rest."""
        outer = outermost(self.layout, self.request.rule.slices, self.level)
        if outer is None:
            return others[:0], others
        groups = self.layout.groups[outer]
        is_around = np.isin(groups[others], groups[near])
        return others[is_around], others[~is_around]

    def _among(self, free: Ints, fixed: Sequence[int], limit: float) -> list[VictimSet]:
        """Return the two cheapest covers of ``fixed`` and some of ``free``, neither within the other."""
        if not len(free):
            return []
        counts = self.counts.copy()
        for victim in fixed:
            counts[self.shares.cells_of(victim)] += self.shares.counts_of(victim)
        sets = _sets_of(len(free))
        costs = sets @ self.candidates.costs[free]
        is_tried = (costs <= (limit - self.candidates.cost_of(fixed)) * _ROUNDING) & self._are_allowed(
            sets, free, fixed
        )
        is_tried[0] = False
        rows = np.flatnonzero(is_tried)
        near, are_usable = self._usable(sets[rows], free, counts)
        others = np.setdiff1d(self.cells, near, assume_unique=True)
        others = others[counts[others] >= self.request.gpus_per_node]
        is_enough = self._suffice(near, are_usable, others)
        rows, losses = rows[is_enough], self._losses(near, are_usable[is_enough], others)
        in_order = np.lexsort((rows, sets[rows].sum(axis=1), costs[rows] + losses))
        rows, losses = rows[in_order], losses[in_order]
        covers: list[VictimSet] = []
        while len(rows) and len(covers) < 2:  # the cheapest and the next best
            victims = (*fixed, *free[sets[rows[0]] > 0].tolist())
            if self.candidates.may_lose is None or self.candidates.may_lose(victims):
                covers.append(replace(self.candidates.victim_set(victims), loss=losses.item(0)))
                is_other = rows & rows[0] != rows[0]
                rows, losses = rows[is_other], losses[is_other]
            else:
                rows, losses = rows[1:], losses[1:]
        return covers

    def _are_allowed(self, sets: Costs, free: Ints, fixed: Sequence[int]) -> npt.NDArray[np.bool_]:
        """Return for each set whether no tenant loses more than it may."""
        tenants, num_gpus = self.candidates.tenants, self.candidates.num_gpus
        lost = {tenants[victim]: 0 for victim in free.tolist()}
        for victim in fixed:
            lost[tenants[victim]] = lost.get(tenants[victim], 0) + num_gpus[victim]
        are_allowed = np.ones(len(sets), dtype=np.bool_)
        for tenant, before in lost.items():
            sizes = [num_gpus[victim] if tenants[victim] == tenant else 0 for victim in free.tolist()]
            are_allowed &= before + sets @ np.array(sizes) <= self.candidates.allowance[tenant]
        return are_allowed

    def _usable(self, sets: Costs, free: Ints, counts: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """Return the cells near these victims, and for each set whether each of them fits."""
        near = self._near(free)
        gains = np.zeros((len(free), len(near)), dtype=np.float32)
        for row, victim in enumerate(free.tolist()):
            own, num_gained = self.shares.cells_of(victim), self.shares.counts_of(victim)
            is_near = np.isin(own, near)
            gains[row, near.searchsorted(own[is_near])] = num_gained[is_near]
        return near, sets.astype(np.float32) @ gains >= (self.request.gpus_per_node - counts[near])

    def _suffice(self, near: Ints, are_usable: npt.NDArray[np.bool_], others: Ints) -> npt.NDArray[np.bool_]:
        """Return for each set whether it suffices with ``others``, which fit with any set."""
        layout, slices = self.layout, self.request.rule.slices
        around, apart = self._apart(others, near)
        num_apart = len(in_whole_slices(layout, slices, apart, self.level))
        rooms = rooms_by_row(layout, slices, near, are_usable, around, self.level)
        enough: npt.NDArray[np.bool_] = rooms + num_apart >= self.request.nodes
        return enough

    def _losses(self, near: Ints, are_usable: npt.NDArray[np.bool_], others: Ints) -> Costs:
        """Return for each set the expected loss on the soundest hosts; slices may need weaker ones."""
        if not self.losses.any():
            return np.zeros(len(are_usable))
        least = np.sort(self.losses[others])[: self.request.nodes]
        by_set = np.where(are_usable, self.losses[near], np.inf)
        by_set = np.hstack([by_set, np.broadcast_to(least, (len(by_set), len(least)))])
        found: Costs = np.sort(by_set, axis=1)[:, : self.request.nodes].sum(axis=1)
        return found

    def _loss(self, victim_set: VictimSet) -> float:
        counts = self.counts.copy()
        for victim in victim_set.victims:
            counts[self.shares.cells_of(victim)] += self.shares.counts_of(victim)
        usable = self.cells[counts[self.cells] >= self.request.gpus_per_node]
        return float(np.sort(self.losses[usable])[: self.request.nodes].sum())


def _limit(known: Collection[VictimSet]) -> float:
    """Return an upper bound for the cost of the two cheapest covers.

    It is infinite unless ``known`` has two covers that are not within each other.
    """
    if not known:
        return np.inf
    best, *others = sorted(known, key=VictimSet.order)
    held = set(best.victims)
    costs = [one.weighed for one in others if not held <= set(one.victims) and not held >= set(one.victims)]
    return min(costs, default=np.inf) * _ROUNDING
