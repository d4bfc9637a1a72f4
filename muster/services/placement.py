"""Placement: the queue and fleet that the planner reads, and the one transaction that makes a plan true.

The commit locks the job and the GPUs in id order and asks admission *again* (I3); what the snapshot said no longer
counts. The partial unique indexes make a double holding impossible in any case (I1, I2).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import and_, case, exists, func, or_, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session, aliased

from health.admission import refusal_of
from health.cohorts import may_be_mixed
from muster.db.models import Allocation, AllocationGpu, Attempt, AttemptHost, Job, Node
from muster.db.repositories import gang_rows, gangs
from muster.db.repositories.holdings import HELD_ONCE
from muster.domain.causes import CAUSE_RULES, Avoid
from muster.domain.elastic import sizes_of
from muster.domain.errors import ConflictError, NotFoundError
from muster.domain.ids import AllocationId, AttemptId, GpuUuid, JobId, NodeId, TenantId
from muster.domain.job_spec import JobSpec, NodeLossRule
from muster.domain.lifecycle import job as jobs
from muster.domain.policy import Policy
from muster.domain.principals import Permission
from muster.domain.states import Cause, JobState
from muster.identity import new_id
from muster.services.attempts import ring, step_job
from muster.services.fleet import facts_of
from muster.services.lives import spec_of, to_ms
from muster.services.policies import active_policy
from muster.services.quotas import quota_refusal
from muster.services.reclaims import holds
from muster.services.unit_of_work import UnitOfWork, declare_action
from scheduler.job_rules import rule_of
from scheduler.model import OwnHold, Parts, Swap
from scheduler.planner import Placement, WaitingJob

PLACE: Final = declare_action("placement.place")
NOTE_WAITING: Final = declare_action("placement.note_waiting")
RENDEZVOUS_PORTS: Final = range(20_000, 30_000)
AVOID_LAST_ATTEMPTS: Final = 3
MAX_QUEUE: Final = 10_000
INTERRUPTIONS: Final = (
    *(cause for cause, rule in CAUSE_RULES.items() if rule.avoid is not Avoid.NOTHING),
    Cause.EVACUATED,
    Cause.MAINTENANCE,
)
"""How an attempt ends that did not have to but for what it ran on."""


class PlacementLostError(ConflictError):
    """The snapshot no longer holds: another commit was first. The next cycle plans anew."""

    code, status, title = "placement_lost", 409, "The fleet has changed since the plan was made"


def waiting_jobs(
    session: Session, promised: Sequence[JobId] = (), own_holds: Sequence[OwnHold] = ()
) -> list[WaitingJob]:
    """The queue's head, and each that still waits of those that something is held for, however far behind."""
    queued = select(Job).where(Job.state == JobState.QUEUED)
    rows = list(session.scalars(queued.order_by(Job.created_at, Job.id).limit(MAX_QUEUE)))
    missing = {*promised, *(own.job_id for own in own_holds)}.difference(job.id for job in rows)
    if missing:
        rows += session.scalars(queued.where(Job.id.in_(missing)).order_by(Job.created_at, Job.id))
    avoided = nodes_at_fault(session, [job.id for job in rows])
    held = _last_parts(session, [job.id for job in rows])
    num_nodes = session.scalar(select(func.count()).select_from(Node)) or 0
    num_held = {own.job_id: len(own.gpus) for own in own_holds}
    policy = active_policy(session)
    wished = []
    for job in rows:
        one = waiting_job(
            spec_of(job), job.id, job.tenant_id, to_ms(job.created_at), policy, wanted_nodes=job.wanted_nodes
        )
        last = held.get(job.id, _NO_LAST)
        one = replace(one, version=job.version, keep=last.parts, interrupted_ms=last.interrupted_ms)
        wished.append(_fitted(one, avoided.get(job.id, frozenset()), num_nodes, num_held.get(job.id, 0)))
    return wished


def longest_run_s(spec: JobSpec, policy: Policy) -> float | None:
    """An attempt of it runs no longer: its wall time, and the grace after it. None where it says no wall time."""
    if spec.wall_time_s is None:
        return None
    return spec.wall_time_s + stop_grace_s(spec, policy)


def stop_grace_s(spec: JobSpec, policy: Policy) -> float:
    return policy.dispatch.stop_grace_s if spec.stop_grace_s is None else spec.stop_grace_s


def waiting_job(
    spec: JobSpec,
    job_id: JobId,
    tenant_id: TenantId,
    queued_ms: int,
    policy: Policy,
    *,
    wanted_nodes: int | None = None,
) -> WaitingJob:
    """As the planner has a job that was just submitted. ``wanted_nodes``: what was asked for since."""
    sizes = sizes_of(spec.shape, wanted_nodes)
    return WaitingJob(
        job_id=job_id,
        version=0,
        tier=spec.tier,
        queued_ms=queued_ms,
        nodes=sizes.wished,
        gpus_per_node=spec.shape.gpus_per_node,
        tenant_id=tenant_id,
        required_level=spec.topology.required,
        preferred_level=spec.topology.preferred,
        min_nodes=sizes.fewest if spec.shape.is_elastic else None,
        max_nodes=sizes.most if spec.shape.is_elastic else None,
        expected_s=longest_run_s(spec, policy),
        rule=rule_of(spec, policy.placement),
        name=spec.name,
    )


