"""Spares: how many hosts of a cohort are kept free for gangs that lose one, which ones, and which jobs may use them.

As many hosts are kept as fail at once in all but one in a hundred cases (by the policy's ``confidence``). A host is
away for ``replacement_h``, and hosts fail independently, so their number is binomial. Jobs of reclaimable tiers may run
there, and are reclaimed for a job that may have a spare; an interrupted job may. A cohort here is the GPUs that the
protected tiers may mix in one gang: each tier that no rule reclaims counts by its own layout. Pure.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from muster.domain.ids import GpuUuid
from muster.domain.policy.document import Policy
from muster.domain.policy.recovery import SparePolicy
from scheduler.fleet.topology import Flags, FleetState, Ints
from scheduler.model import WaitingJob, Workload


def spares_needed(num_hosts: int, num_gpus: int, failures_per_gpu_hour: float, policy: SparePolicy) -> int:
    """Return the least number k such that no more than k of the hosts are away, with the policy's confidence.

    It is 0 if the policy keeps none. A host is away at a moment with p = 1 - exp(-rate × GPUs a host × hours away), the
    failures of a Poisson process; the number of n hosts that are away is binomial.
    """
    if policy.confidence is None or not num_hosts or failures_per_gpu_hour <= 0:
        return 0
    hazard = failures_per_gpu_hour * num_gpus / num_hosts * policy.replacement_h
    log_in, log_out = -hazard, math.log(-math.expm1(-hazard))
    reached = 0.0
    for count in range(num_hosts):
        ways = math.lgamma(num_hosts + 1) - math.lgamma(count + 1) - math.lgamma(num_hosts - count + 1)
        reached += math.exp(ways + count * log_out + (num_hosts - count) * log_in)
        if reached >= policy.confidence:
            return count
    return num_hosts


class Spares:
    """The spares of one cycle. Idle ones are taken in the fleet's state until ``open_to`` opens them.

    ``hold_of_others``: GPUs that are held for beneficiaries; they are no spares, whichever job runs there.
    ``used`` is called with the tier of a job that starts on spares, and these.
    """

    def __init__(
        self,
        state: FleetState,
        policy: Policy,
        workload: Workload,
        hold_of_others: Ints | None = None,
        used: Callable[[str, Ints], None] | None = None,
    ) -> None:
        self._state, self._policy, self._used = state, policy, used
        self._gpus: Ints = np.zeros(0, dtype=np.int64)
        self._is_any_kept = False
        if policy.recovery.spares.confidence is not None:
            chosen = _chosen(state, policy, workload, hold_of_others)
            self._is_any_kept = bool(chosen.any())
            self._gpus = np.flatnonzero(chosen & state.is_free)
            state.is_spare[chosen] = True
            state.take(self._gpus)

    @property
    def idle(self) -> tuple[GpuUuid, ...]:
        """The spares that no job uses."""
        return tuple(self._state.layout.uuids[gpu] for gpu in self._gpus.tolist())

    def may_use(self, job: WaitingJob) -> bool:
        """Return whether the job was interrupted, or a rule may reclaim it from there.

        False also if no spares are kept.
        """
        tier = self._policy.tiers.get(job.tier)
        is_open = tier is not None and (tier.notice_s is not None or job.interrupted_ms is not None)
        return is_open and self._is_any_kept

    @contextmanager
    def open_to(self, job: WaitingJob) -> Iterator[None]:
        """Free the spares inside the context if the job may use them; the ones still free afterwards are kept again."""
        if not self.may_use(job):
            yield
            return
        self._state.give(self._gpus)
        try:
            yield
        finally:
            is_left = self._state.is_free[self._gpus]
            if self._used is not None and not is_left.all():
                self._used(job.tier, self._gpus[~is_left])
            self._gpus = self._gpus[is_left]
            self._state.take(self._gpus)


def _chosen(state: FleetState, policy: Policy, workload: Workload, hold_of_others: Ints | None) -> Flags:
    """Return the GPUs of whole hosts, enough in each layout of the tiers that spares protect.

    Hosts of the finest layout are chosen first: a host that is whole there is mostly whole in a coarser one as well,
    and then counts there too.
    """
    lent: Flags = np.zeros(len(state.layout.uuids), dtype=np.bool_)
    for attempt in workload.running:
        tier = policy.tiers.get(attempt.tier)
        if tier is not None and tier.notice_s is not None:
            lent[state.layout.gpu_indices(attempt.gpus)] = True
    if hold_of_others is not None:
        lent[hold_of_others] = False
    chosen: Flags = np.zeros(len(lent), dtype=np.bool_)
    protected = protected_tiers(policy).values()
    for name in sorted(protected, key=lambda name: -len(state.for_tier(name).layout.cohort_keys)):
        own, admitted = state.for_tier(name), state.tier(name).admitted
        cells = _chosen_in(own, admitted, lent, chosen, policy, workload.failures_per_gpu_hour)
        chosen[own.layout.gpus_of_cells(cells)] = True
    return chosen


def protected_tiers(policy: Policy) -> dict[frozenset[str] | None, str]:
    """Return the protected tiers, which no rule reclaims: the first tier of each ``Policy.homogeneity``.

    If a rule reclaims every tier, all tiers count.
    """
    kept = [name for name, tier in policy.tiers.items() if tier.notice_s is None] or list(policy.tiers)
    first: dict[frozenset[str] | None, str] = {}
    for name in sorted(kept, key=lambda name: (policy.tiers[name].priority, name), reverse=True):
        first.setdefault(policy.homogeneity(name), name)
    return first


def _chosen_in(
    state: FleetState, admitted: Flags, lent: Flags, chosen: Flags, policy: Policy, failures_per_gpu_hour: float
) -> Ints:
    """Return cells of the state's own layout, in addition to ``chosen`` whole ones.

    Cells that reclaimable jobs use come before idle ones, which then remain for other jobs. Then the fullest domains
    come first, one cell of each, so that the spares are far apart.
    """
    layout = state.layout
    is_idle, is_kept = _all_of(state, admitted & state.is_free), _all_of(state, admitted & chosen)
    is_lent = _all_of(state, admitted & (state.is_free | lent)) & ~is_idle & ~is_kept
    found: list[int] = []
    for cohort in range(len(layout.cohort_keys)):
        own = layout.cell_cohort == cohort
        num_hosts, num_gpus = int(np.count_nonzero(own)), int(layout.cell_size[own].sum())
        needed = spares_needed(num_hosts, num_gpus, failures_per_gpu_hour, policy.recovery.spares)
        missing = max(needed - int(np.count_nonzero(own & is_kept)), 0)
        apart = [_apart(state, np.flatnonzero(own & cells)) for cells in (is_lent, is_idle & ~is_kept)]
        found += [cell for cells in apart for cell in cells][:missing]
    return np.array(sorted(found), dtype=np.int64)


def _all_of(state: FleetState, gpus: Flags) -> Flags:
    """Return the cells of which every GPU is one of these."""
    whole: Flags = np.bincount(state.layout.cell_of_gpu, gpus, state.layout.num_cells) == state.layout.cell_size
    return whole


def _apart(state: FleetState, cells: Ints) -> list[int]:
    """Return the last cell of each narrowest named domain first, then the one before it; fuller domains first."""
    groups = state.layout.groups[-2][cells]
    place: dict[int, int] = {}
    by_group: dict[int, int] = {}
    for cell, group in zip(cells[::-1].tolist(), groups[::-1].tolist(), strict=True):
        place[cell] = by_group.get(group, 0)
        by_group[group] = place[cell] + 1
    group_of = dict(zip(cells.tolist(), groups.tolist(), strict=True))
    return sorted(place, key=lambda cell: (place[cell], -by_group[group_of[cell]], cell))
