"""The cheapest attempts whose GPUs make one domain sufficient: a covering knapsack, solved greedily per domain.

Cells are completed one after another, by the least marginal cost and, in a second run, by the least cost for each cell
completed; then every victim without whom the gang would still fit is let off, the dearest first. The better run wins.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from scheduler.slices import cheapest_in_slices
from scheduler.solver import Request, count_by_group, fitting_cells, level_span, room_of
from scheduler.topology import Flags, FleetState, Ints

FAR: Final = -1


@dataclass(frozen=True, slots=True)
class Candidates:
    """Attempts by index. ``owner``: the attempt of each GPU that would come free to the beneficiary, else -1.

    ``allowance``: GPUs that a tenant may still lose, by ``tenants``' code (I9). ``may_lose``: whether these together
    are no more than lenders may take back, where any are taken on that ground.
    """

    owner: Ints
    costs: npt.NDArray[np.float64]
    num_gpus: Sequence[int]
    tenants: Sequence[int]
    allowance: Mapping[int, float]
    may_lose: Callable[[Sequence[int]], bool] | None = None


def dispensable(state: FleetState, request: Request, given_by: Mapping[int, Ints]) -> set[int]:
    """Of victims, on a state that has their GPUs, those without whom alone the gang may still fit, by a count of cells.

    Who is none of them now is none after others were let off. ``given_by``: the GPUs of each victim.
    """
    state = state.for_tier(request.tier)
    layout, span = state.layout, level_span(state.layout, request)
    counts = state.tier(request.tier).counts
    cells = fitting_cells(state, request, counts)
    spare = count_by_group(layout, cells, span[-1]) - request.nodes
    victims = np.repeat(list(given_by), [len(gpus) for gpus in given_by.values()])
    given = layout.cell_of_gpu[np.concatenate(list(given_by.values()))]
    pairs, gains = np.unique(victims * layout.num_cells + given, return_counts=True)
    victims, given = np.divmod(pairs, layout.num_cells)
    is_home = np.append(spare >= 0, False)[layout.groups[span[-1]][given]]
    is_undone = is_home & np.isin(given, cells) & (counts[given] - gains < request.gpus_per_node)
    losses, lost = np.unique(
        victims[is_undone] * len(spare) + layout.groups[span[-1]][given[is_undone]], return_counts=True
    )
    num_closed = Counter((losses[lost > spare[losses % len(spare)]] // len(spare)).tolist())
    return {victim for victim in given_by if num_closed[victim] < np.count_nonzero(spare >= 0)}


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
    shares = _shares(state, candidates.owner, len(candidates.costs))
    after = fitting_cells(state, request, counts + np.bincount(shares.cells, shares.counts, num_cells))
    before = fitting_cells(state, request, counts)
    is_enough = np.zeros(num_cells, dtype=np.bool_)
    is_enough[before] = True
    short = after[~is_enough[after]]
    bounds = [_least_keys(shares, candidates, num_cells, most) for most in (1, request.nodes)]
    for level in levels:
        groups = state.layout.groups[level]
        need_in = request.nodes - count_by_group(state.layout, before, level)
        possible = np.flatnonzero(room_of(state.layout, request, after, level) >= request.nodes)
        least_costs = _least_costs(groups[short], bounds[1][short], need_in)
        covers: set[Cover] = set()
        for group in possible[np.argsort(least_costs[possible], kind="stable")]:
            if len(covers) > 1 and least_costs[group] > sorted(cover.cost for cover in covers)[1]:
                break
            inside = short[groups[short] == group]
            for by_cells, least in enumerate(bounds):
                cells, need = inside, int(need_in[group])
                if request.rule.slices:
                    cells = _of_slices(state, request, level, after[groups[after] == group], is_enough, least)
                    need = len(cells)
                run = _Run(request, counts, shares, candidates, need, counts_cells=bool(by_cells))
                found = run.cover(cells, least[cells])
                if found is not None:
                    covers.add(found)
        if covers:
            return sorted(covers, key=lambda cover: (cover.cost, len(cover.victims), cover.victims))
    return []


def _of_slices(
    state: FleetState, request: Request, level: int, cells: Ints, is_enough: Flags, least: npt.NDArray[np.float64]
) -> Ints:
    """The cells that have to be completed for the slices that are believed cheapest. ``is_enough``: those that fit."""
    costs = np.where(is_enough, 0.0, least)[cells]
    chosen = cheapest_in_slices(state.layout, request.rule.slices, cells, costs, request.nodes, level)
    missing: Ints = chosen[~is_enough[chosen]]
    return missing


def _least_costs(groups: Ints, least_keys: npt.NDArray[np.float64], need_in: Ints) -> npt.NDArray[np.float64]:
    """Of each group what any cover costs at least: the sum of its cells' least keys, of as many cells as it needs.

    ``groups``, ``least_keys``: of each cell that is short of a node's part. No cell's key is more than its victims'
    cost shared among all that they complete.
    """
    order = np.lexsort((least_keys, groups))
    groups, keys = groups[order], least_keys[order]
    first = np.searchsorted(groups, groups)
    needed = np.append(need_in, 0)[groups]  # of cells of which nobody knows the domain none
    is_needed = np.arange(len(groups)) - first < needed
    costs = np.bincount(groups[is_needed], keys[is_needed], minlength=len(need_in))
    return costs.astype(np.float64)


@dataclass(frozen=True, slots=True)
class _Shares:
    """Who holds how many GPUs of which cell: one entry a pair, by attempt and cell; ``by_cell`` sorts it by cell.

    ``of_attempts``, ``of_cells``: where the pairs of each begin, in this order and in that of ``by_cell``.
    """

    attempts: Ints
    cells: Ints
    counts: Ints
    by_cell: Ints
    of_attempts: Ints
    of_cells: Ints

    def of_attempt(self, attempt: int) -> list[tuple[int, int]]:
        pairs = slice(self.of_attempts[attempt], self.of_attempts[attempt + 1])
        return list(zip(self.cells[pairs].tolist(), self.counts[pairs].tolist(), strict=True))

    def of_cell(self, cell: int) -> list[tuple[int, int]]:
        pairs = self.by_cell[self.of_cells[cell] : self.of_cells[cell + 1]]
        return list(zip(self.attempts[pairs].tolist(), self.counts[pairs].tolist(), strict=True))


def _shares(state: FleetState, owner: Ints, num_attempts: int) -> _Shares:
    gpus = np.flatnonzero(owner >= 0)
    num_cells = state.layout.num_cells
    pairs, counts = _counted(owner[gpus] * max(num_cells, 1) + state.layout.cell_of_gpu[gpus])
    attempts, cells = np.divmod(pairs, max(num_cells, 1))
    by_cell = np.argsort(cells, kind="stable")
    return _Shares(
        attempts, cells, counts, by_cell, _starts(attempts, num_attempts), _starts(cells[by_cell], num_cells)
    )


def _counted(values: Ints) -> tuple[Ints, Ints]:
    """The distinct values in order, and how often each is there. Equal ones mostly stand side by side."""
    starts = np.flatnonzero(np.append(True, values[1:] != values[:-1])) if len(values) else values
    lengths = np.diff(np.append(starts, len(values)))
    order = np.argsort(values[starts], kind="stable")
    ordered = values[starts][order]
    firsts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])) if len(ordered) else ordered
    return ordered[firsts], np.add.reduceat(lengths[order], firsts) if len(firsts) else firsts


def _starts(ordered: Ints, num_keys: int) -> Ints:
    return np.append(0, np.cumsum(np.bincount(ordered, minlength=num_keys)))


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
    chosen: dict[int, None] = field(default_factory=dict)
    freed: Counter[int] = field(default_factory=Counter)
    spent: Counter[int] = field(default_factory=Counter)
    heap: list[tuple[float, int]] = field(default_factory=list)
    gains: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    far: tuple[Ints, npt.NDArray[np.float64]] | None = None
    """Cells that are not in the heap yet, and their keys: all but the cheapest are seldom looked at."""

    def cover(self, cells: Ints, least_keys: npt.NDArray[np.float64]) -> Cover | None:
        self.open_cells = set(cells.tolist())
        self._look_at(cells, least_keys, most=4 * self.need + 16)
        while self.need > 0:
            if not self.heap:
                return None
            _, cell = heapq.heappop(self.heap)
            if cell == FAR and self.far is not None:
                self._look_at(*self.far, most=len(self.far[0]))
                continue
            bundle = self._bundle(cell) if cell in self.open_cells else None
            if bundle is None:
                continue
            key = self._key(bundle)
            if self.heap and (key, cell) > self.heap[0]:
                heapq.heappush(self.heap, (key, cell))
            else:
                self._adopt(bundle)
        return self._without_idle_victims()

    def _look_at(self, cells: Ints, keys: npt.NDArray[np.float64], *, most: int) -> None:
        """The ``most`` of least keys and their equals; ``FAR`` stands for the others, at the least of their keys."""
        is_near = np.ones(len(cells), dtype=np.bool_)
        if len(cells) > most:
            is_near = keys <= np.partition(keys, most)[most]
        self.heap += zip(keys[is_near].tolist(), cells[is_near].tolist(), strict=True)
        if not is_near.all():
            self.far = cells[~is_near], keys[~is_near]
            self.heap.append((float(self.far[1].min()), FAR))
        heapq.heapify(self.heap)

    def _cost(self, bundle: Sequence[int]) -> float:
        return float(sum([self.candidates.costs[victim] for victim in bundle]))

    def _key(self, bundle: Sequence[int]) -> float:
        if not self.counts_cells:
            return self._cost(bundle)
        gains = dict(self._gains(bundle[0]))
        for victim in bundle[1:]:
            for cell, gain in self._gains(victim):
                gains[cell] = gains.get(cell, 0) + gain
        completed = sum(1 for cell, gain in gains.items() if cell in self.open_cells and gain >= self._shortage(cell))
        return self._cost(bundle) / min(self.need, completed)

    def _gains(self, victim: int) -> list[tuple[int, int]]:
        gains = self.gains.get(victim)
        if gains is None:
            gains = self.gains[victim] = self.shares.of_attempt(victim)
        return gains

    def _shortage(self, cell: int) -> int:
        return self.request.gpus_per_node - int(self.counts[cell]) - self.freed[cell]

    def _bundle(self, cell: int) -> tuple[int, ...] | None:
        """The cheapest victims found that complete the cell: densest first, or one alone."""
        costs, shortage = self.candidates.costs, self._shortage(cell)
        holders = self.shares.of_cell(cell)
        if len(holders) == 1:
            return self._alone(*holders[0], shortage)
        options = [
            (float(costs[victim]) / gain, victim, gain)
            for victim, gain in holders
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

    def _alone(self, victim: int, gain: int, shortage: int) -> tuple[int, ...] | None:
        suffices = gain >= shortage and victim not in self.chosen and self._affords((victim,))
        return (victim,) if suffices else None

    def _affords(self, victims: Sequence[int]) -> bool:
        tenants, num_gpus, allowance = self.candidates.tenants, self.candidates.num_gpus, self.candidates.allowance
        losses: dict[int, int] = {}
        for victim in victims:
            tenant = tenants[victim]
            losses[tenant] = losses.get(tenant, self.spent[tenant]) + num_gpus[victim]
        if not all(lost <= allowance[tenant] for tenant, lost in losses.items()):
            return False
        return self.candidates.may_lose is None or self.candidates.may_lose((*self.chosen, *victims))

    def _adopt(self, bundle: Sequence[int]) -> None:
        for victim in bundle:
            self.chosen[victim] = None
            self.spent[self.candidates.tenants[victim]] += self.candidates.num_gpus[victim]
            for cell, gain in self._gains(victim):
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
            gains = self._gains(victim)
            undone = sum(1 for cell, gain in gains if cell in self.completed and self._shortage(cell) + gain > 0)
            if undone <= spare:
                spare -= undone
                del self.chosen[victim]
                self.freed.subtract(dict(gains))
                self.completed = {cell for cell in self.completed if self._shortage(cell) <= 0}
        return Cover(self._cost(tuple(self.chosen)), tuple(sorted(self.chosen)))
