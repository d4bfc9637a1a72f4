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

from scheduler.shares import Shares, shares_of
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
    num_homes = int(np.count_nonzero(spare >= 0))
    return {victim for victim in given_by if num_closed[victim] < num_homes}


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
    shares = shares_of(state, candidates.owner, len(candidates.costs))
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
                is_inside = np.zeros(num_cells, dtype=np.bool_)
                is_inside[cells] = True
                run = _Run(request, counts, shares, candidates, need, bool(by_cells), is_inside)
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
    by_key = np.argsort(least_keys)
    short = np.int16 if len(need_in) <= np.iinfo(np.int16).max else np.int64  # numpy sorts those in linear time
    order = by_key[np.argsort(groups[by_key].astype(short), kind="stable")]
    groups, keys = groups[order], least_keys[order]
    needed = np.append(need_in, 0)[groups]  # of cells of which nobody knows the domain none
    is_needed = _places(groups) < needed
    costs = np.bincount(groups[is_needed], keys[is_needed], minlength=len(need_in))
    return costs.astype(np.float64)


def _places(ordered: Ints) -> Ints:
    """Of each among those equal to it, from 0."""
    is_first = np.append(True, ordered[1:] != ordered[:-1]) if len(ordered) else ordered
    firsts = np.flatnonzero(is_first)
    return np.arange(len(ordered)) - firsts.repeat(np.diff(np.append(firsts, len(ordered))))


def _least_keys(shares: Shares, candidates: Candidates, num_cells: int, most: int) -> npt.NDArray[np.float64]:
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
    shares: Shares
    candidates: Candidates
    need: int
    counts_cells: bool
    is_inside: Flags
    """The cells that may be completed."""
    completed: set[int] = field(default_factory=set)
    chosen: dict[int, None] = field(default_factory=dict)
    shortages: dict[int, int] = field(default_factory=dict)
    """What is missing for a node's part, of those cells that were looked at."""
    spent: Counter[int] = field(default_factory=Counter)
    heap: list[tuple[float, int]] = field(default_factory=list)
    gains: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    sole: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Who alone holds what comes free in a cell, and how many GPUs, of those cells that were looked at."""
    num_near: int = 0
    far: tuple[Ints, npt.NDArray[np.float64]] | None = None
    """Cells that are not in the heap yet, and their keys: all but the cheapest are seldom looked at."""

    def cover(self, cells: Ints, least_keys: npt.NDArray[np.float64]) -> Cover | None:
        """``cells``: those inside."""
        self._look_at(cells, least_keys, most=2 * self.need + 16)
        while self.need > 0:
            if not self.heap:
                return None
            _, cell = heapq.heappop(self.heap)
            if cell == FAR and self.far is not None:
                self._look_at(*self.far, most=4 * self.num_near)
                continue
            bundle = None if cell in self.completed else self._bundle(cell)
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
        """The cheapest victims found that complete the cell: densest first, or one alone."""
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

    def _without_idle_victims(self) -> Cover:
        """Let off each victim without whom enough cells stay complete, the dearest first."""
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
        return Cover(self._cost(tuple(self.chosen)), tuple(sorted(self.chosen)))
