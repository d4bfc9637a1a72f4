"""The cheapest attempts whose GPUs make one domain sufficient: a covering knapsack, solved greedily per domain.

Cells are completed one after another, by the least marginal cost and, in a second run, by the least cost for each cell
completed; then every victim without whom the gang would still fit is let off, the dearest first. The better run wins.
"""

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from scheduler.solver import Request, count_by_group, fitting_cells, level_span
from scheduler.topology import FleetState, Ints


@dataclass(frozen=True, slots=True)
class Candidates:
    """Attempts by index. ``owner``: the attempt of each GPU that would come free to the beneficiary, else -1.

    ``allowance``: GPUs that a tenant may still lose, by ``tenants``' code (I9).
    """

    owner: Ints
    costs: npt.NDArray[np.float64]
    num_gpus: Sequence[int]
    tenants: Sequence[int]
    allowance: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Cover:
    """Attempts, by index, that suffice together, none to spare."""

    cost: float
    victims: tuple[int, ...]


def cheapest_covers(state: FleetState, request: Request, candidates: Candidates) -> list[Cover]:
    """Distinct covers, the cheapest first; empty where no set within the allowances suffices.

    A preferred level is tried before wider ones; without one, only the widest that is allowed, where the cost is least.
    """
    state = state.for_tier(request.tier)
    span = level_span(state.layout, request)
    levels = span[-1:] if request.preferred is None else span
    num_cells = state.layout.num_cells
    counts = state.tier(request.tier).counts
    shares = _shares(state, candidates.owner)
    after = fitting_cells(state, request, counts + np.bincount(shares.cells, shares.counts, num_cells))
    before = fitting_cells(state, request, counts)
    bounds = [_least_keys(shares, candidates, num_cells, most) for most in (1, request.nodes)]
    for level in levels:
        possible = count_by_group(state.layout, after, level)
        groups = state.layout.groups[level]
        covers: set[Cover] = set()
        for group in np.flatnonzero(possible >= request.nodes):
            num_free = int(np.count_nonzero(groups[before] == group))
            cells = np.setdiff1d(after[groups[after] == group], before, assume_unique=True)
            for by_cells, least in enumerate(bounds):
                need = request.nodes - num_free
                run = _Run(request, counts, shares, candidates, need, counts_cells=bool(by_cells))
                found = run.cover(cells, least[cells])
                if found is not None:
                    covers.add(found)
        if covers:
            return sorted(covers, key=lambda cover: (cover.cost, len(cover.victims), cover.victims))
    return []


@dataclass(frozen=True, slots=True)
class _Shares:
    """Who holds how many GPUs of which cell: one entry a pair, by attempt and cell; ``by_cell`` sorts it by cell."""

    attempts: Ints
    cells: Ints
    counts: Ints
    by_cell: Ints

    def of_attempt(self, attempt: int) -> Iterator[tuple[int, int]]:
        pairs = slice(*np.searchsorted(self.attempts, (attempt, attempt + 1)))
        return zip(self.cells[pairs].tolist(), self.counts[pairs].tolist(), strict=True)

    def of_cell(self, cell: int) -> Iterator[tuple[int, int]]:
        bounds = np.searchsorted(self.cells, (cell, cell + 1), sorter=self.by_cell)
        pairs = self.by_cell[slice(*bounds)]
        return zip(self.attempts[pairs].tolist(), self.counts[pairs].tolist(), strict=True)


