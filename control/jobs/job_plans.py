"""Plans for one job: where it would start, which jobs would be reclaimed, or why it waits and until when.

The planner answers, on the snapshot that its next cycle would have; so a job that is submitted before anything changes
is placed as its plan states. Nothing is written.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import func, select, tuple_

from control.attempts.mapping import job_request
from control.core.unit_of_work import UnitOfWork, declare_action
from control.fleet.package_hosts import package_hosts
from control.jobs import jobs
from control.jobs.read import row_of
from control.jobs.residency import require_residency
from control.ledger.job_costs import PlannedCost, Wanted, planned_cost
from control.placement.pending_jobs import stop_grace_s
from control.placement.preflight import without_preflight
from control.placement.queue_head import InThought
from control.placement.scheduling import question, why_not_planned
from control.placement.shared_what_if import Planned, plan_shared
from control.placement.wait_records import WITHOUT_PREFLIGHT
from control.policy.policies import active_policy
from control.secrets.job_secrets import require_secrets
from muster.db.models import Job, Node
from muster.domain.errors import ConflictError
from muster.domain.ids import GpuUuid, JobId, NodeId, TenantId
from muster.domain.job.plan_texts import Tense, reason_text
from muster.domain.job.request import JobRequest, request_of_spec
from muster.domain.job.spec import JobSpec
from muster.domain.job.wait_reasons import WaitReason
from muster.domain.principals import Permission
from muster.domain.residency import StorePlace
from muster.domain.states import ExpectedFrom, JobState, PlanOutcome
from muster.domain.times import to_time
from muster.identity import new_id
from scheduler.explain.advice import Change
from scheduler.fleet.topology import FleetState
from scheduler.model import GpuView, Parts, Plan, Question, Reason, Reclaim, Verdict, WaitingJob
from scheduler.queue.order import expected_s
from scheduler.solve.alignment import Alignment, alignment_of
from scheduler.solve.recovery import replan
from scheduler.solve.solver import parts_of, place, request_of

PLAN: Final = declare_action("job.plan")
EXPLAIN: Final = declare_action("job.explain")
AHEAD_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class PlannedHost:
    node_id: NodeId
    node_name: str
    gpus: tuple[GpuUuid, ...]


@dataclass(frozen=True, slots=True)
class Victim:
    """A job that would be reclaimed; an elastic one may keep GPUs and continue. Only operators read whose it is."""

    job_id: JobId
    tenant_id: TenantId
    tier: str
    num_gpus: int
    notice_s: float
    cost_gpu_s: float
    num_kept_gpus: int = 0


@dataclass(frozen=True, slots=True)
class Before:
    """A pending job before another. ``num_gpus``: at least. Whose it is only readers with that right see."""

    job_id: JobId
    tenant_id: TenantId
    tier: str
    num_gpus: int


@dataclass(frozen=True, slots=True)
class JobPlan:
    """The plan of one job. ``verdict``, ``earliest_at``, ``latest_at``: of a pending job, None where not known.

    ``starts_at``: when its held or reclaimed GPUs are free. ``firm_start_at``: it starts by then. ``hosts``: in the
    order of ranks; empty for a pending job.
    ``ahead``: the first jobs before it. ``expected_run_s``: the run time that determines its place in the queue, with
    ``expected_from``; None for a job that the cycle does not read. ``alignment``: how the ranks of one that starts at
    once are placed. ``tense``: whether its texts state what is done, or what would be. ``environment``: why no host can
    build its environment. ``cost``: what it would cost; None: not known, or the job is submitted already.
    """

    outcome: PlanOutcome
    verdict: Verdict | None = None
    starts_at: datetime | None = None
    hosts: tuple[PlannedHost, ...] = ()
    victims: tuple[Victim, ...] = ()
    num_ahead: int = 0
    gpus_ahead: int = 0
    ahead: tuple[Before, ...] = ()
    earliest_at: datetime | None = None
    latest_at: datetime | None = None
    firm_start_at: datetime | None = None
    changes: tuple[Change, ...] = ()
    expected_run_s: float | None = None
    expected_from: ExpectedFrom | None = None
    alignment: Alignment | None = None
    tense: Tense = Tense.CONDITIONAL
    environment: str | None = None
    cost: PlannedCost | None = None


def plan_job(
    unit: UnitOfWork, spec: JobSpec, *, tenant_id: TenantId | None = None, store: StorePlace | None = None
) -> JobPlan:
    """Return what would become of the job if it were submitted now. ``store``: the content store, if there is one.

    Raises:
        ValidationFailedError: as ``jobs.submit`` does.
    """
    unit.principal.require(Permission.JOB_SUBMIT)
    found = _planned(unit, spec, tenant_id, store)
    return replace(found, environment=_environment_fault(unit, spec), cost=_cost(unit, spec, found))


def _cost(unit: UnitOfWork, spec: JobSpec, found: JobPlan) -> PlannedCost | None:
    uuids = [uuid for host in found.hosts for uuid in host.gpus]
    num_gpus = jobs.settled(unit, spec).shape.num_gpus
    return planned_cost(unit, Wanted(spec.tier, num_gpus, uuids, spec.wall_time_s, found.expected_run_s))


def _environment_fault(unit: UnitOfWork, spec: JobSpec) -> str | None:
    environment = spec.program.environment
    if environment is None:
        return None
    return package_hosts(unit.session).fault(allows_source=environment.allows_source)


def _planned(unit: UnitOfWork, spec: JobSpec, tenant_id: TenantId | None, store: StorePlace | None) -> JobPlan:
    owner = jobs.owner_of(unit, tenant_id)
    is_sum, spec = spec.shape.gpus is not None, jobs.settled(unit, spec)
    jobs.require_possible(unit, spec)
    require_residency(unit.session, spec, owner, store)
    require_secrets(unit.session, spec, owner)
    jobs.require_repository(unit, spec, owner, store)
    policy, request = active_policy(unit.session), request_of_spec(spec)
    thought = InThought(JobId(new_id("job")), owner, request, unit.now)
    asked = _question(unit, alongside=thought)
    found = None if asked is None else next((one for one in asked.queue if one.job_id == thought.job_id), None)
    if asked is None or found is None:
        far = WaitReason.FAR_BEHIND
        unseen = JobPlan(PlanOutcome.WAITS, Verdict(reason_text(far, Tense.CONDITIONAL), far, (Reason(far),)))
        return _with_all_before(unit, unseen, thought.at, thought.job_id)
    told = _answered(unit, Planned(asked), found, request, stop_grace_s(request, policy))
    if is_sum:  # it has no number of hosts that it could be advised to change
        told = replace(told, changes=tuple(one for one in told.changes if one.field != "shape.nodes"))
    return told


def explain_job(unit: UnitOfWork, job_id: JobId) -> JobPlan:
    """Return what the next cycle would do with a pending job, and why it would wait.

    Raises:
        ConflictError: it does not wait.
    """
    unit.principal.require(Permission.JOB_READ)
    job = row_of(unit, job_id)
    _require_waiting(job)
    if job.state in WITHOUT_PREFLIGHT:
        return _not_planned(job, WITHOUT_PREFLIGHT[job.state])
    planned = plan_shared(unit.session, lambda: _question(unit))
    found = None if planned is None else next((one for one in planned.question.queue if one.job_id == job.id), None)
    if planned is None or found is None:
        unit.session.refresh(job)  # it may have been placed since
        _require_waiting(job)
        reason = WITHOUT_PREFLIGHT.get(job.state) or why_not_planned(unit.session, unit.now, job.id)
        unseen = _not_planned(job, reason)
        return _with_all_before(unit, unseen, job.created_at, job.id) if reason is WaitReason.FAR_BEHIND else unseen
    request = job_request(job)
    told = _answered(unit, planned, found, request, stop_grace_s(request, planned.question.policy))
    return told if told.victims else replace(told, tense=Tense.DONE)  # a victim of this plan has had no notice yet


def _question(unit: UnitOfWork, *, alongside: InThought | None = None) -> Question | None:
    """Return the planner's input as of a cycle."""
    return question(unit.session, unit.now, without_preflight(unit.session, unit.now), alongside=alongside)


