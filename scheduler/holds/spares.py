"""Hosts kept free for gangs that lose one: how many of a cohort, which, and who may run there.

As many as fail at once in all but one in a hundred of the times (by the policy's ``confidence``): a host is away for
``replacement_h``, hosts fail alone, so their number is binomial. Jobs of tiers that a rule may reclaim run there all
the same, and give way to who may have a spare; a job that was interrupted may. A cohort is what the tiers mix whose
gangs they are for: each that no rule takes back, by its own layout. Pure.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from muster.domain.policy.document import Policy
from muster.domain.policy.recovery import SparePolicy
from scheduler.fleet.topology import Flags, FleetState, Ints
from scheduler.model import WaitingJob, Workload


def spares_needed(num_hosts: int, num_gpus: int, failures_per_gpu_hour: float, policy: SparePolicy) -> int:
    """The least number k such that no more than k of the hosts are away, with the policy's confidence.

    0 where the policy keeps none. Away at a moment is a host with p = 1 - exp(-rate × GPUs a host × hours away), the
    failures of a Poisson process; of n hosts k are with the binomial distribution.
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
    """What is kept in one cycle, but for who may run there: what is idle of it is taken in the fleet's state.

    ``promised``: what is held for beneficiaries, which is no spare whoever runs there.
    """

    def __init__(self, state: FleetState, policy: Policy, workload: Workload, promised: Ints | None = None) -> None:
        self._state, self._policy = state, policy
        self._gpus: Ints = np.zeros(0, dtype=np.int64)
        self._is_any_kept = False
        if policy.recovery.spares.confidence is not None:
            chosen = _chosen(state, policy, workload, promised)
            self._is_any_kept = bool(chosen.any())
            self._gpus = np.flatnonzero(chosen & state.is_free)
            state.is_spare[chosen] = True
            state.take(self._gpus)

    def may_use(self, job: WaitingJob) -> bool:
        """One that was interrupted, or that a rule may take back from there. False also where none are kept."""
        tier = self._policy.tiers.get(job.tier)
        is_open = tier is not None and (tier.notice_s is not None or job.interrupted_ms is not None)
        return is_open and self._is_any_kept

    @contextmanager
    def open_to(self, job: WaitingJob) -> Iterator[None]:
        """Inside, they are free where the job may use them; what is still free afterwards is kept again."""
        if not self.may_use(job):
            yield
            return
        self._state.give(self._gpus)
        try:
            yield
        finally:
            self._gpus = self._gpus[self._state.is_free[self._gpus]]
            self._state.take(self._gpus)


def _chosen(state: FleetState, policy: Policy, workload: Workload, promised: Ints | None) -> Flags:
    """The GPUs of whole hosts, enough in each layout by which the gangs go that spares are for.

    Those of the finest layout first: what is whole there is mostly so in a coarser one as well, and then counts there.
    """
    lent: Flags = np.zeros(len(state.layout.uuids), dtype=np.bool_)
    for attempt in workload.running:
        tier = policy.tiers.get(attempt.tier)
        if tier is not None and tier.notice_s is not None:
            lent[state.layout.gpu_indices(attempt.gpus)] = True
    if promised is not None:
        lent[promised] = False
    chosen: Flags = np.zeros(len(lent), dtype=np.bool_)
    protected = protected_tiers(policy).values()
    for name in sorted(protected, key=lambda name: -len(state.for_tier(name).layout.cohort_keys)):
        own, admitted = state.for_tier(name), state.tier(name).admitted
        cells = _chosen_in(own, admitted, lent, chosen, policy, workload.failures_per_gpu_hour)
        chosen[own.layout.gpus_of_cells(cells)] = True
    return chosen


def protected_tiers(policy: Policy) -> dict[frozenset[str] | None, str]:
    """Of the tiers that no rule takes back, which alone cannot run there, the first of each ``Policy.homogeneity``.

    Where a rule takes back every tier, of all of them.
    """
    kept = [name for name, tier in policy.tiers.items() if tier.notice_s is None] or list(policy.tiers)
    first: dict[frozenset[str] | None, str] = {}
    for name in sorted(kept, key=lambda name: (policy.tiers[name].priority, name), reverse=True):
        first.setdefault(policy.homogeneity(name), name)
    return first


def _chosen_in(
    state: FleetState, admitted: Flags, lent: Flags, chosen: Flags, policy: Policy, failures_per_gpu_hour: float
) -> Ints:
    """Cells of the state's own layout, beside those that are ``chosen`` whole: those that are lent before idle ones,
    which are then left to others, and those first of which their domain has the most, so that they lie apart.
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
    """The cells of which every GPU is one of these."""
    whole: Flags = np.bincount(state.layout.cell_of_gpu, gpus, state.layout.num_cells) == state.layout.cell_size
    return whole


def _apart(state: FleetState, cells: Ints) -> list[int]:
    """The last of each narrowest named domain first, then the one before it; fuller domains before emptier ones."""
    groups = state.layout.groups[-2][cells]
    place: dict[int, int] = {}
    by_group: dict[int, int] = {}
    for cell, group in zip(cells[::-1].tolist(), groups[::-1].tolist(), strict=True):
        place[cell] = by_group.get(group, 0)
        by_group[group] = place[cell] + 1
    group_of = dict(zip(cells.tolist(), groups.tolist(), strict=True))
    return sorted(place, key=lambda cell: (place[cell], -by_group[group_of[cell]], cell))
