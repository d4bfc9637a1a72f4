"""Quota that is kept for who starts later, in one cycle: others have it who are gone by then, as on GPUs that are held.

What has a place keeps what it needs of its limits from that moment on. So does a job that was passed by enough work and
that a limit keeps waiting: from the moment at which enough of what the limit lets be held has ended. Nothing is stored.
"""

from muster.domain.ids import JobId, TenantId
from scheduler.fleet.topology import NEVER_MS
from scheduler.model import WaitingJob
from scheduler.quota.ahead import Holding, QuotaAhead
from scheduler.quota.tenancy import Holdings, Limit
from scheduler.reclaim.reclaim import Reclaimer


class KeptQuota:
    """``holdings``: the cycle's own; what is placed counts at once."""

    def __init__(self, reclaimer: Reclaimer, holdings: Holdings, now_ms: int) -> None:
        self._ahead, self._holdings, self._now_ms = QuotaAhead(reclaimer, holdings), holdings, now_ms
        self._kept: dict[JobId, Holding] = {}
        self._num_kept = 0
        self._found: dict[tuple[TenantId, str, int], Limit | None] = {}
        self._found_at = (0, 0)

    def keep(self, job: WaitingJob, from_ms: int) -> None:
        """Its fewest GPUs, from then on for as long as it is believed to run."""
        if self._holdings.tenancy.quotas:
            end_ms = self._ahead.end_ms(job, from_ms)
            self._kept[job.job_id] = Holding(job.tenant_id, job.tier, job.fewest_gpus, from_ms, end_ms)
            self._num_kept += 1

    def limit(self, job: WaitingJob) -> Limit | None:
        """The one that leaves least to the job from now on until it ends, where something is kept meanwhile."""
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
        """Whether beside what is kept already its limits let the job start then."""
        if not self._holdings.tenancy.quotas:
            return True
        return self._ahead.first_ms(job, from_ms, self._ahead.known(), self._but_for(job)) == from_ms

    def first_moment_ms(self, job: WaitingJob) -> int | None:
        """When its limits let it start that keep it waiting; None: nobody knows, or another keeps what it needs."""
        others = self._but_for(job)
        for returning in (self._ahead.known(), self._ahead.believed()):
            from_ms = self._ahead.first_ms(job, self._now_ms, returning, others)
            if from_ms < NEVER_MS:
                return from_ms
        return None

    def _but_for(self, job: WaitingJob) -> list[Holding]:
        return [one for job_id, one in self._kept.items() if job_id != job.job_id]
