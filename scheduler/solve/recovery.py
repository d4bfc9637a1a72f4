"""The next placement of a job whose attempt has ended: good GPUs stay, bad ones are replaced nearby.

Rank by rank: a node that can still give its part keeps its rank and its good GPUs, and a spare GPU of the same cohort
on that node replaces a bad one. A node that cannot is replaced whole by the nearest that can, or else its slice moves.
Pure.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from muster.domain.ids import GpuUuid, NodeId
from muster.domain.policy.document import Policy
from scheduler.fleet.topology import NOWHERE, Flags, FleetState, Ints, Layout
from scheduler.model import Parts, Resized, Swap, WaitingJob, Workload
from scheduler.solve.even_swaps import EvenSpread
from scheduler.solve.health_cost import pick_gpus, steps_of
from scheduler.solve.placement_rule import Slice
from scheduler.solve.rail_sets import has_rails_of
from scheduler.solve.slice_homes import SliceHomes, without_slice
from scheduler.solve.slices import are_in_slices
from scheduler.solve.solver import Chosen, Request, fitting_cells, has_labels


def replan(state: FleetState, request: Request, last: Parts, bad: Collection[GpuUuid] = ()) -> Chosen | None:
    """Return the next parts on the good GPUs of the last attempt, which has released them.

    A GPU is good if it is not in ``bad``, its tier admits it and its host is not to be avoided. None if the last shape
    was another, no GPU is good, or no replacement is in the required domain: then the gang has to be placed again.
    The first preferred slices are used that its good hosts and their replacements give. A required slice moves whole
    only if no host in its own domain replaces what it lost, whatever is preferred.
    """
    state = state.for_tier(request.tier)
    chosen = _replan_with_preferences(state, request, last, bad, may_move=False)
    if chosen is not None or not request.rule.slices:
        return chosen
    return _replan_with_preferences(state, request, last, bad, may_move=True)


def _replan_with_preferences(
    state: FleetState, request: Request, last: Parts, bad: Collection[GpuUuid], *, may_move: bool
) -> Chosen | None:
    required = request.rule.slices if may_move else ()
    for wish in request.rule.preferred:
        placed = last if wish.order is None or len(last) != request.nodes else wish.order.by_place(last)
        movable = [one for one in wish.slices if one in required]
        chosen = _replan(state, request.with_preferences(wish), placed, bad, movable)
        if chosen is not None:
            return chosen.ranked(wish.order)
    return _replan(state, request, last, bad, required)


def _replan(
    state: FleetState, request: Request, last: Parts, bad: Collection[GpuUuid], movable: Sequence[Slice]
) -> Chosen | None:
    good = good_ranks(state, request, last, bad)
    if good is None or all(part is None for _, part in good.ranks):
        return None
    ranks = good.ranks if len(good.ranks) == request.nodes else _resized(good.ranks, request.nodes)
    filled = _filled(state, request, ranks, good, movable)
    if filled is None:
        return None
    gpus = np.concatenate(filled)
    chosen = Chosen(state.layout.cell_of_gpu[gpus[:: request.gpus_per_node]], gpus)
    return chosen if are_in_slices(state.layout, request.rule.slices, chosen.cells) else None


def _filled(
    state: FleetState,
    request: Request,
    ranks: Sequence[tuple[NodeId, Ints | None]],
    good: "Good",
    movable: Sequence[Slice],
) -> list[Ints] | None:
    """Return each rank's part.

    If a lost one has no replacement, its ``movable`` slices release their hosts and move.
    """
    stays: list[Ints | None] | None = [part for _, part in ranks]
    while stays is not None:
        nodes = [node_id for node_id, _ in ranks]
        taken = {node_id for (node_id, part), now in zip(ranks, stays, strict=True) if part is None or now is not None}
        unkept = replace(request, avoid_nodes=request.avoid_nodes | taken)
        filled = _replace_nodes(state, unkept, nodes, stays, good.usable, good.cohort)
        if not isinstance(filled, int):
            return filled
        stays = without_slice(movable, stays, filled)
    return None


def still_good(state: FleetState, request: Request, last: Parts) -> Ints | None:
    """Return the free GPUs of the last attempt with which its ranks would continue after a replacement in one domain.

    None if there is nothing to wait for: nothing of it can be kept within the required domain, no level is required, or
    the domain could not hold the gang if all its other hosts were free.
    """
    state = state.for_tier(request.tier)
    good = None if request.required is None else good_ranks(state, request, last, ())
    if good is None:
        return None
    kept = [part for _, part in good.ranks if part is not None]
    if not kept or len(kept) == len(good.ranks):
        return None
    gpus = np.concatenate(kept)
    home = required_group(state, request, np.unique(state.layout.cell_of_gpu[gpus]))
    return gpus if home is not None and _could_hold(state, request, home, good.cohort) else None


def _could_hold(state: FleetState, request: Request, home: Flags, cohort: int) -> bool:
    """Return whether the hosts of ``home`` that the request may use suffice, with all their GPUs free."""
    layout = state.layout
    fitting = fitting_cells(state, request, np.bincount(layout.cell_of_gpu, minlength=layout.num_cells))
    return int(np.count_nonzero(home[fitting] & (layout.cell_cohort[fitting] == cohort))) >= request.nodes


def wait_until_ms(job: WaitingJob, request: Request, policy: Policy, workload: Workload) -> int | None:
    """Return until when an interrupted job waits for a replacement in its required domain.

    None: no longer, or not at all; an elastic one continues with fewer hosts instead.
    """
    if job.interrupted_ms is None or request.required is None or request.min_nodes is not None:
        return None
    until_ms = job.interrupted_ms + int(policy.recovery.wait_for_replacement_s * 1000)
    return until_ms if workload.now_ms < until_ms else None


def swap_of(last: Parts, parts: Parts) -> Swap:
    """Return which part of the last attempt the next one keeps, and which host takes which rank."""
    before = {uuid for _, uuids in last for uuid in uuids}
    kept_gpus = sum(uuid in before for _, uuids in parts for uuid in uuids)
    if len(last) != len(parts):
        resized = _resizing(last, parts)
        return Swap(len(parts) - len(resized.joined), kept_gpus, resized=resized)
    pairs = [(old, new) for (old, _), (new, _) in zip(last, parts, strict=True)]
    replaced = tuple((old, new) for old, new in pairs if old != new)
    return Swap(len(pairs) - len(replaced), kept_gpus, replaced)


def _resizing(last: Parts, parts: Parts) -> Resized:
    had, has = [node_id for node_id, _ in last], [node_id for node_id, _ in parts]
    left = tuple(node_id for node_id in had if node_id not in has)
    return Resized(len(had), len(has), left, tuple(node_id for node_id in has if node_id not in had))


@dataclass(frozen=True, slots=True)
class Good:
    """The good part of a gang.

    ``ranks``: each node of the last attempt with its next part, or None if it can give none.
    """

    ranks: list[tuple[NodeId, Ints | None]]
    usable: Flags
    cohort: int


def good_ranks(state: FleetState, request: Request, last: Parts, bad: Collection[GpuUuid]) -> Good | None:
    if request.min_nodes is None and len(last) != request.nodes:
        return None
    if not last or any(len(uuids) != request.gpus_per_node for _, uuids in last):
        return None
    usable = state.usable(request.tier)
    usable[state.layout.gpu_indices(bad)] = False
    for node_id in request.avoid_nodes:
        usable[state.layout.gpus_of_cells(_cells_of(state, node_id))] = False
    if request.maintenance_start_ms is not None:
        usable &= state.cell_closes_ms[state.layout.cell_of_gpu] > request.maintenance_start_ms
    if request.rule.labels:
        usable &= has_labels(state.layout, request)[state.layout.cell_of_gpu]
    if request.rule.balance is not None:
        usable &= _is_known(state.layout, request.rule.balance)[state.layout.cell_of_gpu]
    cohort = _cohort_of_most(state, last, usable)
    if cohort is None:
        return None
    ranks = [(node_id, _keep_node(state, node_id, uuids, usable, cohort)) for node_id, uuids in last]
    return Good(ranks, usable, cohort)


def _is_known(layout: Layout, level: str) -> Flags:
    """Return for each cell whether its domain of the level is known."""
    number = layout.level(level)
    known: Flags = np.zeros(layout.num_cells, dtype=np.bool_) if number is None else layout.groups[number] != NOWHERE
    return known


def _resized(ranks: Sequence[tuple[NodeId, Ints | None]], num_nodes: int) -> list[tuple[NodeId, Ints | None]]:
    """Return so many of the kept nodes, in rank order, and new ones near the last of them for the missing."""
    kept = [(node_id, part) for node_id, part in ranks if part is not None][:num_nodes]
    return kept + [(kept[-1][0], None)] * (num_nodes - len(kept))


def _cells_of(state: FleetState, node_id: NodeId) -> Ints:
    return np.array(state.layout.cells_of_node.get(node_id, ()), dtype=np.int64)


def _cohort_of_most(state: FleetState, last: Parts, usable: Flags) -> int | None:
    """Return the cohort of most good GPUs: after an upgrade they may be of several."""
    gpus = state.layout.gpu_indices(uuid for _, uuids in last for uuid in uuids)
    cohorts = state.layout.cell_cohort[state.layout.cell_of_gpu[gpus[usable[gpus]]]]
    return int(np.bincount(cohorts).argmax()) if len(cohorts) else None


def _keep_node(state: FleetState, node_id: NodeId, uuids: Sequence[GpuUuid], usable: Flags, cohort: int) -> Ints | None:
    """Return the node's next part, each good GPU on its local rank, or None if the node has too few spare GPUs."""
    layout = state.layout
    cells = [cell for cell in layout.cells_of_node.get(node_id, ()) if layout.cell_cohort[cell] == cohort]
    here = layout.gpus_of_cells(np.array(cells[:1], dtype=np.int64))
    here = here[usable[here]]
    good = {layout.uuids[index]: int(index) for index in here}
    spares = (int(index) for index in here if layout.uuids[index] not in set(uuids))
    part = [good[uuid] if uuid in good else next(spares, None) for uuid in uuids]
    return None if None in part else np.array(part, dtype=np.int64)