def _require_waiting(job: Job) -> None:
    if job.state is not JobState.QUEUED and job.state not in WITHOUT_PREFLIGHT:
        message = f"{job.id} is {job.state}: only a job that is QUEUED, HELD or RECOVERING is explained"
        raise ConflictError(message)


def _not_planned(job: Job, reason: WaitReason) -> JobPlan:
    return JobPlan(PlanOutcome.WAITS, Verdict(job.state_reason, reason, (Reason(reason),)), tense=Tense.DONE)


def _with_all_before(unit: UnitOfWork, found: JobPlan, since: datetime, job_id: JobId) -> JobPlan:
    """Return the plan with all jobs before it counted.

    The scheduler reads the oldest of each kind: among all jobs that wait longer, the order is not known.
    """
    shape = Job.request["shape"]
    nodes = func.coalesce(shape["min_nodes"].as_integer(), shape["nodes"].as_integer())
    is_before = tuple_(Job.created_at, Job.id) < tuple_(since, job_id)
    query = select(func.count(), func.coalesce(func.sum(nodes * shape["gpus_per_node"].as_integer()), 0))
    count, num_gpus = unit.session.execute(query.where(Job.state == JobState.QUEUED, is_before)).one()
    return replace(found, num_ahead=count, gpus_ahead=num_gpus)


