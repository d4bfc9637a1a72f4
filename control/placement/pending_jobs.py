"""Pending jobs as the planner needs them: request, last allocation, and hosts that were at fault."""

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from sqlalchemy import Select, and_, case, exists, func, or_, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session, aliased

from control.attempts.mapping import job_request
from control.placement.queue_head import InThought, queue_head
from control.placement.wait_records import firm_start_of, postponed_of
from control.policy.policies import active_policy
from muster.db.models import Allocation, AllocationGpu, Attempt, AttemptHost, Job, Node, NodeBundle
from muster.db.pipeline.packed_arrays import within, within_parameter
from muster.db.queries.residency import residencies, residency_of_tenant
from muster.domain.exit.causes import CAUSE_RULES, INTERRUPTIONS, Avoidance
from muster.domain.ids import AttemptId, GpuUuid, JobId, NodeId, TenantId
from muster.domain.job.elastic import sizes_of
from muster.domain.job.request import ENVIRONMENT, JobRequest
from muster.domain.policy.document import Policy
from muster.domain.residency import ANY
from muster.domain.states import Cause, JobState
from muster.domain.times import to_ms
from scheduler.model import Parts, ResumeHold
from scheduler.planner import WaitingJob
from scheduler.solve.job_rules import rule_of

AVOID_LAST_ATTEMPTS: Final = 3


def waiting_jobs(
    session: Session,
    hold_of: Sequence[JobId] = (),
    own_holds: Sequence[ResumeHold] = (),
    *,
    alongside: InThought | None = None,
) -> list[WaitingJob]:
    """Return the queue's head, and each QUEUED job with a hold, however far behind it is."""
    policy = active_policy(session)
    head = queue_head(session, policy, alongside)
    rows = head.jobs
    queued = select(Job).where(Job.state == JobState.QUEUED)
    missing = {*hold_of, *(own.job_id for own in own_holds)}.difference(job.id for job in rows)
    if missing:
        rows += session.scalars(queued.where(within(Job.id, sorted(missing))).order_by(Job.created_at, Job.id))
    num_hold_gpus = {own.job_id: len(own.gpus) for own in own_holds}
    wished = _as_waiting(session, rows, policy, num_hold_gpus)
    if alongside is not None and head.sees_thought:
        of_job = alongside.request, alongside.job_id, alongside.tenant_id, to_ms(alongside.at)
        wished.append(waiting_job(*of_job, policy, sites=residency_of_tenant(session, alongside.tenant_id).sites))
    return wished


def waiting_after(
    session: Session, jobs: Sequence[Job], interrupted: Collection[JobId], now_ms: int, own_holds: Sequence[ResumeHold]
) -> list[WaitingJob]:
    """Return jobs that run now as they wait once their live attempts have left.

    ``interrupted``: the jobs that a fault or maintenance makes leave: they continue on their good GPUs, and the GPUs
    held for them do not determine their size.
    """
    num_hold_gpus = {own.job_id: len(own.gpus) for own in own_holds if own.job_id not in interrupted}
    waiting = _as_waiting(session, jobs, active_policy(session), num_hold_gpus)
    return [replace(one, interrupted_ms=now_ms) if one.job_id in interrupted else one for one in waiting]


def _as_waiting(
    session: Session, rows: Sequence[Job], policy: Policy, num_hold_gpus: Mapping[JobId, int]
) -> list[WaitingJob]:
    """Return the jobs of these rows. ``num_hold_gpus``: GPUs held for each job's next size."""
    avoided = nodes_at_fault(session, [job.id for job in rows])
    last_parts = _last_parts(session, [job.id for job in rows])
    num_nodes = session.scalar(select(func.count()).select_from(Node)) or 0
    holders = _bundle_holders(session, rows)
    unable = _without_environments(session, rows)
    rules = residencies(session)
    wished = []
    for job in rows:
        one = waiting_job(
            job_request(job),
            job.id,
            job.tenant_id,
            to_ms(job.created_at),
            policy,
            sites=rules.get(job.tenant_id, ANY).sites,
            wanted_nodes=job.wanted_nodes,
        )
        last = last_parts.get(job.id, _NO_LAST)
        firm_start, postponed = firm_start_of(job.wait_verdict), postponed_of(job.wait_verdict)
        one = replace(
            one,
            version=job.version,
            keep=last.parts,
            interrupted_ms=last.interrupted_ms,
            firm_start=firm_start,
            postponed=postponed,
            bundle_holders=holders.get((job.tenant_id, job_request(job).bundle), frozenset()),
        )
        # GPUs held since an interruption are kept by the job, and do not determine its size.
        next_size = 0 if last.interrupted_ms is not None else num_hold_gpus.get(job.id, 0)
        one = _fitted(one, avoided.get(job.id, frozenset()), num_nodes, next_size)
        if ENVIRONMENT in job_request(job).capabilities:
            one = replace(one, avoid_nodes=one.avoid_nodes | unable)
        wished.append(one)
    return wished