def _replace_nodes(
    state: FleetState,
    request: Request,
    nodes: Sequence[NodeId],
    ranks: Sequence[Ints | None],
    usable: Flags,
    cohort: int,
) -> list[Ints] | int | None:
    """Return a part for each rank, with each missing one on the nearest other node of the cohort.

    Replacements are within the required domain of the kept nodes. Ranks bound to a domain of their slice go before
    slices that may go anywhere. A number: the rank that no node can take; None: no node is kept, or the kept ones are
    in no single required domain.
    """
    layout = state.layout
    kept = [part for part in ranks if part is not None]
    home = (
        required_group(state, request, layout.cell_of_gpu[np.concatenate([part[:1] for part in kept])])
        if kept
        else None
    )
    if home is None:
        return None
    counts = np.bincount(layout.cell_of_gpu[usable], minlength=layout.num_cells)
    cells = fitting_cells(state, request, counts)
    cells = cells[(layout.cell_cohort[cells] == cohort) & home[cells]]
    homes = SliceHomes(layout, request.rule.slices, ranks)
    spread = EvenSpread(state, request, nodes, ranks)
    found = {rank: part for rank, part in enumerate(ranks) if part is not None}
    missing = [rank for rank, part in enumerate(ranks) if part is None]
    for rank in sorted(missing, key=lambda rank: (homes.num_homeless(rank), rank)):
        near = spread.evenest(cells[homes.admits(rank, cells)])
        if not len(near):
            return rank
        is_off_rails = ~has_rails_of(state, request, near, kept[0], usable)
        cell = _nearest(state, nodes[rank], near, counts, (is_off_rails, steps_of(state, request, near, usable)))
        cells = cells[cells != cell]
        homes.settle(rank, cell)
        spread.settle(cell)
        found[rank] = pick_gpus(state, request, np.array([cell]), usable, kept[0])
    return [found[rank] for rank in range(len(ranks))]


