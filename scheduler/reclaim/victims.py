"""The cheapest attempts whose GPUs make one domain sufficient: a covering knapsack, solved per domain.

Two greedy runs (``scheduler.reclaim.greedy_sets``) come first: by the least marginal cost, and by the least cost for
each completed cell. In slices the cells are chosen beforehand, by what each would cost alone; if some of them cannot be
completed, others are chosen. Then all sets of few victims are tested (``scheduler.reclaim.exact_sets``), which is exact
for a domain with few candidates.

A gang of 2 × 8 GPUs in a rack of three hosts; a victim's cost is in GPU-seconds:

    host  GPUs of attempts   cost to complete the host
    h0    A 4, B 4           A 6 + B 3 = 9
    h1    A 4, C 4           A 6 + C 3 = 9, or C 3 alone once A is chosen
    h2    D 8                D 7

    greedy run   h2 (7), then h0 (9)    D, A, B: 16
    all sets     h0 and h1 share A      A, B, C: 12, with A, B, D as the runner-up
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from scheduler.fleet.topology import Flags, FleetState, Ints, Layout
from scheduler.reclaim.exact_sets import Domain
from scheduler.reclaim.greedy_sets import GreedyRun
from scheduler.reclaim.shares import Shares, shares_of
from scheduler.reclaim.victim_sets import VictimCandidates, VictimSet
from scheduler.solve.health_cost import expected_losses
from scheduler.solve.placement_rule import Slice
from scheduler.solve.slices import cheapest_in_slices, cheapest_runs, in_groups
from scheduler.solve.solver import Request, count_by_group, fitting_cells, level_span, room_of

__all__ = ["VictimCandidates", "VictimSet", "cheapest_covers", "dispensable"]

LOSS_WEIGHT: Final = 1e-6
"""Weight of the gang's expected loss on weak hosts against the victims' loss: it decides only between equal costs."""
MAX_TRIES: Final = 8
"""Most choices of cells of slices, each without cells that could not be completed before."""


def dispensable(
    state: FleetState, request: Request, given_by: Mapping[int, Ints], one: Slice | None = None
) -> set[int]:
    """Return the victims without which the gang may still fit, one at a time, by a count of cells.

    The state must have the GPUs of all victims free. A victim that is not among them now is not either after others
    were dropped. ``given_by``: the GPUs of each victim; ``one``: the narrowest slices, if only whole ones count.
    """
    state = state.for_tier(request.tier)
    layout, home = state.layout, level_span(state.layout, request)[-1]
    at = None if one is None else layout.level(one.level)
    level, nodes = (home, 1) if one is None or at is None or at < home else (at, one.nodes)
    counts = state.tier(request.tier).counts
    cells = fitting_cells(state, request, counts)
    num_cells, home_of = count_by_group(layout, cells, level), layout.around(level, home)
    room = np.bincount(home_of + 1, num_cells // nodes * nodes, layout.num_groups[home] + 1)[1:]  # 0: unknown
    spare = room.astype(np.int64) - request.nodes
    victims, given = _undone(layout, request, given_by, counts)
    groups = layout.groups[level][given]
    is_inside = np.isin(given, cells) & np.append(np.append(spare >= 0, False)[home_of], False)[groups]
    pairs, lost = np.unique(victims[is_inside] * len(home_of) + groups[is_inside], return_counts=True)
    victims, groups = np.divmod(pairs, len(home_of))
    lost = num_cells[groups] // nodes * nodes - (num_cells[groups] - lost) // nodes * nodes
    losses, of_pair = np.unique(victims * len(spare) + home_of[groups], return_inverse=True)
    victims, homes = np.divmod(losses, len(spare))
    num_closed = Counter(victims[np.bincount(of_pair, lost, len(losses)) > spare[homes]].tolist())
    num_homes = int(np.count_nonzero(spare >= 0))
    return {victim for victim in given_by if num_closed[victim] < num_homes}


def _undone(layout: Layout, request: Request, given_by: Mapping[int, Ints], counts: Ints) -> tuple[Ints, Ints]:
    """Return pairs of a victim and a cell that has too few GPUs without the victim's."""
    victims = np.repeat(list(given_by), [len(gpus) for gpus in given_by.values()])
    given = layout.cell_of_gpu[np.concatenate(list(given_by.values()))]
    pairs, gains = np.unique(victims * layout.num_cells + given, return_counts=True)
    victims, given = np.divmod(pairs, layout.num_cells)
    is_undone = counts[given] - gains < request.gpus_per_node
    return victims[is_undone], given[is_undone]


