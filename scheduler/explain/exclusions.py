"""The GPUs that a gang cannot have, by the first reason in a fixed order, and the reason that binds.

Each GPU is counted once, so that the counts and the remaining GPUs add up to the fleet. The binding reason is the first
one after which the gang no longer fits, although it would fit with all GPUs that the later ones exclude.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import numpy as np

from health.standing.admission import Refusal
from muster.domain.job.wait_reasons import WaitReason
from scheduler.fleet.topology import REFUSALS, Flags, FleetState, Ints, Layout
from scheduler.model import Reason
from scheduler.solve.node_filter import labelled
from scheduler.solve.placement_rule import LabelRule
from scheduler.solve.slices import count_by_group, in_whole_slices
from scheduler.solve.solver import Request, fitting_cells, level_span, most_nodes, most_unrounded, room_of

_OF_REFUSAL: Final = {
    Refusal.MIG_ENABLED: WaitReason.MIG_MODE,
    Refusal.STANDING: WaitReason.STANDING,
    Refusal.RECLAIMABLE_ONLY: WaitReason.YOUNG_PROBATION,
    Refusal.CORDONED: WaitReason.CORDON,
    Refusal.NODE_CONTACT: WaitReason.CONTACT,
    Refusal.BURN_IN: WaitReason.BURN_IN,
    Refusal.REPORTED: WaitReason.REPORTED,
    Refusal.ASSIGNED: WaitReason.IN_USE,
}
MASKS: Final = (
    WaitReason.RESIDENCY,
    WaitReason.LABELS,
    *_OF_REFUSAL.values(),
    WaitReason.MAINTENANCE,
    WaitReason.AVOIDED,
    WaitReason.SPARE,
    WaitReason.HOLD_OF_OTHERS,
)
_ORDER: Final = tuple(WaitReason)
MASKS_IN_ORDER: Final = tuple(sorted(MASKS, key=_ORDER.index))
"""The reasons that exclude single GPUs, the most lasting first. The remaining GPUs may still be in the wrong places."""
_LEFT: Final = len(MASKS_IN_ORDER)


def _code(reason: WaitReason) -> int:
    return MASKS_IN_ORDER.index(reason)


_CODE_OF_REFUSAL: Final = tuple(_code(_OF_REFUSAL[refusal]) for refusal in REFUSALS)
_AVOIDED, _IN_USE, _HOLD_OF_OTHERS = map(_code, (WaitReason.AVOIDED, WaitReason.IN_USE, WaitReason.HOLD_OF_OTHERS))
_MAINTENANCE, _SPARE = map(_code, (WaitReason.MAINTENANCE, WaitReason.SPARE))
_RESIDENCY, _LABELS = map(_code, (WaitReason.RESIDENCY, WaitReason.LABELS))


@dataclass(frozen=True, slots=True)
class Funnel:
    """The result for one gang.

    ``reasons``: each reason that excludes any GPU, and the binding one, without a count if others exclude its GPUs.
    ``num_gpus``, ``num_hosts``: what remains in the best home.
    """

    reasons: tuple[Reason, ...]
    binding: WaitReason
    num_gpus: int
    num_hosts: int


@dataclass(frozen=True, slots=True)
class _Left:
    """The GPUs that remain after a mask, as far as any gang of the family can use them.

    ``most_nodes``: hosts in the best home, and ``unrounded`` without slices; ``num_suitable``: hosts that give one
    host's part, ``in_cohort`` of them in one cohort; ``crumbs``: GPUs on the other hosts.
    """

    num_gpus: int
    most_nodes: int
    unrounded: int
    num_suitable: int
    in_cohort: int
    crumbs: int


@dataclass(frozen=True, slots=True)
class Exclusions:
    """The exclusions of one family of requests, which differ in the number of hosts alone.

    ``reasons``: each reason that excludes any GPU, in order; ``left``: the GPUs in all, then after each mask;
    ``num_gpus``, ``num_hosts``: what remains in the best home; ``size``: hosts that have one host's part in all.
    """

    reasons: tuple[Reason, ...]
    left: tuple[_Left, ...]
    num_gpus: int
    num_hosts: int
    size: int
    gpus_per_node: int
    _funnels: dict[WaitReason, Funnel] = field(default_factory=dict, compare=False, repr=False)

    def funnel(self, nodes: int) -> Funnel:
        """Return the funnel of a gang of so many hosts at least."""
        binding = self._binding(nodes)
        if binding not in self._funnels:
            told = list(self.reasons)
            if all(reason.token is not binding for reason in told):
                told.append(Reason(binding))
            in_order = sorted(told, key=lambda reason: _ORDER.index(reason.token))
            self._funnels[binding] = Funnel(tuple(in_order), binding, self.num_gpus, self.num_hosts)
        return self._funnels[binding]

    def _binding(self, nodes: int) -> WaitReason:
        if self.left[-1].most_nodes >= nodes:
            return WaitReason.TRIED_AGAIN
        number = next(number for number, left in enumerate(self.left) if left.most_nodes < nodes)
        mask = MASKS_IN_ORDER[number - 1] if number else WaitReason.CAPACITY
        if number and mask not in {WaitReason.IN_USE, WaitReason.SPARE, WaitReason.HOLD_OF_OTHERS}:
            return mask
        return self._shape(nodes, self.left[number]) or mask

    def _shape(self, nodes: int, left: _Left) -> WaitReason | None:
        """Return why enough GPUs are in the wrong places; None: there are too few."""
        if left.num_gpus < nodes * self.gpus_per_node:
            return None
        if left.num_suitable < nodes:
            if self.size < nodes:
                return WaitReason.CAPACITY
            is_scattered = left.num_suitable * self.gpus_per_node + left.crumbs >= nodes * self.gpus_per_node
            return WaitReason.FRAGMENTATION if is_scattered else None
        if left.in_cohort < nodes:
            return WaitReason.COHORT
        return WaitReason.SLICES if left.unrounded >= nodes else WaitReason.TOPOLOGY


def funnel(state: FleetState, request: Request, hold_of_others: Flags) -> Funnel:
    """Return the funnel of a gang that does not fit. ``hold_of_others``: GPUs that are held for others, free or not."""
    return exclusions(state, request, hold_of_others).funnel(request.fewest_nodes)


def exclusions(state: FleetState, request: Request, hold_of_others: Flags) -> Exclusions:
    """Return the exclusions of the request's family (``Request.family``), whatever number of hosts it asks for."""
    rule = replace(request.rule, labels=LabelRule(), preferred=())
    wanted = replace(request.at_least(), avoid_nodes=frozenset(), maintenance_start_ms=None, rule=rule)
    state = state.for_tier(request.tier)
    left = _left_after(state, request, hold_of_others)
    stages = _of_each(left, partial(_left, state, wanted))
    reasons = [
        Reason(reason, before.num_gpus - after.num_gpus, before.num_suitable - after.num_suitable)
        for reason, before, after in zip(MASKS_IN_ORDER, stages, stages[1:], strict=False)
    ]
    shape, gpus_at_home, hosts_at_home = _misplaced(state, wanted, left[-1])
    told = sorted(
        (reason for reason in (*reasons, *shape) if reason.num_gpus), key=lambda reason: _ORDER.index(reason.token)
    )
    size = _num_suitable(wanted, state.layout.cell_size)
    return Exclusions(tuple(told), tuple(stages), gpus_at_home, hosts_at_home, size, wanted.gpus_per_node)


