"""Elastic victims that give hosts and continue with fewer: which of them, and how many hosts of each.

The choice is the cheapest by cost for each useful host, in one domain, and no more hosts than are missing there. All of
an attempt's GPUs start again, however few of its hosts it gives, so it costs the same. Pure.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from muster.domain.ids import GpuUuid, TenantId
from scheduler.fleet.topology import NOWHERE, FleetState, Ints, Layout
from scheduler.model import RunningAttempt
from scheduler.solve.slices import cheapest_in_slices
from scheduler.solve.solver import Request, count_by_group, fitting_cells, level_span

NONE: Final = -1
FULL: Final = int(np.iinfo(np.int32).max)
"""A number larger than any number of free GPUs: nothing that is given there helps."""


@dataclass(frozen=True, slots=True)
class Surplus:
    """The hosts that one attempt, by index, may give: ``most``. ``cost``: GPU-seconds, however many it gives.

    ``sizes``: GPUs of each of its parts, by rank; ``gpus``: the GPUs of each part that the beneficiary would get.
    """

    attempt: int
    tenant_id: TenantId
    cost: float
    most: int
    sizes: tuple[int, ...]
    gpus: tuple[Ints, ...]


@dataclass(frozen=True, slots=True)
class Shrink:
    """A choice. ``victims``: attempts by index. ``gpus``: the GPUs that become free."""

    cost: float
    victims: tuple[int, ...]
    gpus: Ints


def surplus_of(index: int, attempt: RunningAttempt, layout: Layout, owner: Ints, *, cost: float) -> Surplus:
    """Return the surplus. ``owner``: the attempt, by index, of each GPU that the beneficiary would get, else -1."""
    gang = attempt.elastic
    parts = () if gang is None else gang.parts
    most = 0 if gang is None else len(parts) - gang.min_nodes
    gpus = [layout.gpu_indices(uuids) for _, uuids in parts]
    comes = tuple(part[owner[part] == index] for part in gpus)
    return Surplus(index, attempt.tenant_id, cost, most, tuple(len(uuids) for _, uuids in parts), comes)


def within_cap(
    owner: Ints, surpluses: Sequence[Surplus], allowance: Mapping[TenantId, float]
) -> tuple[Ints, dict[int, int]]:
    """Return ``owner`` without the GPUs that each must keep, and the GPUs that each attempt gives.

    An attempt gives its last hosts, as many as it can spare and its tenant may lose.
    """
    owner, num_given = owner.copy(), dict[int, int]()
    for surplus in surpluses:
        left, num_hosts = allowance.get(surplus.tenant_id, 0.0), 0
        for gpus, size in zip(reversed(surplus.gpus), reversed(surplus.sizes), strict=True):
            if len(gpus) and num_hosts < surplus.most and size <= left:
                num_hosts, left = num_hosts + 1, left - size
                num_given[surplus.attempt] = num_given.get(surplus.attempt, 0) + size
            else:
                owner[gpus] = NONE
    return owner, num_given


def kept_alongside(attempt: RunningAttempt, taken: Collection[GpuUuid]) -> tuple[GpuUuid, ...]:
    """Return the GPUs with which an elastic victim continues: its untouched hosts; empty if they are too few."""
    gang = attempt.elastic
    if gang is None:
        return ()
    kept = [uuids for _, uuids in gang.parts if not any(uuid in taken for uuid in uuids)]
    return tuple(uuid for uuids in kept for uuid in uuids) if len(kept) >= gang.min_nodes else ()


def cheapest_shrink(
    state: FleetState, request: Request, surpluses: Sequence[Surplus], allowance: Mapping[TenantId, float]
) -> Shrink | None:
    """Return the cheapest set of given hosts by which one domain suffices; None if none does.

    ``allowance``: GPUs that a tenant may still lose (I9). As with whole victims, a preferred level is tried before
    wider ones.
    """
    if not surpluses:
        return None
    state = state.for_tier(request.tier)
    span = level_span(state.layout, request)
    counts = state.tier(request.tier).counts
    before = fitting_cells(state, request, counts)
    is_suitable = np.zeros(state.layout.num_cells, dtype=np.bool_)
    is_suitable[fitting_cells(state, request, np.full_like(counts, request.gpus_per_node))] = True
    room = np.where(is_suitable, counts, FULL)
    useful = {surplus.attempt: _useful(request, surplus, state.layout.cell_of_gpu, room) for surplus in surpluses}
    by_attempt = {surplus.attempt: surplus for surplus in surpluses}
    for level in span[-1:] if request.preferred is None else span:
        num_free = count_by_group(state.layout, before, level)
        groups = state.layout.groups[level]
        found = []
        for group, of_group in sorted(_by_group(useful, groups).items()):
            own, inside = [by_attempt[attempt] for attempt in of_group], of_group
            missing = request.nodes - int(num_free[group])
            if sum(map(len, inside.values())) < missing:
                continue
            if request.rule.slices:
                wanted = _of_slices(state, request, level, before[groups[before] == group], own, of_group)
                inside = {
                    attempt: {rank: cell for rank, cell in cells.items() if cell in wanted}
                    for attempt, cells in of_group.items()
                }
                missing = len(wanted)
            run = _Run(own, inside, allowance, missing)
            if missing > 0 and run.suffices():
                found.append(run)
        if found:
            return min(found, key=lambda run: (run.cost, len(run.chosen), sorted(run.chosen))).shrink()
    return None


def _of_slices(
    state: FleetState,
    request: Request,
    level: int,
    free: Ints,
    surpluses: Sequence[Surplus],
    useful: Mapping[int, Mapping[int, int]],
) -> set[int]:
    """Return the cells that victims complete for the cheapest slices found; empty if nothing suffices.

    ``free``: cells that fit already. ``useful``: of one group of ``level``.
    """
    costs = dict.fromkeys(free.tolist(), 0.0)
    for surplus in surpluses:
        for cell in useful[surplus.attempt].values():
            costs[cell] = min(costs.get(cell, surplus.cost), surplus.cost)
    cells = np.array(sorted(costs), dtype=np.int64)
    of_cells = np.array([costs[cell] for cell in cells.tolist()], dtype=np.float64)
    chosen = cheapest_in_slices(state.layout, request.rule.slices, cells, of_cells, request.nodes, level)
    return set(chosen.tolist()) - set(free.tolist())


def _useful(request: Request, surplus: Surplus, cell_of_gpu: Ints, room: Ints) -> dict[int, int]:
    """Return by rank the cell that the part completes: it gives a node's part with it, and not without.

    ``room``: GPUs of each cell that are free, ``FULL`` where the request may not be.
    """
    cell_of: dict[int, int] = {}
    for rank, gpus in enumerate(surplus.gpus):
        if not len(gpus):
            continue
        of_part = cell_of_gpu[gpus].tolist()
        # It has several cells if the beneficiary's tier distinguishes its GPUs.
        cell, gain = max(Counter(of_part).items(), key=lambda one: (one[1], -one[0]))
        if room[cell] < request.gpus_per_node <= room[cell] + gain:
            cell_of[rank] = cell
    return cell_of


def _by_group(useful: Mapping[int, Mapping[int, int]], groups: Ints) -> dict[int, dict[int, dict[int, int]]]:
    """Return ``useful`` by the group that contains each cell."""
    found: dict[int, dict[int, dict[int, int]]] = {}
    for attempt, cells in useful.items():
        for rank, cell in cells.items():
            group = int(groups[cell])
            if group != NOWHERE:
                found.setdefault(group, {}).setdefault(attempt, {})[rank] = cell
    return found


@dataclass(slots=True)
class _Run:
    """One greedy run in one domain, by the least cost for each missing host."""

    surpluses: Sequence[Surplus]
    useful: Mapping[int, Mapping[int, int]]
    allowance: Mapping[TenantId, float]
    missing: int
    chosen: dict[int, tuple[int, ...]] = field(default_factory=dict)
    cells: set[int] = field(default_factory=set)
    spent: Counter[TenantId] = field(default_factory=Counter)

    def suffices(self) -> bool:
        while self.missing > 0:
            offers = [
                (surplus.cost / len(ranks), surplus.attempt, ranks, surplus)
                for surplus in self.surpluses
                if surplus.attempt not in self.chosen and (ranks := self._ranks(surplus))
            ]
            if not offers:
                return False
            _, attempt, ranks, surplus = min(offers, key=lambda offer: offer[:2])
            self.chosen[attempt] = ranks
            self.cells.update(self.useful[attempt][rank] for rank in ranks)
            self.spent[surplus.tenant_id] += sum(surplus.sizes[rank] for rank in ranks)
            self.missing -= len(ranks)
        return True

    def _ranks(self, surplus: Surplus) -> tuple[int, ...]:
        """Return the last of its useful ranks, no more than are missing."""
        ranks: list[int] = []
        left = self.allowance.get(surplus.tenant_id, 0.0) - self.spent[surplus.tenant_id]
        for rank in sorted(self.useful[surplus.attempt], reverse=True):
            is_new = self.useful[surplus.attempt][rank] not in self.cells
            if is_new and len(ranks) < min(self.missing, surplus.most) and surplus.sizes[rank] <= left:
                ranks.append(rank)
                left -= surplus.sizes[rank]
        return tuple(ranks)

    @property
    def cost(self) -> float:
        return sum(surplus.cost for surplus in self.surpluses if surplus.attempt in self.chosen)

    def shrink(self) -> Shrink:
        given = [
            surplus.gpus[rank]
            for surplus in self.surpluses
            if surplus.attempt in self.chosen
            for rank in self.chosen[surplus.attempt]
        ]
        return Shrink(self.cost, tuple(sorted(self.chosen)), np.unique(np.concatenate(given)))
