"""The quota that a job may use at its turn in a cycle (I6), and the jobs for which quota is kept.

Counted are the GPUs in use, the ones held for other jobs, and jobs that start before this one would have ended.
"""

from collections.abc import Callable

from muster.domain.ids import TenantId
from scheduler.explain import explain
from scheduler.fleet.topology import FleetState
from scheduler.holds.places import Holds
from scheduler.model import Verdict, WaitingJob
from scheduler.quota.tenancy import Holdings, Limit
from scheduler.reclaim.reclaim import Reclaimer
from scheduler.solve.elastic import nodes_of
from scheduler.solve.placing import could_be
from scheduler.solve.request import request_of


class QuotaGate:
    """The gate of one cycle. ``holdings``: the cycle's own."""

    def __init__(
        self,
        state: FleetState,
        holdings: Holdings,
        is_passed_enough: Callable[[WaitingJob], bool],
        reclaimer: Reclaimer,
        backfill: Holds,
    ) -> None:
        self._state, self._holdings, self._is_passed_enough = state, holdings, is_passed_enough
        self._reclaimer, self._backfill = reclaimer, backfill
        self._checked: set[tuple[TenantId, str]] = set()
        self._kept_for: list[WaitingJob] = []

    def limit(self, job: WaitingJob) -> Limit | None:
        """Return the limit that leaves it least, now or with the jobs that start before it would have ended."""
        limit = self._holdings.limit_now(job.tenant_id, job.tier)
        if limit is None or job.job_id in self._reclaimer.holds:
            return limit
        kept = self._backfill.limit(job)
        return limit if kept is None else min(limit, kept, key=lambda one: one.left)

    def refusal(self, job: WaitingJob, limit: Limit | None) -> Verdict | None:
        """Return the verdict of a job over its quota, by the rule of the commit; None if enough is left.

        Once enough work overtook the job, the quota that it needs is kept from later jobs.
        """
        if limit is None or nodes_of(job, limit) >= job.fewest_nodes:
            return None
        if limit.is_firm:
            return self._not_lent(job, limit)
        refused = explain.over_quota(job, limit)
        from_ms = self._keep(job, limit)
        return refused if from_ms is None else explain.quota_kept(refused, from_ms)

    def _not_lent(self, job: WaitingJob, limit: Limit) -> Verdict:
        """Return the verdict of a job that others' firm guarantees keep pending.

        Once enough work overtook it, later jobs borrow nothing: else small ones would use up what it needs permanently.
        """
        firm = self._holdings.firm
        if firm is not None and self._is_passed_enough(job) and could_be(self._state, request_of(job)):
            firm.keep_rest(job.tenant_id, job.tier, job.fewest_gpus)
        return explain.not_lent(job, limit)

    def close(self) -> None:
        """Count the kept quota, so that no attempt grows by it. All jobs have had their turn."""
        for job in self._kept_for:
            self._holdings.keep(job.tenant_id, job.tier, job.fewest_gpus)

    def _keep(self, job: WaitingJob, limit: Limit) -> int | None:
        """Keep quota for the first job of each limit that could start by it. Return from when on, or None."""
        key = limit.tenant_id, job.tier
        if key in self._checked or not self._is_passed_enough(job):
            return None
        limits = self._holdings.limits(job.tenant_id, job.tier)
        if any(one.most < job.fewest_gpus for one in limits) or not could_be(self._state, request_of(job)):
            return None
        self._checked.add(key)
        from_ms = self._backfill.keep_quota(job)
        if from_ms is not None:
            self._kept_for.append(job)
        return from_ms