def cheapest_covers(state: FleetState, request: Request, candidates: VictimCandidates) -> list[VictimSet]:
    """Return distinct covers, the cheapest first; empty if no set within the allowances suffices.

    A preferred level is tried before wider ones; without one, only the widest that is allowed, where the cost is least.
    """
    state = state.for_tier(request.tier)
    span = level_span(state.layout, request)
    search = _search(state, request, candidates)
    for level in span[-1:] if request.preferred is None else span:
        covers = search.at(level)
        if covers:
            return covers
    return []


def _search(state: FleetState, request: Request, candidates: VictimCandidates) -> "_Search":
    """Return the search. ``state``: laid out for the request's tier."""
    counts, num_cells = state.tier(request.tier).counts, state.layout.num_cells
    shares = candidates.shares or shares_of(state, candidates.owner, len(candidates.costs))
    after = fitting_cells(state, request, counts + shares.by_cells())
    is_enough = np.zeros(num_cells, dtype=np.bool_)
    is_enough[fitting_cells(state, request, counts)] = True
    losses = np.zeros(num_cells)
    usable = (state.tier(request.tier).admitted & state.is_free) | (candidates.owner >= 0)
    losses[after] = LOSS_WEIGHT * expected_losses(state, request, after, usable)
    bounds = [_least_keys(shares, candidates, num_cells, most) + losses for most in (1, request.nodes)]
    runs = (1, request.nodes) if request.rule.slices else ()
    prices = [_prices(shares, candidates, request.gpus_per_node - counts, most) for most in runs]
    return _Search(state, request, candidates, counts, shares, after, is_enough, losses, bounds, prices)