def required_group(state: FleetState, request: Request, kept_cells: Ints) -> Flags | None:
    """Return the cells in the required domain of the kept ones; None if these are in several or in none."""
    if request.required is None:
        return np.ones(state.layout.num_cells, dtype=np.bool_)
    level = state.layout.level(request.required)
    homes = set() if level is None else set(state.layout.groups[level][kept_cells].tolist())
    if level is None or len(homes) != 1 or NOWHERE in homes:
        return None
    inside: Flags = state.layout.groups[level] == homes.pop()
    return inside


def _nearest(state: FleetState, node_id: NodeId, cells: Ints, counts: Ints, flaws: Sequence[Ints | Flags]) -> int:
    """Return the best cell for a rank of the node.

    First comes the cell that shares the narrowest domain with the node, then the one with the least flaws, the last of
    which weighs most, then the fullest, then the first.
    """
    shared: Counter[int] = Counter()
    lost = state.layout.cells_of_node.get(node_id, ())[:1]
    for groups in state.layout.groups[1:-1]:
        for cell in lost:
            if groups[cell] != NOWHERE:
                shared.update(cells[groups[cells] == groups[cell]].tolist())
    nearness = np.array([-shared[int(cell)] for cell in cells])
    return int(cells[np.lexsort((cells, counts[cells], *flaws, nearness))[0]])