def _left(state: FleetState, wanted: Request, counts: Ints) -> _Left:
    is_suitable = counts >= wanted.gpus_per_node
    num_gpus, most = int(counts.sum()), most_nodes(state, wanted, counts)
    return _Left(
        num_gpus=num_gpus,
        most_nodes=most,
        unrounded=most_unrounded(state, wanted, counts, most),
        num_suitable=int(np.count_nonzero(is_suitable)),
        in_cohort=int(np.bincount(state.layout.cell_cohort[is_suitable]).max(initial=0)),
        crumbs=num_gpus - int(counts[is_suitable].sum()),
    )


def _of_each(left: list[Ints], value: Callable[[Ints], _Left]) -> list[_Left]:
    """Return the value of each entry; entries that are one array, whose masks exclude nothing, share one call."""
    values: list[_Left] = []
    for number, counts in enumerate(left):
        values.append(values[-1] if number and counts is left[number - 1] else value(counts))
    return values


def _left_after(state: FleetState, request: Request, hold_of_others: Flags) -> list[Ints]:
    """Return the GPUs that each cell has: in all, then after each mask; the same array if a mask excludes none."""
    out = _left_out(state, request, hold_of_others)
    left = [state.layout.cell_size]
    for code in range(_LEFT):
        lost = out[:, code]
        left.append(left[-1] - lost if lost.any() else left[-1])
    return left