def _shares(state: FleetState, owner: Ints) -> _Shares:
    gpus = np.flatnonzero(owner >= 0)
    num_cells = state.layout.num_cells
    pairs, counts = np.unique(owner[gpus] * num_cells + state.layout.cell_of_gpu[gpus], return_counts=True)
    cells = pairs % max(num_cells, 1)
    return _Shares(pairs // max(num_cells, 1), cells, counts, np.argsort(cells, kind="stable"))


def _least_keys(shares: _Shares, candidates: Candidates, num_cells: int, most: int) -> npt.NDArray[np.float64]:
    """A lower bound of each cell's key in any run that may complete ``most`` cells: few keys are worked out exactly."""
    cells_of_attempt = np.bincount(shares.attempts, minlength=len(candidates.costs))
    keys = (candidates.costs / np.clip(cells_of_attempt, 1, most))[shares.attempts]
    least = np.full(num_cells, np.inf)
    np.minimum.at(least, shares.cells, keys)
    return least


@dataclass(slots=True)
class _Run:
    """One greedy run in one domain: ``need`` more cells must reach a node's part."""

    request: Request
    counts: Ints
    shares: _Shares
    candidates: Candidates
    need: int
    counts_cells: bool
    open_cells: set[int] = field(default_factory=set)
    completed: set[int] = field(default_factory=set)
    chosen: list[int] = field(default_factory=list)
    freed: Counter[int] = field(default_factory=Counter)
    spent: Counter[int] = field(default_factory=Counter)
    heap: list[tuple[float, int]] = field(default_factory=list)

    def cover(self, cells: Ints, least_keys: npt.NDArray[np.float64]) -> Cover | None:
        self.open_cells = set(cells.tolist())
        self.heap = list(zip(least_keys.tolist(), cells.tolist(), strict=True))
        heapq.heapify(self.heap)
        while self.need > 0:
            if not self.heap:
                return None
            _, cell = heapq.heappop(self.heap)
            bundle = self._bundle(cell) if cell in self.open_cells else None
            if bundle is None:
                continue
            key = self._key(bundle)
            if self.heap and (key, cell) > self.heap[0]:
                heapq.heappush(self.heap, (key, cell))
            else:
                self._adopt(bundle)
        return self._without_idle_victims()

    def _cost(self, bundle: Sequence[int]) -> float:
        return float(sum(self.candidates.costs[victim] for victim in bundle))

    def _key(self, bundle: Sequence[int]) -> float:
        if not self.counts_cells:
            return self._cost(bundle)
        gains: Counter[int] = Counter()
        for victim in bundle:
            gains.update(dict(self.shares.of_attempt(victim)))
        completed = sum(1 for cell, gain in gains.items() if cell in self.open_cells and gain >= self._shortage(cell))
        return self._cost(bundle) / min(self.need, completed)

    def _shortage(self, cell: int) -> int:
        return self.request.gpus_per_node - int(self.counts[cell]) - self.freed[cell]

    def _bundle(self, cell: int) -> tuple[int, ...] | None:
        """The cheapest victims found that complete the cell: densest first, or one alone."""
        costs, shortage = self.candidates.costs, self._shortage(cell)
        options = [
            (float(costs[victim]) / gain, victim, gain)
            for victim, gain in self.shares.of_cell(cell)
            if victim not in self.chosen and self._affords((victim,))
        ]
        bundle: list[tuple[int, int]] = []
        missing = shortage
        for _, victim, gain in sorted(options):
            if missing > 0 and self._affords((*(held for held, _ in bundle), victim)):
                bundle.append((victim, gain))
                missing -= gain
        alone = min(((costs[victim], victim) for _, victim, gain in options if gain >= shortage), default=None)
        if missing > 0:
            return None if alone is None else (alone[1],)
        for victim, gain in sorted(bundle, key=lambda pair: -costs[pair[0]]):
            if missing + gain <= 0:
                bundle.remove((victim, gain))
                missing += gain
        together = tuple(victim for victim, _ in bundle)
        return together if alone is None or self._cost(together) <= alone[0] else (alone[1],)

    def _affords(self, victims: Sequence[int]) -> bool:
        losses = Counter(self.spent)
        for victim in victims:
            losses[self.candidates.tenants[victim]] += self.candidates.num_gpus[victim]
        tenants = {self.candidates.tenants[victim] for victim in victims}
        return all(losses[tenant] <= self.candidates.allowance[tenant] for tenant in tenants)

    def _adopt(self, bundle: Sequence[int]) -> None:
        for victim in bundle:
            self.chosen.append(victim)
            self.spent[self.candidates.tenants[victim]] += self.candidates.num_gpus[victim]
            for cell, gain in self.shares.of_attempt(victim):
                self.freed[cell] += gain
                if cell not in self.open_cells:
                    continue
                if self._shortage(cell) <= 0:
                    self.open_cells.remove(cell)
                    self.completed.add(cell)
                    self.need -= 1
                else:
                    heapq.heappush(self.heap, (0.0, cell))

    def _without_idle_victims(self) -> Cover:
        """Let off each victim without whom enough cells stay complete, the dearest first."""
        spare = -self.need
        for victim in sorted(self.chosen, key=lambda index: (-self.candidates.costs[index], index)):
            gains = list(self.shares.of_attempt(victim))
            undone = sum(1 for cell, gain in gains if cell in self.completed and self._shortage(cell) + gain > 0)
            if undone <= spare:
                spare -= undone
                self.chosen.remove(victim)
                self.freed.subtract(dict(gains))
                self.completed = {cell for cell in self.completed if self._shortage(cell) <= 0}
        return Cover(self._cost(self.chosen), tuple(sorted(self.chosen)))
