"""Elastic jobs: they continue with another number of hosts as a new attempt, by the scheduler's or tenant's decision.

The attempt gets a stop request for ``resize``. In the same transaction, all GPUs of its next attempt are held for its
job: its own GPUs, and the additional ones. The hold ends when the job is placed, or waits no more.

    attempt 1 on A B      grow to A B C       attempt 1 stops       attempt 2 on A B C
    RUNNING          -->  hold {A B C}   -->  hold {A B C}     -->  the hold has ended
"""

import functools
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import ColumnElement, Select, and_, bindparam, exists, func, or_, select
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.orm import Session

from control.attempts.attempts import LoadedAttempt, lock_attempt, lock_job, stop_attempt
from control.attempts.mapping import grace_ms, job_request
from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory, declare_action, retrying
from control.fleet.inventory import gpu_views
from control.placement import holds
from control.placement.pending_jobs import nodes_at_fault
from control.policy.policies import active_policy
from control.tenants.guarantees import CHANGED, Guarantees, locked_guarantees
from control.tenants.quotas import quota_refusal
from health.cohort.cohorts import may_be_mixed
from health.standing.admission import refusal_of
from muster.db.base import UtcTimestamp
from muster.db.models import Allocation, AllocationGpu, Attempt, Gpu, GpuHold, Job, Reclaim
from muster.db.queries.assignments import IS_ASSIGNED
from muster.db.queries.effective_standing import effective_standing
from muster.db.queries.residency import residencies
from muster.domain.errors import ConflictError
from muster.domain.ids import AttemptId, GpuUuid, JobId, NodeId, TenantId
from muster.domain.job.elastic import Sizes, sizes_of
from muster.domain.lifecycle.model import Timers
from muster.domain.policy.document import Policy
from muster.domain.principals import Permission, Principal
from muster.domain.residency import ANY
from muster.domain.state_sets import OUT_OF_SERVICE
from muster.domain.states import AttemptState, JobState, StopReason
from scheduler.model import ElasticGang, Growth, ResumeHold
from scheduler.solve.job_rules import rule_of

GROW: Final = declare_action("elastic.grow")
LET_GO: Final = declare_action("elastic.let_go")
IS_ELASTIC: Final[ColumnElement[bool]] = or_(
    Job.request["shape"]["min_nodes"].astext.is_not(None), Job.request["shape"]["max_nodes"].astext.is_not(None)
)
_NODES: Final = Job.request["shape"]["nodes"].as_integer()
_HAS_ROOM: Final[ColumnElement[bool]] = Attempt.num_nodes < func.coalesce(
    Job.wanted_nodes, Job.request["shape"]["max_nodes"].as_integer(), _NODES
)
_HAS_SURPLUS: Final[ColumnElement[bool]] = Attempt.num_nodes > func.coalesce(
    Job.request["shape"]["min_nodes"].as_integer(), _NODES
)
_SOON: Final = timedelta(seconds=10)
"""A job that waits longer than this for its next try loses its hold."""
_NOT_RECLAIMED_FOR: Final = ~exists().where(
    Reclaim.beneficiary_job_id == GpuHold.job_id, Reclaim.hold_ended_at.is_(None)
)


class GrowthLostError(ConflictError):
    """The snapshot no longer holds: no attempt was asked to stop, and the next cycle plans again."""

    code, status, title = "growth_lost", 409, "The running jobs have changed since the growth was planned"


def sizes(job: Job) -> Sizes:
    return sizes_of(job_request(job).shape, job.wanted_nodes)


def elastic_gangs(session: Session) -> dict[AttemptId, ElasticGang]:
    """Return each running attempt that nothing stops and that may have more or fewer hosts than it has."""
    found = session.execute(_of_other_possible_size()).all()
    avoided = nodes_at_fault(session, [job.id for _, job, _, _ in found])
    gangs, placement, rules = {}, active_policy(session).placement, residencies(session) if found else {}
    for attempt_id, job, nodes, uuids in found:
        shape, topology, range_of = job_request(job).shape, job_request(job).topology, sizes(job)
        parts: dict[NodeId, list[GpuUuid]] = {}
        for node_id, uuid in zip(nodes, uuids, strict=True):
            parts.setdefault(node_id, []).append(uuid)
        gangs[attempt_id] = ElasticGang(
            parts=tuple((node_id, tuple(part)) for node_id, part in parts.items()),
            min_nodes=range_of.fewest,
            max_nodes=range_of.most,
            gpus_per_node=shape.gpus_per_node,
            required_level=topology.required,
            preferred_level=topology.preferred,
            avoid_nodes=avoided.get(job.id, frozenset()),
            rule=rule_of(job_request(job), placement, rules.get(job.tenant_id, ANY).sites),
        )
    return gangs