def _answered(unit: UnitOfWork, planned: Planned, job: WaitingJob, request: JobRequest, grace_s: float) -> JobPlan:
    asked, decided = planned.question, planned.decided
    placed = next((item for item in decided.placements if item.job_id == job.job_id), None)
    if placed is not None:
        hosts = _hosts(unit, placed.parts)
        alignment = alignment_of(planned.state, job.tier, request, asked.policy.placement, placed.parts)
        return JobPlan(PlanOutcome.STARTS, starts_at=unit.now, hosts=hosts, alignment=alignment)
    found = planned.answer(job, grace_s)

    def moment(at_ms: int | None) -> datetime | None:
        # The times count from the plan's own time: it may have been made for an earlier request.
        return None if at_ms is None else to_time(at_ms)

    return replace(
        _outcome(unit, job, asked, decided),
        verdict=found.verdict,
        num_ahead=len(found.ahead),
        gpus_ahead=found.gpus_ahead,
        ahead=tuple(Before(one.job_id, one.tenant_id, one.tier, one.fewest_gpus) for one in found.ahead[:AHEAD_SHOWN]),
        earliest_at=None if found.starts is None else moment(found.starts.earliest_ms),
        latest_at=None if found.starts is None else moment(found.starts.latest_ms),
        firm_start_at=None if found.firm_start is None else moment(found.firm_start.latest_ms),
        changes=found.changes,
        expected_run_s=expected_s(job, asked.policy),
        expected_from=_expected_from(job),
    )


def _expected_from(job: WaitingJob) -> ExpectedFrom:
    if job.expected_s is not None:
        return ExpectedFrom.WALL_TIME
    return ExpectedFrom.POLICY if job.predicted_s is None else ExpectedFrom.HISTORY


def _outcome(unit: UnitOfWork, job: WaitingJob, question: Question, decided: Plan) -> JobPlan:
    """Return the plan for a pending job: GPUs reclaimed, now or before, a hold, or nothing."""
    standing = [item for item in question.workload.reclaims if item.beneficiary == job.job_id]
    if standing:
        due_ms = max(item.deadline_ms for item in standing)
        starts_at = unit.now + timedelta(milliseconds=max(due_ms - question.workload.now_ms, 0))
        hosts = _hosts(unit, _parts_on(standing[0].hold, job, question))
        return JobPlan(PlanOutcome.RECLAIMS, starts_at=starts_at, hosts=hosts)
    reclaims = [item for item in decided.reclaims if item.beneficiary == job.job_id]
    if reclaims:
        starts_at = unit.now + timedelta(seconds=max(item.notice_s for item in reclaims))
        hosts = _hosts(unit, _parts(reclaims[0].hold, question.gpus))
        return JobPlan(PlanOutcome.RECLAIMS, starts_at=starts_at, hosts=hosts, victims=_victims(reclaims, question))
    held = next((item for item in decided.holds if item.job_id == job.job_id), None)
    if held is None:
        return JobPlan(PlanOutcome.WAITS)
    starts_at = unit.now + timedelta(milliseconds=held.until_ms - question.workload.now_ms)
    return JobPlan(PlanOutcome.HOLD, starts_at=starts_at, hosts=_hosts(unit, _parts(held.gpus, question.gpus)))


def _parts_on(uuids: Collection[GpuUuid], job: WaitingJob, question: Question) -> Parts:
    """Return the parts by rank, as the job will start on these GPUs once they are free: a hold has no order."""
    own = set(uuids)
    views = [replace(gpu, facts=replace(gpu.facts, is_assigned=False)) for gpu in question.gpus if gpu.uuid in own]
    state, request = FleetState(views, question.policy), request_of(job).at_least()
    chosen = (replan(state, request, job.keep) if job.keep else None) or place(state, request)
    return _parts(uuids, question.gpus) if chosen is None else parts_of(state, job.tier, chosen)


def _parts(uuids: Iterable[GpuUuid], gpus: Sequence[GpuView]) -> Parts:
    """Return ``uuids`` by node, in their order."""
    node_of = {gpu.uuid: gpu.node_id for gpu in gpus}
    parts: dict[NodeId, list[GpuUuid]] = {}
    for uuid in uuids:
        parts.setdefault(node_of[uuid], []).append(uuid)
    return tuple((node_id, tuple(own)) for node_id, own in parts.items())


def _hosts(unit: UnitOfWork, parts: Parts) -> tuple[PlannedHost, ...]:
    rows = unit.session.execute(select(Node.id, Node.name).where(Node.id.in_([node_id for node_id, _ in parts])))
    names = {node_id: name for node_id, name in rows}  # noqa: C416  # rows are no pairs to the type checker
    return tuple(PlannedHost(node_id, names[node_id], uuids) for node_id, uuids in parts)


def _victims(reclaims: Sequence[Reclaim], question: Question) -> tuple[Victim, ...]:
    running = {attempt.attempt_id: attempt for attempt in question.workload.running}

    def victim(item: Reclaim) -> Victim:
        attempt = running[item.victim]
        cost_gpu_s = round(item.cost_gpu_s, 1)
        of_job = (attempt.job_id, attempt.tenant_id, attempt.tier)
        return Victim(*of_job, len(item.gpus), item.notice_s, cost_gpu_s, len(item.keeps))

    return tuple(victim(item) for item in sorted(reclaims, key=lambda item: item.victim))