def _fitted(job: WaitingJob, avoided: frozenset[NodeId], num_nodes: int, num_held: int) -> WaitingJob:
    """``num_held``: GPUs that are held for its next size, which it then wishes for."""
    held_nodes = num_held // job.gpus_per_node
    return replace(
        job,
        nodes=held_nodes if job.fewest_nodes <= held_nodes <= job.most_nodes else job.nodes,
        # To avoid every host would leave the job waiting for ever: then the fault is forgiven.
        avoid_nodes=avoided if num_nodes - len(avoided) >= job.fewest_nodes else frozenset(),
    )


@dataclass(frozen=True, slots=True)
class _Last:
    """What a job's last attempt held, in rank order, and when a fault or maintenance ended it, if either did."""

    parts: Parts = ()
    interrupted_ms: int | None = None


_NO_LAST: Final = _Last()


def _last_parts(session: Session, job_ids: Sequence[JobId]) -> dict[JobId, _Last]:
    """Of each job that had one: the next attempt takes the good GPUs of it again."""
    last = (
        select(Attempt.id, Attempt.cause, Attempt.ended_at)
        .where(Attempt.job_id.in_(job_ids))
        .ext(distinct_on(Attempt.job_id))
        .order_by(Attempt.job_id, Attempt.number.desc())
        .subquery()
    )
    interrupted_at = case((last.c.cause.in_(INTERRUPTIONS), last.c.ended_at))
    query = (
        select(Allocation.job_id, AllocationGpu.node_id, AllocationGpu.gpu_uuid, interrupted_at)
        .join(AllocationGpu, AllocationGpu.allocation_id == Allocation.id)
        .join(last, last.c.id == Allocation.attempt_id)
        .order_by(Allocation.job_id, AllocationGpu.node_rank, AllocationGpu.local_index)
    )
    parts: dict[JobId, dict[NodeId, list[GpuUuid]]] = {}
    moments: dict[JobId, int | None] = {}
    for job_id, node_id, uuid, at in session.execute(query):
        parts.setdefault(job_id, {}).setdefault(node_id, []).append(uuid)
        moments[job_id] = None if at is None else to_ms(at)
    return {
        job_id: _Last(tuple((node_id, tuple(uuids)) for node_id, uuids in nodes.items()), moments[job_id])
        for job_id, nodes in parts.items()
    }