@functools.cache
def _of_other_possible_size() -> Select[AttemptId, Job, Sequence[NodeId], Sequence[GpuUuid]]:
    """Return the query, built once: each planning of the queue asks it."""
    rank_order = (AllocationGpu.node_rank, AllocationGpu.local_index)
    return (
        select(
            Attempt.id,
            Job,
            func.array_agg(aggregate_order_by(AllocationGpu.node_id, *rank_order)),
            func.array_agg(aggregate_order_by(AllocationGpu.gpu_uuid, *rank_order)),
        )
        .join(Job, Job.id == Attempt.job_id)
        .join(Allocation, Allocation.attempt_id == Attempt.id)
        .join(AllocationGpu, AllocationGpu.allocation_id == Allocation.id)
        .where(_may_change_size(_HAS_ROOM, _HAS_SURPLUS))
        .group_by(Attempt.id, Job.id)
    )


def _may_change_size(*sizes: ColumnElement[bool]) -> ColumnElement[bool]:
    """Return the condition on an attempt that runs, that nothing stops, and for whose size one of ``sizes`` is true."""
    return and_(
        Attempt.state == AttemptState.RUNNING,
        Attempt.stop_reason.is_(None),
        Attempt.ending_cause.is_(None),
        IS_ELASTIC,
        or_(*sizes),
    )


def may_any_grow(session: Session, now: datetime, policy: Policy) -> bool:
    """Return whether an attempt may grow, by its size and its dwell, and a GPU is idle.

    If not, no cycle is worth its snapshot.
    """
    since = now - timedelta(seconds=policy.elastic.grow_after_s)
    if session.scalar(_may_grow(), {"since": since}) is None:
        return False
    return session.scalar(_an_idle_gpu(), {"now": now}) is not None


@functools.cache
def _may_grow() -> Select[AttemptId]:
    may_grow = and_(_may_change_size(_HAS_ROOM), Attempt.running_at <= bindparam("since"))
    return select(Attempt.id).join(Job, Job.id == Attempt.job_id).where(may_grow).limit(1)


@functools.cache
def _an_idle_gpu() -> Select[GpuUuid]:
    is_assigned = exists().where(AllocationGpu.gpu_uuid == Gpu.uuid, IS_ASSIGNED)
    standing = effective_standing(bindparam("now", type_=UtcTimestamp()))
    return select(Gpu.uuid).where(standing.not_in(OUT_OF_SERVICE), ~is_assigned).limit(1)


def own_holds(session: Session) -> list[ResumeHold]:
    """Return the holds of jobs that change their size."""
    return [
        ResumeHold(job_id, tuple(sorted(uuids)), tenant_id, tier)
        for job_id, uuids, tenant_id, tier in session.execute(_own_holds())
    ]


@functools.cache
def _own_holds() -> Select[JobId, Sequence[GpuUuid], TenantId, str]:
    return (
        select(Job.id, func.array_agg(GpuHold.gpu_uuid), Job.tenant_id, Job.tier)
        .join(GpuHold, GpuHold.job_id == Job.id)
        .where(_NOT_RECLAIMED_FOR)
        .group_by(Job.id)
    )


def grow(unit: UnitOfWork, growth: Growth, policy: Policy, *, planned_under: Guarantees) -> None:
    """Ask the attempt to save and leave, and hold its larger place for its job.

    ``planned_under``: the guarantees that the plan kept free (``control.tenants.guarantees``).

    Raises:
        GrowthLostError: something is no longer as the plan saw it.
    """
    unit.principal.require(Permission.SYSTEM_RUN)
    if planned_under != locked_guarantees(unit.session):
        raise GrowthLostError(CHANGED)
    loaded = lock_attempt(unit, growth.attempt_id)
    _require_as_planned(loaded, growth)
    wanted = sorted(uuid for _, part in growth.parts for uuid in part)
    own = gpus_of(unit, loaded.attempt.id)
    _require_place(unit, loaded.job, wanted, own, policy)
    refusal = quota_refusal(unit, loaded.job.tenant_id, loaded.job.tier, len(wanted) - len(own))
    if refusal is not None:
        raise GrowthLostError(refusal)
    change_size(unit, loaded, wanted, len(growth.parts), "GPUs are idle that it can use", policy)


def _require_as_planned(loaded: LoadedAttempt, growth: Growth) -> None:
    attempt = loaded.attempt
    if attempt.state is not AttemptState.RUNNING or attempt.stop_reason is not None or attempt.ending_cause is not None:
        raise GrowthLostError(f"{attempt.id} is ending or being stopped already")
    if len(loaded.hosts) != growth.from_nodes or len(growth.parts) > sizes(loaded.job).most:
        raise GrowthLostError(f"{attempt.id} is of another size now, or may not be so large")