def _left_out(state: FleetState, request: Request, hold_of_others: Flags) -> Ints:
    """Return the excluded GPUs by cell and mask, each counted at its first mask."""
    layout, tier = state.layout, state.tier(request.tier)
    out = np.zeros((layout.num_cells, _LEFT), dtype=np.int64, order="F")
    for code, refused in zip(_CODE_OF_REFUSAL, tier.refused.T, strict=True):
        out[:, code] = refused
    taken = np.flatnonzero(hold_of_others & tier.admitted & ~state.is_free)
    out[:, _HOLD_OF_OTHERS] = np.bincount(layout.cell_of_gpu[taken], minlength=layout.num_cells)
    if not request.may_use_spares:
        spares = np.flatnonzero(state.is_spare & ~hold_of_others & tier.admitted & ~state.is_free)
        out[:, _SPARE] = np.bincount(layout.cell_of_gpu[spares], minlength=layout.num_cells)
    out[:, _IN_USE] = tier.admitted_counts - tier.counts - out[:, _HOLD_OF_OTHERS] - out[:, _SPARE]
    for node_id in request.avoid_nodes:
        _leave_out(layout, out, list(layout.cells_of_node.get(node_id, ())), _AVOIDED)
    if request.maintenance_start_ms is not None:
        _leave_out(
            layout, out, np.flatnonzero(state.cell_closes_ms <= request.maintenance_start_ms).tolist(), _MAINTENANCE
        )
    for labels, code in ((request.rule.labels.of_job, _LABELS), (request.rule.labels.of_tenant, _RESIDENCY)):
        if labels:  # the later one first: what an earlier mask excludes is taken from it
            _leave_out(layout, out, np.flatnonzero(~labelled(layout, labels)).tolist(), code)
    return out


def _leave_out(layout: Layout, out: Ints, cells: list[int], code: int) -> None:
    """Exclude all GPUs of these cells that no earlier mask excludes."""
    before = out[cells, :code].sum(axis=1)
    out[cells, code:] = 0
    out[cells, code] = layout.cell_size[cells] - before


def _num_suitable(request: Request, counts: Ints) -> int:
    return int(np.count_nonzero(counts >= request.gpus_per_node))


def _misplaced(state: FleetState, wanted: Request, counts: Ints) -> tuple[list[Reason], int, int]:
    """Return reasons that count free GPUs outside the best home; then the GPUs and hosts that remain in it."""
    layout = state.layout
    is_whole = counts >= wanted.gpus_per_node
    is_home = np.zeros(layout.num_cells, dtype=np.bool_)
    span = level_span(layout, wanted)
    cells = fitting_cells(state, wanted, counts)
    is_over = np.zeros(layout.num_cells, dtype=np.bool_)
    if span and len(cells):
        home = _home(layout, wanted, cells, span[-1])
        inside = cells[layout.groups[span[-1]][cells] == home]
        is_home[in_whole_slices(layout, wanted.rule.slices, inside, span[-1])] = True
        is_over[inside] = ~is_home[inside]
    is_found = is_home | is_over
    homes = layout.cell_cohort[is_found] if is_found.any() else layout.cell_cohort[is_whole]
    is_cohort = layout.cell_cohort == (homes[0] if len(homes) else -1)
    crumbs, other_cohort, elsewhere = (
        ~is_whole & (counts > 0),
        is_whole & ~is_cohort,
        is_whole & is_cohort & ~is_home & ~is_over,
    )
    reasons = [
        Reason(WaitReason.FRAGMENTATION, int(counts[crumbs].sum()), int(np.count_nonzero(crumbs))),
        Reason(WaitReason.COHORT, int(counts[other_cohort].sum()), int(np.count_nonzero(other_cohort))),
        Reason(WaitReason.TOPOLOGY, int(counts[elsewhere].sum()), int(np.count_nonzero(elsewhere))),
        Reason(WaitReason.SLICES, int(counts[is_over].sum()), int(np.count_nonzero(is_over))),
    ]
    return reasons, int(counts[is_home].sum()), int(np.count_nonzero(is_home))


def _home(layout: Layout, wanted: Request, cells: Ints, level: int) -> int:
    """Return the group with the most room for the gang; of equal ones the one with the most hosts, then the first."""
    room, num_hosts = room_of(layout, wanted, cells, level), count_by_group(layout, cells, level)
    return int(np.lexsort((-num_hosts, -room))[0])
