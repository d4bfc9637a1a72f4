"""One greedy run over one domain: cells are completed one after another, by the least key, until there are enough.

The key of a cell is the cost of completing it or, if ``counts_cells``, that cost for each completed cell, plus the
expected loss of the gang on it. Then each victim that the gang does not need is dropped, the dearest first.
"""

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from scheduler.fleet.topology import Flags, Ints
from scheduler.reclaim.shares import Shares
from scheduler.reclaim.victim_sets import VictimCandidates, VictimSet
from scheduler.solve.request import Request

FAR: Final = -1


@dataclass(slots=True)
class GreedyRun:
    """One greedy run in one domain: ``need`` more cells must reach a node's part."""

    request: Request
    counts: Ints
    shares: Shares
    candidates: VictimCandidates
    need: int
    counts_cells: bool
    is_inside: Flags
    """The cells that may be completed."""
    losses: npt.NDArray[np.float64]
    """The expected loss by use of each cell: a part of its key."""
    completed: set[int] = field(default_factory=set)
    chosen: dict[int, None] = field(default_factory=dict)
    shortages: dict[int, int] = field(default_factory=dict)
    """The GPUs missing for a node's part, of each cell that was read."""
    spent: Counter[int] = field(default_factory=Counter)
    heap: list[tuple[float, int]] = field(default_factory=list)
    gains: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    sole: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The only attempt with GPUs in a cell, and how many, of each cell that was read."""
    num_near: int = 0
    far: tuple[Ints, npt.NDArray[np.float64]] | None = None
    """Cells that are not in the heap yet, and their keys: mostly only the cheapest are read."""

    def victim_set(self, cells: Ints, least_keys: npt.NDArray[np.float64]) -> VictimSet | None:
        """Return the cover, or None if none suffices. ``cells``: the cells inside."""
        self._check(cells, least_keys, most=2 * self.need + 16)
        while self.need > 0:
            if not self.heap:
                return None
            _, cell = heapq.heappop(self.heap)
            if cell == FAR and self.far is not None:
                self._check(*self.far, most=4 * self.num_near)
                continue
            bundle = None if cell in self.completed else self._bundle(cell)
            if bundle is None:
                continue
            key = self._key(bundle) + self.losses.item(cell)
            if self.heap and (key, cell) > self.heap[0]:
                heapq.heappush(self.heap, (key, cell))
            else:
                self._adopt(bundle)
        return self._without_idle_victims()

    def _check(self, cells: Ints, keys: npt.NDArray[np.float64], *, most: int) -> None:
        """Add the ``most`` cells of least keys and their equals; ``FAR`` stands for the others, at their least key."""
        is_near = np.ones(len(cells), dtype=np.bool_)
        if len(cells) > most:
            is_near = keys <= np.partition(keys, most)[most]
        near = cells[is_near]
        self.num_near += len(near)
        self.heap += zip(keys[is_near].tolist(), near.tolist(), strict=True)
        alone, sole = self.shares.sole(near)
        self.sole.update(sole)
        self.gains.update(alone)
        if not is_near.all():
            self.far = cells[~is_near], keys[~is_near]
            self.heap.append((float(self.far[1].min()), FAR))
        heapq.heapify(self.heap)

    def _cost(self, bundle: Sequence[int]) -> float:
        return sum(map(self.candidates.costs.item, bundle))

    def _key(self, bundle: Sequence[int]) -> float:
        if not self.counts_cells:
            return self._cost(bundle)
        if len(bundle) == 1:
            gains = self._gains(bundle[0])
            if len(gains) == 1:
                return self._cost(bundle)
        else:
            together: Counter[int] = Counter()
            for victim in bundle:
                together.update(dict(self._gains(victim)))
            gains = list(together.items())
        completed = sum([1 for cell, gain in gains if self._is_open(cell) and gain >= self._shortage(cell)])
        return self._cost(bundle) / min(self.need, completed)

    def _gains(self, victim: int) -> list[tuple[int, int]]:
        gains = self.gains.get(victim)
        if gains is None:
            gains = self.gains[victim] = self.shares.of_attempt(victim)
        return gains

    def _is_open(self, cell: int) -> bool:
        return cell not in self.completed and bool(self.is_inside[cell])

    def _shortage(self, cell: int) -> int:
        shortage = self.shortages.get(cell)
        if shortage is None:
            shortage = self.shortages[cell] = self.request.gpus_per_node - int(self.counts[cell])
        return shortage

    def _bundle(self, cell: int) -> tuple[int, ...] | None:
        """Return the cheapest victims found that complete the cell: densest first, or one alone."""
        cost_of, shortage = self.candidates.costs.item, self._shortage(cell)
        sole = self.sole.get(cell)
        if sole is not None:
            return self._alone(*sole, shortage)
        holders = self.shares.of_cell(cell)
        options = [
            (cost_of(victim) / gain, victim, gain)
            for victim, gain in holders
            if victim not in self.chosen and self._affords_one(victim)
        ]
        bundle: list[tuple[int, int]] = []
        missing = shortage
        for _, victim, gain in sorted(options):
            if missing > 0 and self._affords((*(held for held, _ in bundle), victim)):
                bundle.append((victim, gain))
                missing -= gain
        alone = min(((cost_of(victim), victim) for _, victim, gain in options if gain >= shortage), default=None)
        if missing > 0:
            return None if alone is None else (alone[1],)
        for victim, gain in sorted(bundle, key=lambda pair: -cost_of(pair[0])):
            if missing + gain <= 0:
                bundle.remove((victim, gain))
                missing += gain
        together = tuple(victim for victim, _ in bundle)
        return together if alone is None or self._cost(together) <= alone[0] else (alone[1],)

    def _alone(self, victim: int, gain: int, shortage: int) -> tuple[int, ...] | None:
        suffices = gain >= shortage and victim not in self.chosen and self._affords_one(victim)
        return (victim,) if suffices else None

    def _affords_one(self, victim: int) -> bool:
        candidates = self.candidates
        tenant = candidates.tenants[victim]
        if self.spent.get(tenant, 0) + candidates.num_gpus[victim] > candidates.allowance[tenant]:
            return False
        return candidates.may_lose is None or candidates.may_lose((*self.chosen, victim))

    def _affords(self, victims: Sequence[int]) -> bool:
        tenants, num_gpus, allowance = self.candidates.tenants, self.candidates.num_gpus, self.candidates.allowance
        losses: dict[int, int] = {}
        for victim in victims:
            tenant = tenants[victim]
            losses[tenant] = losses.get(tenant, self.spent[tenant]) + num_gpus[victim]
        if any(lost > allowance[tenant] for tenant, lost in losses.items()):
            return False
        return self.candidates.may_lose is None or self.candidates.may_lose((*self.chosen, *victims))

    def _adopt(self, bundle: Sequence[int]) -> None:
        for victim in bundle:
            self.chosen[victim] = None
            self.spent[self.candidates.tenants[victim]] += self.candidates.num_gpus[victim]
            for cell, gain in self._gains(victim):
                was_open = self._is_open(cell)
                self.shortages[cell] = self._shortage(cell) - gain
                if not was_open:
                    continue
                if self.shortages[cell] <= 0:
                    self.completed.add(cell)
                    self.need -= 1
                else:
                    heapq.heappush(self.heap, (0.0, cell))

    def _without_idle_victims(self) -> VictimSet:
        """Drop each victim without which enough cells stay complete, the dearest first."""
        spare = -self.need
        for victim in sorted(self.chosen, key=lambda index: (-self.candidates.costs.item(index), index)):
            gains = self._gains(victim)
            undone = [cell for cell, gain in gains if cell in self.completed and self.shortages[cell] + gain > 0]
            if len(undone) <= spare:
                spare -= len(undone)
                del self.chosen[victim]
                self.completed.difference_update(undone)
                for cell, gain in gains:
                    self.shortages[cell] += gain
        return self.candidates.victim_set(tuple(self.chosen))