@dataclass(frozen=True, slots=True)
class _Search:
    """The search for covers. ``after``: cells that fit once all candidates have released their GPUs.

    ``is_enough``: cells that fit already. ``losses``: what the gang is expected to lose by the use of each cell, at
    ``LOSS_WEIGHT``; ``bounds``, ``prices``: of each cell, for the two runs; prices are used for slices alone.
    """

    state: FleetState
    request: Request
    candidates: VictimCandidates
    counts: Ints
    shares: Shares
    after: Ints
    is_enough: Flags
    losses: npt.NDArray[np.float64]
    bounds: list[npt.NDArray[np.float64]]
    prices: list[npt.NDArray[np.float64]]

    def at(self, level: int) -> list[VictimSet]:
        """Return covers in domains of the level, the cheapest first, with at least the next best one."""
        layout, request = self.state.layout, self.request
        groups = layout.groups[level]
        need_in = request.nodes - count_by_group(layout, np.flatnonzero(self.is_enough), level)
        possible = np.flatnonzero(room_of(layout, request, self.after, level) >= request.nodes)
        least_costs = self._least_costs(level, need_in)
        covers: set[VictimSet] = set()
        for group in possible[np.argsort(least_costs[possible], kind="stable")].tolist():
            # Groups come by their lower bound: after the second best cover none can be better than it.
            if any(least_costs[group] > cover.weighed for cover in _in_order(covers)[1:2]):
                break
            cells = self.after[groups[self.after] == group]
            is_sliced = bool(request.rule.slices)
            known = self._in_slices(level, cells) if is_sliced else self._in_any(cells, int(need_in[group]))
            domain = Domain(layout, request, self.candidates, self.shares, self.counts, self.losses, level, cells)
            covers.update(domain.cheapest(set(known)))
        return _in_order(covers)

    def _least_costs(self, level: int, need_in: Ints) -> npt.NDArray[np.float64]:
        """Return a lower bound for the cost of a cover in each group; for slices, by the cheapest cells of a domain."""
        groups, keys = self.state.layout.groups[level], self.bounds[1]
        slices, nodes = self.request.rule.slices, self.request.nodes
        if not slices:
            short = self.after[~self.is_enough[self.after]]
            return _least_costs(groups[short], keys[short], need_in)
        costs = np.where(self.is_enough, 0.0, keys)[self.after]
        runs = cheapest_runs(self.state.layout, slices, self.after, costs, level)
        num_runs = np.full(len(need_in), nodes // runs.cells.shape[1])
        return _least_costs(groups[runs.cells[:, 0]], runs.costs, num_runs)

    def _in_any(self, cells: Ints, need: int) -> Iterator[VictimSet]:
        """Yield greedy covers. ``cells``: the cells of a domain that fit after reclaim."""
        cells = cells[~self.is_enough[cells]]
        for by_cells in range(len(self.bounds)):
            found = self._run(cells, need, by_cells).victim_set(cells, self.bounds[by_cells][cells])
            if found is not None:
                yield found

    def _in_slices(self, level: int, cells: Ints) -> Iterator[VictimSet]:
        """Yield greedy covers in whole slices. Only a run shows which of the chosen cells a cap excludes."""
        for by_cells, prices in enumerate(self.prices):
            costs = np.where(self.is_enough, 0.0, prices) + self.losses
            for _ in range(MAX_TRIES):
                slices, nodes = self.request.rule.slices, self.request.nodes
                chosen = cheapest_in_slices(self.state.layout, slices, cells, costs[cells], nodes, level)
                if np.isinf(costs[chosen]).any():
                    break
                missing = chosen[~self.is_enough[chosen]]
                run = self._run(missing, len(missing), by_cells)
                found = run.victim_set(missing, self.bounds[by_cells][missing])
                if found is not None:
                    yield found
                    break
                costs[[cell for cell in missing.tolist() if cell not in run.completed]] = np.inf

    def _run(self, cells: Ints, need: int, by_cells: int) -> GreedyRun:
        is_inside = np.zeros(len(self.is_enough), dtype=np.bool_)
        is_inside[cells] = True
        return GreedyRun(
            self.request, self.counts, self.shares, self.candidates, need, bool(by_cells), is_inside, self.losses
        )


def _in_order(covers: Collection[VictimSet]) -> list[VictimSet]:
    """Return the cheapest first, without others that have all its victims: they are no alternative to it."""
    ordered = sorted(covers, key=VictimSet.order)
    return ordered[:1] + [one for one in ordered[1:] if not set(ordered[0].victims) <= set(one.victims)]


def _least_costs(groups: Ints, least_keys: npt.NDArray[np.float64], need_in: Ints) -> npt.NDArray[np.float64]:
    """Return a lower bound for the cost of a cover in each group: the sum of its least keys, of the cells it needs.

    ``groups``, ``least_keys``: of each cell that is short of a node's part, or of each run of cells. No cell's key is
    more than its victims' cost shared among all cells that they complete.
    """
    by_key = np.argsort(least_keys)
    order = by_key[in_groups(groups[by_key], len(need_in))]
    groups, keys = groups[order], least_keys[order]
    needed = np.append(need_in, 0)[groups]  # a cell of an unknown domain is never needed
    is_needed = _places(groups) < needed
    costs = np.bincount(groups[is_needed], keys[is_needed], minlength=len(need_in))
    return costs.astype(np.float64)


def _places(ordered: Ints) -> Ints:
    """Return the index of each among the ones equal to it, from 0."""
    is_first = np.append(True, ordered[1:] != ordered[:-1]) if len(ordered) else ordered
    firsts = np.flatnonzero(is_first)
    return np.arange(len(ordered)) - firsts.repeat(np.diff(np.append(firsts, len(ordered))))


def _least_keys(shares: Shares, candidates: VictimCandidates, num_cells: int, most: int) -> npt.NDArray[np.float64]:
    """Return a lower bound of each cell's key in a run that may complete ``most`` cells.

    With it few keys have to be computed exactly.
    """
    cells_of_attempt = np.bincount(shares.attempts, minlength=len(candidates.costs))
    keys = (candidates.costs / np.clip(cells_of_attempt, 1, most))[shares.attempts]
    least = np.full(num_cells, np.inf)
    np.minimum.at(least, shares.cells, keys)
    return least


def _prices(shares: Shares, candidates: VictimCandidates, shortages: Ints, most: int) -> npt.NDArray[np.float64]:
    """Return the cost of completing each cell: by the densest victims together, or by one alone, without caps.

    ``shortages``: by cell. A victim's cost is shared among its cells, ``most`` at most. If all victims do not complete
    a cell, the value is their whole cost.
    """
    cells_of_attempt = np.bincount(shares.attempts, minlength=len(candidates.costs))
    costs = (candidates.costs / np.clip(cells_of_attempt, 1, most))[shares.attempts]
    by_density = _by_density(shares, costs)
    cells, gains, costs = shares.cells[by_density], shares.counts[by_density], costs[by_density]
    given = np.cumsum(gains) - gains
    is_taken = given - given[shares.of_cells[cells]] < shortages[cells]
    prices = np.bincount(cells[is_taken], costs[is_taken], minlength=len(shortages)).astype(np.float64)
    is_alone = gains >= shortages[cells]
    np.minimum.at(prices, cells[is_alone], costs[is_alone])
    return prices


def _by_density(shares: Shares, costs: npt.NDArray[np.float64]) -> Ints:
    """Return the pairs by cell, within a cell by the cost of each GPU: most cells have GPUs of one attempt alone."""
    found = shares.by_cell.copy()
    cells = shares.cells[found]
    is_shared = np.diff(shares.of_cells)[cells] > 1
    pairs = found[is_shared]
    found[is_shared] = pairs[np.lexsort((costs[pairs] / shares.counts[pairs], cells[is_shared]))]
    return found