def nodes_at_fault(session: Session, job_ids: Sequence[JobId]) -> dict[JobId, frozenset[NodeId]]:
    """Hosts where one of a job's last attempts ended by the host's fault: of a gang's those at fault, where known.

    Of a gang that lost a host, those that could still say how their part ended are not at fault.
    """
    faults = [cause for cause in Cause if CAUSE_RULES[cause].avoid is not Avoid.NOTHING]
    of_hosts = [cause for cause in faults if CAUSE_RULES[cause].avoid is Avoid.NODE]
    last_number = func.max(Attempt.number).over(partition_by=Attempt.job_id).label("last_number")
    ended = (
        select(Attempt.id, Attempt.job_id, Attempt.cause, Attempt.number, last_number)
        .where(Attempt.job_id.in_(job_ids))
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
    query = (
        select(ended.c.job_id, ended.c.id, AttemptHost.node_id, and_(ended.c.cause == Cause.NODE_LOST, has_spoken))
        .join(AttemptHost, AttemptHost.attempt_id == ended.c.id)
        .where(
            ended.c.cause.in_(faults),
            ended.c.number > ended.c.last_number - AVOID_LAST_ATTEMPTS,
            or_(AttemptHost.is_at_fault, and_(~is_known, ended.c.cause.in_(of_hosts))),
        )
    )
    parts: dict[tuple[JobId, AttemptId], list[tuple[NodeId, bool]]] = {}
    for job_id, attempt_id, node_id, is_innocent in session.execute(query):
        parts.setdefault((job_id, attempt_id), []).append((node_id, is_innocent))
    nodes: dict[JobId, set[NodeId]] = {}
    for (job_id, _), hosts in parts.items():
        guilty = {node_id for node_id, is_innocent in hosts if not is_innocent}
        nodes.setdefault(job_id, set()).update(guilty or {node_id for node_id, _ in hosts})
    return {job_id: frozenset(found) for job_id, found in nodes.items()}


def place(unit: UnitOfWork, placement: Placement, policy: Policy) -> AttemptId:
    """Commit one gang whole (I5): attempt with its fence, hosts, allocation, rings.

    Raises:
        NotFoundError: there is no such job.
        PlacementLostError: the job or a GPU is no longer as the plan saw it; that a GPU of a large gang is held, as the
            unit ends.
    """
    unit.principal.require(Permission.SYSTEM_RUN)
    locked = gangs.lock(unit.session, placement.job_id, placement.parts, unit.now)
    job, kinds = locked.job, locked.kinds
    if job is None:
        raise NotFoundError
    if job.state is not JobState.QUEUED or job.version != placement.version:
        message = f"{job.id} is {job.state} now"
        raise PlacementLostError(message)
    num_gpus = sum(len(part) for _, part in placement.parts)
    _require_there(num_gpus, kinds, policy.homogeneity(job.tier))
    _require_size(job, placement)
    _require_admitted(unit, job, kinds, policy)
    if locked.of_job.has_ceiling:
        _require_quota(unit, job, num_gpus)
    if locked.of_job.has_holds:
        holds.let_go(unit, job, holds.PLACED)
    step_job(unit, job, jobs.Placed(), policy)
    gang = _gang(job, placement, locked)
    lost = PlacementLostError("one of the GPUs is no longer admitted: held")
    unit.write_last(gang_rows.written(job, gang, unit.now), refusals={HELD_ONCE: lost})
    _tell(unit, job, gang, placement.swap)
    return gang.attempt_id


def _require_there(num_gpus: int, kinds: Sequence[gangs.Kind], homogeneity: Collection[str] | None) -> None:
    """Each GPU on its node, and all of one cohort in what the job's tier asks for (I4)."""
    is_there = sum(kind.num_gpus for kind in kinds) == num_gpus
    if not is_there or not may_be_mixed((kind.cohort_key for kind in kinds), homogeneity):
        message = "the GPUs are no longer where they were, or no longer one cohort"
        raise PlacementLostError(message)


def _require_size(job: Job, placement: Placement) -> None:
    """A number of hosts that the job takes (I5)."""
    if len(placement.parts) not in spec_of(job).shape.sizes:
        message = f"{len(placement.parts)} hosts are no size of {job.id}"
        raise PlacementLostError(message)


def _require_admitted(unit: UnitOfWork, job: Job, kinds: Sequence[gangs.Kind], policy: Policy) -> None:
    """I3 and I4 at the moment of commit, under locks."""
    tier, now_ms = policy.tier(job.tier), to_ms(unit.now)
    for kind in kinds:
        refusal = refusal_of(facts_of(kind, now_ms, policy.health), tier)
        if refusal is not None:
            message = f"{kind.uuid} is no longer admitted: {refusal}"
            raise PlacementLostError(message)
    if promised := [kind.uuid for kind in kinds if kind.is_promised]:
        message = f"{min(promised)} is held for another job"
        raise PlacementLostError(message)


def _require_quota(unit: UnitOfWork, job: Job, num_gpus: int) -> None:
    """I6 at the moment of commit."""
    refusal = quota_refusal(unit, job.tenant_id, job.tier, num_gpus)
    if refusal is not None:
        raise PlacementLostError(refusal)


def _gang(job: Job, placement: Placement, locked: gangs.Locked) -> gang_rows.Gang:
    return gang_rows.Gang(
        attempt_id=AttemptId(new_id("attempt")),
        allocation_id=AllocationId(new_id("allocation")),
        number=(locked.of_job.last_number or 0) + 1,
        fence=locked.fence,
        on_node_loss=spec_of(job).on_node_loss or NodeLossRule.WAIT,
        address=locked.of_job.address,
        # A gang on one host meets on a port that the host itself finds free.
        ports=range(1) if len(placement.parts) == 1 else RENDEZVOUS_PORTS,
        parts=placement.parts,
    )


def _tell(unit: UnitOfWork, job: Job, gang: gang_rows.Gang, swap: Swap | None) -> None:
    recovery = {} if swap is None else {"recovery": _recovery(job, swap)}
    unit.emit(
        "attempt.placed",
        "attempt",
        gang.attempt_id,
        tenant_id=job.tenant_id,
        payload={
            "job_id": job.id,
            "number": gang.number,
            "fence": gang.fence,
            "nodes": {node_id: list(part) for node_id, part in gang.parts},
            **recovery,
        },
    )
    for node_id, _ in gang.parts:
        ring(unit, node_id, gang.attempt_id)


def _recovery(job: Job, swap: Swap) -> dict[str, Any]:
    """How it goes on after a fault or maintenance: with the hosts that were good, or as a whole elsewhere."""
    level = spec_of(job).topology.required
    if swap.kept_nodes:
        words = f"{swap.kept_nodes} hosts keep their ranks, {len(swap.replaced)} were replaced"
    elif level is None:
        words = "no host could be kept: the whole gang is placed anew"
    else:
        words = f"its {level} had no replacement in time: the whole gang is placed anew"
    return {
        "kind": "hot_swap" if swap.kept_nodes else "placed_anew",
        "reason": words,
        "kept_nodes": swap.kept_nodes,
        "kept_gpus": swap.kept_gpus,
        "replaced": [{"from": old, "to": new} for old, new in swap.replaced],
    }