def _without_environments(session: Session, rows: Sequence[Job]) -> frozenset[NodeId]:
    """Return the nodes that build no environments, if one of the jobs needs one: they would only refuse it."""
    if not any(ENVIRONMENT in job_request(job).capabilities for job in rows):
        return frozenset()
    return frozenset(session.scalars(select(Node.id).where(~Node.capabilities.contains([ENVIRONMENT]))))


def _bundle_holders(session: Session, rows: Sequence[Job]) -> dict[tuple[TenantId, str | None], frozenset[NodeId]]:
    """Return the nodes that hold each bundle of these jobs, by tenant and digest."""
    digests = {bytes.fromhex(bundle) for job in rows if (bundle := job_request(job).bundle) is not None}
    if not digests:
        return {}
    found: dict[tuple[TenantId, str | None], set[NodeId]] = {}
    held = select(NodeBundle.tenant_id, NodeBundle.digest, NodeBundle.node_id).where(NodeBundle.digest.in_(digests))
    for tenant_id, digest, node_id in session.execute(held):
        found.setdefault((tenant_id, digest.hex()), set()).add(node_id)
    return {key: frozenset(nodes) for key, nodes in found.items()}


def longest_run_s(request: JobRequest, policy: Policy) -> float | None:
    """Return the longest run of an attempt: its wall time and the grace after it. None where it states no wall time."""
    if request.wall_time_s is None:
        return None
    return request.wall_time_s + stop_grace_s(request, policy)


def stop_grace_s(request: JobRequest, policy: Policy) -> float:
    return policy.dispatch.stop_grace_s if request.stop_grace_s is None else request.stop_grace_s


def waiting_job(
    request: JobRequest,
    job_id: JobId,
    tenant_id: TenantId,
    queued_ms: int,
    policy: Policy,
    *,
    sites: frozenset[str] | None,
    wanted_nodes: int | None = None,
) -> WaitingJob:
    """Return a job as the planner sees it just after submission.

    ``sites``: of its tenant's residency rule; None: any. ``wanted_nodes``: the size requested since then.
    """
    sizes = sizes_of(request.shape, wanted_nodes)
    return WaitingJob(
        job_id=job_id,
        version=0,
        tier=request.tier,
        queued_ms=queued_ms,
        nodes=sizes.preferred,
        gpus_per_node=request.shape.gpus_per_node,
        tenant_id=tenant_id,
        required_level=request.topology.required,
        preferred_level=request.topology.preferred,
        min_nodes=sizes.fewest if request.shape.is_elastic else None,
        max_nodes=sizes.most if request.shape.is_elastic else None,
        expected_s=longest_run_s(request, policy),
        rule=rule_of(request, policy.placement, sites),
        name=request.name,
    )


def _fitted(job: WaitingJob, avoided: frozenset[NodeId], num_nodes: int, num_assigned: int) -> WaitingJob:
    """Return the job fitted to the fleet. ``num_assigned``: GPUs held for its next size, which it then requests."""
    held_nodes = num_assigned // job.gpus_per_node
    return replace(
        job,
        nodes=held_nodes if job.fewest_nodes <= held_nodes <= job.most_nodes else job.nodes,
        # A job that avoided every host would wait without end: then the faults are disregarded.
        avoid_nodes=avoided if num_nodes - len(avoided) >= job.fewest_nodes else frozenset(),
    )


@dataclass(frozen=True, slots=True)
class _Last:
    """GPUs of a job's last attempt in rank order, and when a fault or maintenance ended it, if either did."""

    parts: Parts = ()
    interrupted_ms: int | None = None


_NO_LAST: Final = _Last()


