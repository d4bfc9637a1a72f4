"""The planner: whole gangs onto admitted, free GPUs of one cohort; reclaim where due; a reason for each other job.

Pure: the same fleet, queue, workload and policy give the same plan (I19). Jobs follow ``scheduler.queue.order``.
Smaller jobs behind a gang that does not fit may start before it, except on GPUs that are held for it
(``scheduler.holds.backfill``). Jobs with equal requests fail together, so a queue of ten thousand jobs that cannot be
placed costs little more than one. An elastic job takes as many of its requested hosts as there are, and no fewer than
its fewest; GPUs are reclaimed only for its fewest.

One cycle with four pending jobs, in their order, on two racks of two hosts:

    job     tier       needs             decision
    urgent  reserved   2 hosts, 1 rack   b gets notice (spot, 120 s); r0h0, r0h1 are held for it
    gang    on_demand  2 hosts           r1h0, r1h1 are held for it from minute 60 on, when a ends
    short   spot       1 host, 50 min    starts on r1h1: it ends before minute 60
    long    spot       1 host, 70 min    stays pending: it would not

    host  now        minute 2   minute 60
    r0h0  idle       urgent     urgent
    r0h1  b          urgent     urgent
    r1h0  a          a          gang
    r1h1  short      short      gang
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from muster.domain.job.wait_reasons import WaitReason
from muster.domain.policy.document import Policy
from muster.domain.policy.queue import CONSERVATIVE
from scheduler.explain import explain
from scheduler.explain.kept_reasons import KeptReasons
from scheduler.fleet.fragmentation import mix_of
from scheduler.fleet.maintenance_start import maintenance_start_of
from scheduler.fleet.topology import FleetState
from scheduler.holds.backfill import EasyBackfill
from scheduler.holds.conservative import ConservativeBackfill
from scheduler.holds.firm_starts import FirmStarts
from scheduler.holds.places import Holds
from scheduler.holds.reclaim_holds import ReclaimHolds
from scheduler.holds.spares import Spares
from scheduler.model import (
    NO_WORKLOAD,
    GpuView,
    Growth,
    Lapse,
    Parts,
    Placement,
    Plan,
    Reclaim,
    RunningAttempt,
    StandingReclaim,
    Verdict,
    Waiting,
    WaitingJob,
    Withdrawal,
    Workload,
)
from scheduler.queue.examination import Examination
from scheduler.queue.fair_share import FairShares, in_turns
from scheduler.queue.order import in_order, is_passed_enough
from scheduler.queue.pending_jobs import PendingJobs, comes_to
from scheduler.queue.report import QueueReport
from scheduler.quota.firm_tiers import firm_guarantees
from scheduler.quota.gate import QuotaGate
from scheduler.quota.tenancy import Holdings
from scheduler.reclaim.reclaim import Reclaimer
from scheduler.solve.elastic import grow, nodes_of
from scheduler.solve.placing import Placing
from scheduler.solve.solver import Request, request_of

__all__ = [
    "GpuView",
    "Lapse",
    "Parts",
    "Placement",
    "Plan",
    "Reclaim",
    "RunningAttempt",
    "StandingReclaim",
    "Waiting",
    "WaitingJob",
    "Withdrawal",
    "Workload",
    "plan",
    "plan_on",
]


def plan(
    gpus: Sequence[GpuView],
    queue: Iterable[WaitingJob],
    policy: Policy,
    workload: Workload = NO_WORKLOAD,
    *,
    levels: Sequence[str] | None = None,
    advanced: Callable[[], None] | None = None,
    examined_from: int | None = None,
) -> Plan:
    """Place what fits, in order; give a reason for each other job; reclaim and withdraw by the policy.

    ``queue`` holds every pending job that a standing reclaim is for. If one is missing, it is no longer pending, and
    its reclaim is withdrawn. ``levels`` name the entries of the GPUs' paths, widest first; by default the policy's.
    ``advanced`` is called after each job, so that a caller can distinguish a long plan from one that hangs.
    ``examined_from``: the ``examined_until`` of the plan before; None examines all jobs, however long that takes.
    """
    state = FleetState(gpus, policy, levels)
    return plan_on(state, queue, policy, workload, advanced=advanced, examined_from=examined_from)


def plan_on(
    state: FleetState,
    queue: Iterable[WaitingJob],
    policy: Policy,
    workload: Workload = NO_WORKLOAD,
    *,
    advanced: Callable[[], None] | None = None,
    examined_from: int | None = None,
) -> Plan:
    """Return the plan as ``plan`` does, on a prepared state, which afterwards has the placements and holds."""
    ordered = in_order(list(queue), policy, workload.now_ms, len(state.layout.uuids))
    cycle = _Cycle(state, policy, workload, ordered, Examination(state.layout.num_cells, examined_from))
    cycle.run(advanced)
    return cycle.plan()


class _Cycle:
    """One run over the queue."""

    def __init__(
        self,
        state: FleetState,
        policy: Policy,
        workload: Workload,
        ordered: Sequence[WaitingJob],
        examination: Examination,
    ) -> None:
        self.examination = examination
        self.state, self.policy, self.workload, self.ordered = state, policy, workload, ordered
        self.firm = firm_guarantees(state, policy, workload.tenancy, workload.running)
        self.holdings = Holdings(workload.tenancy, self.firm)
        state.close(workload.maintenance_starts)
        state.expect(mix_of(policy.placement.fragmentation, workload.running, ordered))
        self.reclaimer = Reclaimer(state, policy, workload)
        self.backfill = self._rule()
        self._keep_holds()
        self.spares = self._keep_spares()
        if self.firm is not None:
            in_use = ((one.tier, state.layout.gpu_indices(one.gpus)) for one in workload.running)
            self.firm.leave_out(state.is_spare, in_use)
        self._count_gpus()
        self.shares = FairShares(state, policy, workload.running, ordered, self.holdings)
        self.quota = QuotaGate(state, self.holdings, self._is_passed_enough, self.reclaimer, self.backfill)
        self.placing = Placing(state, policy, self.holdings, self.reclaimer, self.backfill)
        reasons = KeptReasons(state, self.reclaimer, examination)
        self.queue_report = QueueReport(self.shares, self._is_passed_enough, reasons, self.backfill)
        self.pending = PendingJobs(
            state, policy, workload, self.holdings, self.placing, self.queue_report, self.reclaimer, self.backfill
        )
        self.growths: list[Growth] = []
        self.firm_starts = FirmStarts(
            state,
            policy,
            self.reclaimer,
            workload,
            self.backfill,
            ordered,
            self._request,
            self.placing.on_capacity_added,
        )

    def run(self, advanced: Callable[[], None] | None) -> None:
        for job, turn in in_turns(self.ordered, self.shares, self.policy, self._is_passed_enough):
            if advanced is not None:
                advanced()
            self.examination.next_job()
            self.firm_starts.hold_before(job, turn)
            self.queue_report.is_on(job, turn)
            with self.spares.open_to(job), self.firm_starts.open_to(job):
                verdict = self._decide(job)
            if verdict is not None:
                self.queue_report.report(job, verdict)
            elif job.firm_start is not None:
                self.queue_report.hold_again()  # the hold that its place was may be another job's now
        # No job gets more than it requests while a pending one could use the GPUs.
        if self.pending.has_hopeful or self.workload.others_wait:
            return
        self.quota.close()
        self.placing.enlarge()
        if self.workload.may_grow:
            self.growths = grow(self.state, self.policy, self.workload, self.holdings)

    def _keep_holds(self) -> None:
        """Keep the holds of standing reclaims, and of jobs that resume or change their size."""
        workload = self.workload
        self.reclaimer.hold_standing({job.job_id for job in self.ordered if job.tier in self.policy.tiers})
        waiting = {job.job_id: job for job in self.ordered} if workload.holds else {}
        running = {attempt.job_id for attempt in workload.running} if workload.holds else set()
        for own in workload.holds:
            self.reclaimer.holds.hold_own(own)
            if own.job_id in waiting:
                comes_to(self.holdings, self.reclaimer, waiting[own.job_id], len(own.gpus))
            elif own.job_id not in running:
                self.holdings.keep(own.tenant_id, own.tier, len(own.gpus))

    def _keep_spares(self) -> Spares:
        """Keep the spares, after all holds: a spare is a whole host that is free or lent, and held for no job."""
        given_back = {name for name, tier in self.policy.tiers.items() if tier.notice_s is not None}
        firm = (job.job_id for job in self.ordered if job.tier not in given_back)
        used = None if self.firm is None else self.firm.use_spares
        return Spares(self.state, self.policy, self.workload, self.reclaimer.holds.holds_of(firm), used)

    def _count_gpus(self) -> None:
        """Count the tenants' GPUs: the ones of running attempts, and the ones that beneficiaries will get."""
        for attempt in self.workload.running:
            self.holdings.add(attempt.tenant_id, attempt.tier, len(attempt.gpus))
        for job in self.ordered:
            if job.job_id in self.reclaimer.holds:
                comes_to(self.holdings, self.reclaimer, job, job.fewest_gpus)

    def _rule(self) -> Holds:
        rule = ConservativeBackfill if self.policy.queue.backfill == CONSERVATIVE else EasyBackfill
        return rule(self.state, self.policy, self.reclaimer, self.workload, self.holdings)

    def _is_passed_enough(self, job: WaitingJob) -> bool:
        return is_passed_enough(job, self.policy, len(self.state.layout.uuids))

    def plan(self) -> Plan:
        holds, places = self.reclaimer.holds, self.backfill.places()
        return Plan(
            placements=tuple(self.placing.placements),
            waiting=tuple([self.firm_starts.with_firm_start(one, places) for one in self.queue_report.waiting]),
            reclaims=tuple(self.reclaimer.reclaims),
            withdrawals=tuple(holds.withdrawals),
            lapses=tuple(holds.lapses),
            growths=tuple(self.growths),
            holds=tuple(self.queue_report.holds),
            examined_until=self.examination.until,
            spares=self.spares.idle,
        )

    def _decide(self, job: WaitingJob) -> Verdict | None:
        """Place the job and return None, or return why it is pending."""
        promises = self.reclaimer.holds
        if job.job_id in promises:
            return self._tried_by_itself(promises, job)
        own = promises.lift_own(job.job_id)
        if own is None:
            return self._tried(job)
        self.placing.on_capacity_added()  # its own hold is free to it now
        comes_to(self.holdings, self.reclaimer, job, -len(own.gpus))
        verdict = self._tried(job, has_own=True)
        if verdict is not None and any(reason.token is WaitReason.REPLACEMENT for reason in verdict.reasons):
            promises.hold_own(own)  # all of it: the commit refuses the whole hold to other jobs
            if not any(reclaim.beneficiary == job.job_id for reclaim in self.reclaimer.reclaims):
                comes_to(self.holdings, self.reclaimer, job, len(own.gpus))
        elif verdict is not None:
            promises.lapses.append(Lapse(job.job_id, "it cannot continue now with the GPUs that were held for it"))
        return verdict

    def _tried_by_itself(self, holds: ReclaimHolds, job: WaitingJob) -> Verdict | None:
        """Try the beneficiary of a reclaim: the quota kept for it is open to it, and does not count against it."""
        self.holdings.keep(job.tenant_id, job.tier, -job.fewest_gpus)
        verdict = self._tried(job)
        if job.job_id in holds:
            self.holdings.keep(job.tenant_id, job.tier, job.fewest_gpus)
        return verdict

    def _tried(self, job: WaitingJob, *, has_own: bool = False) -> Verdict | None:
        """Try the job. ``has_own``: GPUs were held for it until now, which it takes or gives up."""
        if job.tier not in self.policy.tiers:
            return explain.unknown_tier(job.tier)
        limit = self.quota.limit(job)
        within = nodes_of(job, limit)
        over_quota = self.quota.refusal(job, limit)
        if limit is not None and over_quota is not None:
            if job.job_id in self.reclaimer.holds:
                self.pending.withdraw(job, explain.why_withdrawn(limit))
            later = None if limit.is_firm else self.pending.later(job, self._request(job), limit)
            return later or over_quota
        request = self._request(job)
        unforgiving = request.sized(min(job.nodes, within))
        request = self.placing.exempting(unforgiving) if job.avoid_nodes else unforgiving
        if job.job_id in self.reclaimer.holds:
            return self.pending.try_beneficiary(job, request)
        awaited = self.pending.swap_or_wait(job, unforgiving)
        if awaited is not None:
            return awaited
        if not has_own and self.placing.needs_count(request):
            if self.pending.is_put_off(job):
                return self.pending.put_off()
            self.examination.computed()
        if self.placing.start(job, request):
            self.queue_report.move(self.backfill.moved())
            return None
        return self.pending.verdict(job, request)

    def _request(self, job: WaitingJob) -> Request:
        closing_ms = maintenance_start_of(self.state, job, self.policy, self.workload.now_ms)
        is_reclaimable = self.policy.tier(job.tier).notice_s is not None
        request = request_of(job, is_reclaimable=is_reclaimable, maintenance_start_ms=closing_ms)
        return replace(request, may_use_spares=True) if self.spares.may_use(job) else request