def _require_place(
    unit: UnitOfWork, job: Job, wanted: Sequence[GpuUuid], own: Collection[GpuUuid], policy: Policy
) -> None:
    """Check that the GPUs are of one cohort, admitted, held for no job, and free or the attempt's own."""
    lock_gpus(unit, wanted)
    views = gpu_views(unit.session, unit.now, policy.health, only=wanted)
    homogeneity = policy.homogeneity(job.tier)
    if len(views) != len(wanted) or not may_be_mixed((view.cohort_key for view in views), homogeneity):
        raise GrowthLostError("the GPUs that it would grow to are no longer one cohort")
    if on_hold := holds.hold_gpus_of_others(unit, wanted):
        raise GrowthLostError(f"{on_hold[0]} is held for a job already")
    for view in views:
        facts = replace(view.facts, is_assigned=view.facts.is_assigned and view.uuid not in own)
        refusal = refusal_of(facts, policy.tier(job.tier))
        if refusal is not None:
            raise GrowthLostError(f"{view.uuid} cannot be held for {job.id}: {refusal}")


def lock_gpus(unit: UnitOfWork, uuids: Sequence[GpuUuid]) -> None:
    unit.session.scalars(select(Gpu.uuid).where(Gpu.uuid.in_(uuids)).order_by(Gpu.uuid).with_for_update(key_share=True))


def gpus_of(unit: UnitOfWork, attempt_id: AttemptId) -> list[GpuUuid]:
    """Return the attempt's GPUs in rank order."""
    query = (
        select(AllocationGpu.gpu_uuid)
        .join(Allocation, Allocation.id == AllocationGpu.allocation_id)
        .where(Allocation.attempt_id == attempt_id)
        .order_by(AllocationGpu.node_rank, AllocationGpu.local_index)
    )
    return list(unit.session.scalars(query))


def change_size(
    unit: UnitOfWork, loaded: LoadedAttempt, gpus: Sequence[GpuUuid], to_nodes: int, why: str, policy: Policy
) -> None:
    """Hold the GPUs of its next attempt for the job, and stop this one for its new size."""
    holds.hold(unit, loaded.job, gpus)
    payload = {"job_id": loaded.job.id, "from_nodes": len(loaded.hosts), "to_nodes": to_nodes, "reason": why}
    tenant_id = loaded.attempt.tenant_id
    unit.emit("attempt.resizing", "attempt", loaded.attempt.id, tenant_id=tenant_id, payload=payload)
    own_s = grace_ms(job_request(loaded.job), Timers.of(policy)) / 1000
    grace = timedelta(seconds=max(policy.elastic.grace_s, own_s))
    words = f"continues with {to_nodes} instead of {len(loaded.hosts)} hosts: {why}"
    stop_attempt(unit, loaded, StopReason.RESIZE, policy, grace=grace, detail=words)


def let_go_of_idle(units: UnitOfWorkFactory, principal: Principal) -> list[JobId]:
    """End the holds of jobs that neither leave for another size nor wait: ended, held, or placed some other way."""
    with units.read() as session:
        idle = session.scalars(select(GpuHold.job_id).where(_NOT_RECLAIMED_FOR).distinct().order_by(GpuHold.job_id))
        job_ids = [job_id for job_id in idle if not _still_needs(session, job_id, units.clock())]
    return [
        job_id
        for job_id in job_ids
        if retrying(lambda job_id=job_id: _let_go(units, principal, job_id))  # type: ignore[misc]  # bound at once
    ]


def _still_needs(session: Session, job_id: JobId, now: datetime) -> bool:
    leaving = exists().where(
        Attempt.job_id == Job.id, Attempt.state != AttemptState.ENDED, Attempt.stop_reason.is_not(None)
    )
    waits = or_(Job.state == JobState.QUEUED, and_(Job.state == JobState.RECOVERING, _is_tried_again_soon(now)))
    query = select(Job.id).where(Job.id == job_id, or_(waits, and_(Job.state == JobState.ACTIVE, leaving)))
    return session.scalar(query) is not None


def _is_tried_again_soon(now: datetime) -> ColumnElement[bool]:
    """Return the condition on a job without a long pause before its next try.

    A job has such a pause if its attempt ended for another reason than the stop request.
    """
    return or_(Job.next_try_at.is_(None), Job.next_try_at <= now + _SOON)


def _let_go(units: UnitOfWorkFactory, principal: Principal, job_id: JobId) -> bool:
    with units.begin(principal, LET_GO) as unit:
        unit.principal.require(Permission.SYSTEM_RUN)
        job = lock_job(unit, job_id)
        if _still_needs(unit.session, job_id, unit.now):
            return False
        why = "the job that it was for is no longer pending"
        holds.release_and_report(unit, job, why)
        return True