def _last_parts(session: Session, job_ids: Sequence[JobId]) -> dict[JobId, _Last]:
    """Return each job's last attempt, if it had one: the next attempt takes its good GPUs again."""
    if not job_ids:
        return {}
    parts: dict[JobId, dict[NodeId, list[GpuUuid]]] = {}
    moments: dict[JobId, int | None] = {}
    for job_id, node_id, uuid, at in session.execute(_gpus_of_last_attempts(), {"job_ids": list(job_ids)}):
        parts.setdefault(job_id, {}).setdefault(node_id, []).append(uuid)
        moments[job_id] = None if at is None else to_ms(at)
    return {
        job_id: _Last(tuple((node_id, tuple(uuids)) for node_id, uuids in nodes.items()), moments[job_id])
        for job_id, nodes in parts.items()
    }


@functools.cache
def _gpus_of_last_attempts() -> Select[JobId, NodeId, GpuUuid, datetime | None]:
    """Return the query, built once: each planning of the queue asks it."""
    last = (
        select(Attempt.id, Attempt.cause, Attempt.ended_at)
        .where(within_parameter(Attempt.job_id, "job_ids"))
        .ext(distinct_on(Attempt.job_id))
        .order_by(Attempt.job_id, Attempt.number.desc())
        .subquery()
    )
    interrupted_at = case((last.c.cause.in_(INTERRUPTIONS), last.c.ended_at))
    return (
        select(Allocation.job_id, AllocationGpu.node_id, AllocationGpu.gpu_uuid, interrupted_at)
        .join(AllocationGpu, AllocationGpu.allocation_id == Allocation.id)
        .join(last, last.c.id == Allocation.attempt_id)
        .order_by(Allocation.job_id, AllocationGpu.node_rank, AllocationGpu.local_index)
    )


def nodes_at_fault(session: Session, job_ids: Sequence[JobId]) -> dict[JobId, frozenset[NodeId]]:
    """Return hosts where a recent attempt of a job ended by the host's fault; of a gang the faulty ones, where known.

    In a gang that lost a host, the hosts that could still report how their part ended are not at fault.
    """
    if not job_ids:
        return {}
    parts: dict[tuple[JobId, AttemptId], list[tuple[NodeId, bool]]] = {}
    for job_id, attempt_id, node_id, is_innocent in session.execute(_hosts_at_fault(), {"job_ids": list(job_ids)}):
        parts.setdefault((job_id, attempt_id), []).append((node_id, is_innocent))
    nodes: dict[JobId, set[NodeId]] = {}
    for (job_id, _), hosts in parts.items():
        guilty = {node_id for node_id, is_innocent in hosts if not is_innocent}
        nodes.setdefault(job_id, set()).update(guilty or {node_id for node_id, _ in hosts})
    return {job_id: frozenset(found) for job_id, found in nodes.items()}


@functools.cache
def _hosts_at_fault() -> Select[JobId, AttemptId, NodeId, bool]:
    """Return the query of job, attempt, host and innocence. Built once: each planning of the queue asks it twice."""
    faults = [cause for cause in Cause if CAUSE_RULES[cause].avoid is not Avoidance.NOTHING]
    of_hosts = [cause for cause in faults if CAUSE_RULES[cause].avoid is Avoidance.NODE]
    last_number = func.max(Attempt.number).over(partition_by=Attempt.job_id).label("last_number")
    ended = (
        select(Attempt.id, Attempt.job_id, Attempt.cause, Attempt.number, last_number)
        .where(within_parameter(Attempt.job_id, "job_ids"))
        .subquery()
    )
    blamed = aliased(AttemptHost)
    is_known = exists().where(blamed.attempt_id == ended.c.id, blamed.is_at_fault)
    record = AttemptHost.exit_record
    has_spoken = and_(
        func.coalesce(func.jsonb_typeof(record), "null") == "object",
        func.coalesce(record["supervisor_vanished"].astext, "false") == "false",
        func.coalesce(record["self_fenced"].astext, "false") == "false",
    )
    return (
        select(ended.c.job_id, ended.c.id, AttemptHost.node_id, and_(ended.c.cause == Cause.NODE_LOST, has_spoken))
        .join(AttemptHost, AttemptHost.attempt_id == ended.c.id)
        .where(
            ended.c.cause.in_([*faults, Cause.HANG, Cause.HOT_SWAP]),
            ended.c.number > ended.c.last_number - AVOID_LAST_ATTEMPTS,
            or_(AttemptHost.is_at_fault, and_(~is_known, ended.c.cause.in_(of_hosts))),
        )
    )
