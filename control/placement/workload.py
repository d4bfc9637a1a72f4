"""Workload as the planner needs it: running attempts, holds and losses, in few queries for any fleet."""

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Select,
    and_,
    bindparam,
    exists,
    func,
    or_,
    select,
    true,
    union_all,
)
from sqlalchemy.orm import Session

from control.core.tenant_tree import tenancy
from muster.db.base import UtcTimestamp
from muster.db.models import Allocation, AllocationGpu, Attempt, Checkpoint, GpuHold, Job, Reclaim
from muster.db.pipeline.packed_arrays import within_parameter
from muster.db.queries.assignments import IS_ASSIGNED
from muster.db.queries.tenants import NUM_GPUS
from muster.domain.exit.causes import GOES_ON_THERE
from muster.domain.ids import AttemptId, GpuUuid, JobId, TenantId
from muster.domain.policy.document import Policy
from muster.domain.states import AttemptState, CheckpointStatus, ReclaimState
from muster.domain.times import to_ms
from scheduler.model import ElasticGang, ReclaimLoss, ResumeHold, RunningAttempt, Shape, StandingReclaim, Workload
from scheduler.quota.tenancy import Tenancy

DURABLE: Final = (CheckpointStatus.VERIFIED, CheckpointStatus.GOOD)
TAKEN: Final = (ReclaimState.RELEASED, ReclaimState.FORCED)


def workload(
    session: Session,
    now: datetime,
    policy: Policy,
    *,
    tenants: Collection[TenantId] | None = None,
    elastic: Mapping[AttemptId, ElasticGang] | None = None,
    own_holds: Sequence[ResumeHold] = (),
    may_grow: bool = False,
    others_wait: bool = False,
) -> Workload:
    """Return the workload. ``elastic``: the attempts that may change their size.

    ``tenants``: only these tenants, for a caller that needs only what they may still lose. ``may_grow``: whether any
    attempt may be larger by now.
    """
    since = now - timedelta(seconds=policy.reclaim.window_s)
    gangs = elastic or {}
    return Workload(
        now_ms=to_ms(now),
        running=tuple(
            replace(attempt, elastic=gangs.get(attempt.attempt_id))
            for attempt in _running(session, now, policy, tenants)
        ),
        reclaims=tuple(_standing(session, tenants)),
        losses=tuple(_losses(session, now, since, tenants)),
        peak_gpus=_peaks(session, since, tenants),
        tenancy=Tenancy() if tenants is not None else tenancy(session),
        holds=tuple(own_holds),
        cleaning=() if tenants is not None else _cleaning(session),
        may_grow=may_grow,
        others_wait=others_wait,
    )


def beneficiaries(session: Session) -> list[JobId]:
    """Return the jobs for which GPUs are held after a reclaim."""
    return list(session.scalars(_with_holds()))


# The queries are built once: each planning of the queue asks them.


@functools.cache
def _with_holds() -> Select[JobId]:
    return select(Reclaim.beneficiary_job_id).where(Reclaim.hold_ended_at.is_(None)).distinct()


def _running(
    session: Session, now: datetime, policy: Policy, tenants: Collection[TenantId] | None
) -> list[RunningAttempt]:
    query = _running_attempts(of_some_tenants=tenants is not None)
    return [_attempt(row, now, policy) for row in session.execute(query, _parameters(tenants))]


