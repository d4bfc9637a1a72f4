"""Quota that is kept in one cycle for jobs that start later; jobs that end before may use it, as with held GPUs.

A job with a place keeps the quota that it needs from its start on. So does a job that enough work overtook and that a
limit keeps pending: from the time at which enough of the limit's GPUs have been released. Nothing is stored.
"""

from muster.domain.ids import JobId, TenantId
from scheduler.fleet.topology import NEVER_MS
from scheduler.model import WaitingJob
from scheduler.quota.ahead import Holding, QuotaAhead
from scheduler.quota.tenancy import Holdings, Limit
from scheduler.reclaim.reclaim import Reclaimer


class KeptQuota:
    """The kept quota of one cycle. ``holdings``: the cycle's own; placements count at once."""

    def __init__(self, reclaimer: Reclaimer, holdings: Holdings, now_ms: int) -> None:
        self._ahead, self._holdings, self._now_ms = QuotaAhead(reclaimer, holdings), holdings, now_ms
        self._kept: dict[JobId, Holding] = {}
        self._num_kept = 0
        self._found: dict[tuple[TenantId, str, int], Limit | None] = {}
        self._found_at = (0, 0)

    def keep(self, job: WaitingJob, from_ms: int) -> None:
        """Keep the quota of its fewest GPUs, from then on for as long as it is expected to run."""
        if self._holdings.tenancy.quotas:
            end_ms = self._ahead.end_ms(job, from_ms)
            self._kept[job.job_id] = Holding(job.tenant_id, job.tier, job.fewest_gpus, from_ms, end_ms)
            self._num_kept += 1

    def drop(self, job_id: JobId) -> None:
        """Keep no quota for the job any more."""
        if self._kept.pop(job_id, None) is not None:
            self._num_kept += 1

    def limit(self, job: WaitingJob) -> Limit | None:
        """Return the limit that leaves least to the job until it ends, if any quota is kept in that time."""
        end_ms = self._ahead.end_ms(job, self._now_ms)
        kept = [one for one in self._kept.values() if one.tier == job.tier and one.start_ms < end_ms]
        if not kept:
            return None
        limits = self._holdings.limits(job.tenant_id, job.tier)
        most = sum(one.num_gpus for one in kept) + job.most_nodes * job.gpus_per_node
        if all(limit.left >= most for limit in limits):
            return None
        as_of = self._holdings.num_changes, self._num_kept
        if as_of != self._found_at:
            self._found, self._found_at = {}, as_of
        alike = job.tenant_id, job.tier, len(kept)
        if alike not in self._found:
            self._found[alike] = self._ahead.tightest(job, self._now_ms, self._ahead.known(), kept)
        return self._found[alike]

    def lets_start(self, job: WaitingJob, from_ms: int) -> bool:
        """Return whether its limits let the job start then, given the quota that is kept already."""
        if not self._holdings.tenancy.quotas:
            return True
        return self._ahead.first_ms(job, from_ms, self._ahead.known(), self._but_for(job)) == from_ms

    def first_moment_ms(self, job: WaitingJob) -> int | None:
        """Return when the limits that keep it pending let it start.

        None if unknown, or if another job keeps the quota.
        """
        others = self._but_for(job)
        for returning in (self._ahead.known(), self._ahead.expected()):
            from_ms = self._ahead.first_ms(job, self._now_ms, returning, others)
            if from_ms < NEVER_MS:
                return from_ms
        return None

    def _but_for(self, job: WaitingJob) -> list[Holding]:
        return [one for job_id, one in self._kept.items() if job_id != job.job_id]
