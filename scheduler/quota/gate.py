"""How much of its quotas a job may have at its turn in a cycle (I6), and for whom of those that they keep waiting it is
kept: beside what is held, by what is on its way to others, and by what starts before the job would have ended.
"""

from collections.abc import Callable

from muster.domain.ids import TenantId
from scheduler.explain import explain
from scheduler.fleet.topology import FleetState
from scheduler.holds.places import HeldPlaces
from scheduler.model import Verdict, WaitingJob
from scheduler.quota.tenancy import Holdings, Limit
from scheduler.reclaim.reclaim import Reclaimer
from scheduler.solve.elastic import nodes_of
from scheduler.solve.placing import could_be
from scheduler.solve.request import request_of


class QuotaGate:
    """``holdings``: the cycle's own. Without ``reclaimer`` and ``backfill`` nothing is known but fleet and queue."""

    def __init__(
        self,
        state: FleetState,
        holdings: Holdings,
        is_passed_enough: Callable[[WaitingJob], bool],
        reclaimer: Reclaimer | None = None,
        backfill: HeldPlaces | None = None,
    ) -> None:
        self._state, self._holdings, self._is_passed_enough = state, holdings, is_passed_enough
        self._reclaimer, self._backfill = reclaimer, backfill
        self._looked_at: set[tuple[TenantId, str]] = set()
        self._kept_for: list[WaitingJob] = []

    def limit(self, job: WaitingJob) -> Limit | None:
        """The one that leaves it least, now or beside those that start before it would have ended."""
        limit = self._holdings.limit(job.tenant_id, job.tier)
        is_promised = self._reclaimer is not None and job.job_id in self._reclaimer.promises
        if limit is None or self._backfill is None or is_promised:
            return limit
        kept = self._backfill.limit(job)
        return limit if kept is None else min(limit, kept, key=lambda one: one.left)

    def refusal(self, job: WaitingJob, limit: Limit | None) -> Verdict | None:
        """As the commit will ask it again; once enough work has passed the job, what it needs is kept from who comes
        later.
        """
        if limit is None or nodes_of(job, limit) >= job.fewest_nodes:
            return None
        refused = explain.over_quota(job, limit)
        from_ms = self._keep(job, limit)
        return refused if from_ms is None else explain.quota_kept(refused, from_ms)

    def close(self) -> None:
        """All have had their turn: what is kept for one is no longer there for others to grow by."""
        for job in self._kept_for:
            self._holdings.keep(job.tenant_id, job.tier, job.fewest_gpus)

    def _keep(self, job: WaitingJob, limit: Limit) -> int | None:
        """For the first of each limit alone that could start by it: from when on, or None."""
        key = limit.tenant_id, job.tier
        if self._backfill is None or key in self._looked_at or not self._is_passed_enough(job):
            return None
        limits = self._holdings.limits(job.tenant_id, job.tier)
        if any(one.most < job.fewest_gpus for one in limits) or not could_be(self._state, request_of(job)):
            return None
        self._looked_at.add(key)
        from_ms = self._backfill.keep_quota(job)
        if from_ms is not None:
            self._kept_for.append(job)
        return from_ms