@functools.cache
def _running_attempts(*, of_some_tenants: bool) -> Select[*tuple[Any, ...]]:
    saved = (
        select(func.max(Checkpoint.committed_at))
        .where(Checkpoint.job_id == Attempt.job_id, Checkpoint.status.in_(DURABLE))
        .scalar_subquery()
    )
    return (
        select(
            Attempt.id,
            Attempt.job_id,
            Attempt.tenant_id,
            Allocation.tier,
            Attempt.running_at,
            Attempt.stop_reason,
            Attempt.stop_deadline_at,
            Attempt.wall_deadline_at,
            Attempt.ending_cause,
            Attempt.num_nodes,
            Job.request["topology"]["required"].as_string().label("required_level"),
            Job.request["wall_time_s"].as_float().label("wall_time_s"),
            Job.request["stop_grace_s"].as_float().label("stop_grace_s"),
            saved.label("saved_at"),
            func.array_agg(AllocationGpu.gpu_uuid).label("gpus"),
        )
        .join(Job, Job.id == Attempt.job_id)
        .join(Allocation, Allocation.attempt_id == Attempt.id)
        .join(AllocationGpu, AllocationGpu.allocation_id == Allocation.id)
        .where(Attempt.state != AttemptState.ENDED, _is_of(Attempt.tenant_id, of_some_tenants=of_some_tenants))
        .group_by(Attempt.id, Allocation.tier, Job.id)
    )


def _attempt(row: Any, now: datetime, policy: Policy) -> RunningAttempt:
    ends_at = _ends_at(row, now, policy)
    return RunningAttempt(
        attempt_id=row.id,
        job_id=row.job_id,
        tenant_id=row.tenant_id,
        tier=row.tier,
        gpus=tuple(sorted(row.gpus)),
        started_ms=to_ms(row.running_at or now),
        saved_ms=None if row.saved_at is None else to_ms(row.saved_at),
        ends_ms=None if ends_at is None else to_ms(ends_at),
        is_stopping=row.stop_deadline_at is not None or row.ending_cause is not None,
        requested=_requested_shape(row),
    )


def _requested_shape(row: Any) -> Shape | None:
    """Return the attempt's shape. None of an attempt from before attempts had a size of their own."""
    return Shape(row.num_nodes, len(row.gpus) // row.num_nodes, row.required_level) if row.num_nodes else None


def _ends_at(row: Any, now: datetime, policy: Policy) -> datetime | None:
    """Return the latest end: its stop's deadline, or its wall time from its start on, and the grace after it.

    None if its job continues on its good GPUs: no other job may count on these.
    """
    if row.stop_reason in GOES_ON_THERE:
        return None
    if row.stop_deadline_at is not None or row.wall_time_s is None:
        return row.stop_deadline_at  # type: ignore[no-any-return]  # a column of moments
    grace = timedelta(seconds=policy.dispatch.stop_grace_s if row.stop_grace_s is None else row.stop_grace_s)
    deadline: datetime = row.wall_deadline_at or now + timedelta(seconds=row.wall_time_s)
    return deadline + grace


def _cleaning(session: Session) -> tuple[GpuUuid, ...]:
    """Return the GPUs of ended attempts, whose hosts have yet to prove that nothing of them is left."""
    return tuple(session.scalars(_assigned_to_ended()))


@functools.cache
def _assigned_to_ended() -> Select[GpuUuid]:
    return (
        select(AllocationGpu.gpu_uuid)
        .join(Allocation, Allocation.id == AllocationGpu.allocation_id)
        .join(Attempt, Attempt.id == Allocation.attempt_id)
        .where(IS_ASSIGNED, Attempt.state == AttemptState.ENDED)
        .order_by(AllocationGpu.gpu_uuid)
    )


def _standing(session: Session, tenants: Collection[TenantId] | None) -> list[StandingReclaim]:
    """Return, for each job with a hold, every reclaim that freed GPUs for it, and all its held GPUs."""
    query = _standing_reclaims(of_some_tenants=tenants is not None)
    return [
        StandingReclaim(
            victim, beneficiary, to_ms(due_at), tuple(sorted(gpus or ())), tuple(keeps or ()), delivered_at is not None
        )
        for victim, beneficiary, due_at, gpus, keeps, delivered_at in session.execute(query, _parameters(tenants))
    ]


@functools.cache
def _standing_reclaims(*, of_some_tenants: bool) -> Select[*tuple[Any, ...]]:
    held = (
        select(func.array_agg(GpuHold.gpu_uuid)).where(GpuHold.job_id == Reclaim.beneficiary_job_id).scalar_subquery()
    )
    return select(
        Reclaim.victim_attempt_id,
        Reclaim.beneficiary_job_id,
        Reclaim.deadline_at,
        held,
        Reclaim.keeps,
        Reclaim.delivered_at,
    ).where(Reclaim.hold_ended_at.is_(None), _is_of(Reclaim.victim_tenant_id, of_some_tenants=of_some_tenants))


def _losses(
    session: Session, now: datetime, since: datetime, tenants: Collection[TenantId] | None
) -> list[ReclaimLoss]:
    """Return the losses in the window. A victim that leaves for no job any more counts as lost."""
    query = _reclaims_that_cost(of_some_tenants=tenants is not None)
    return [
        ReclaimLoss(tenant_id, num_gpus, to_ms(settled_at or now))
        for tenant_id, num_gpus, settled_at in session.execute(query, {"since": since, **_parameters(tenants)})
    ]


@functools.cache
def _reclaims_that_cost(*, of_some_tenants: bool) -> Select[Any, Any, Any]:
    is_over = and_(Reclaim.state.in_(TAKEN), Reclaim.settled_at > bindparam("since"))
    leaves_for_no_job = and_(Reclaim.state == ReclaimState.NOTIFIED, Reclaim.hold_ended_at.is_not(None))
    return select(Reclaim.victim_tenant_id, Reclaim.num_gpus, Reclaim.settled_at).where(
        or_(is_over, leaves_for_no_job), _is_of(Reclaim.victim_tenant_id, of_some_tenants=of_some_tenants)
    )


def _peaks(session: Session, since: datetime, tenants: Collection[TenantId] | None) -> dict[TenantId, int]:
    """Return the most GPUs that each tenant's allocations held at one time since then."""
    values = {"since": since, **_parameters(tenants)}
    found = session.execute(_most_gpus_at_one_time(of_some_tenants=tenants is not None), values)
    return {TenantId(tenant_id): int(total) for tenant_id, total in found}


@functools.cache
def _most_gpus_at_one_time(*, of_some_tenants: bool) -> Select[Any, Any]:
    since = bindparam("since", type_=UtcTimestamp())
    in_window = or_(Allocation.released_at.is_(None), Allocation.released_at > since)
    is_of = _is_of(Allocation.tenant_id, of_some_tenants=of_some_tenants)
    spans = (
        select(Allocation.tenant_id, Allocation.created_at, Allocation.released_at, NUM_GPUS.label("size"))
        .where(in_window, is_of)
        .cte("spans")
    )
    changes = union_all(
        select(spans.c.tenant_id, func.greatest(spans.c.created_at, since).label("at"), spans.c.size.label("by")),
        select(spans.c.tenant_id, spans.c.released_at, -spans.c.size).where(spans.c.released_at.is_not(None)),
    ).subquery()
    running_sum = func.sum(changes.c.by).over(partition_by=changes.c.tenant_id, order_by=(changes.c.at, changes.c.by))
    sums = select(changes.c.tenant_id, running_sum.label("total")).subquery()
    return select(sums.c.tenant_id, func.max(sums.c.total)).group_by(sums.c.tenant_id)


def _is_of(column: Any, *, of_some_tenants: bool) -> ColumnElement[bool]:
    return within_parameter(column, "tenants") if of_some_tenants else true()


def _parameters(tenants: Collection[TenantId] | None) -> dict[str, object]:
    return {} if tenants is None else {"tenants": list(tenants)}


def has_reclaim_holds(session: Session) -> bool:
    """Return whether a reclaim's hold is open, or a notice waits to be withdrawn."""
    is_open = or_(Reclaim.hold_ended_at.is_(None), Reclaim.state == ReclaimState.NOTIFIED)
    return bool(session.scalar(select(exists().where(is_open))))
