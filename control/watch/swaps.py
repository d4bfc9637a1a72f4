"""Swaps of a slow host: where the gain exceeds the cost, the job is placed again without it after its next checkpoint.

    gain   remaining time × the share of each step that the others lose
    cost   the restart; work since the checkpoint is lost too, and is short after the next one

The remaining time is up to the attempt's wall time or, without one, the policy's horizon. Only an attempt is stopped
for which the planner finds a place without the host. A cause in the program's own work moves with the rank, so data,
garbage collection, other threads of its process and imbalance cause no swap; nor does a rank that was slow on another
host before.

A swap costs no restart, so swaps have a budget of their own: so many of a job, and none twice of one host. A dismissed
verdict counts too: otherwise each dismissal would allow the next swap.
"""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

import structlog
from sqlalchemy import exists, func, select
from sqlalchemy.orm import Session

from control.attempts.attempts import LoadedAttempt, lock_attempt, stop_attempt
from control.attempts.mapping import job_request
from control.checkpoints.checkpoints import RESUMABLE
from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory, declare_action, retrying
from control.placement.fleet_views import placed_views
from control.placement.pending_jobs import waiting_after
from control.policy.policies import active_policy
from control.watch.learning import has_learnt
from muster.db.models import (
    Allocation,
    AllocationGpu,
    Attempt,
    Checkpoint,
    Gpu,
    GpuHold,
    Node,
    VerdictRow,
)
from muster.db.queries.effective_standing import effective_standing, is_cordoned
from muster.domain.errors import MusterError
from muster.domain.ids import NodeId, VerdictId
from muster.domain.job.verdicts import VerdictKind, VerdictReaction, VerdictState
from muster.domain.policy.document import Policy
from muster.domain.policy.stragglers import StragglerPolicy
from muster.domain.principals import Permission, Principal
from muster.domain.states import (
    AllocationState,
    AttemptState,
    Contact,
    Standing,
    StopReason,
)
from muster.domain.times import to_ms
from scheduler.fleet.topology import FleetState
from scheduler.solve.request import request_of
from scheduler.solve.solver import place
from watch.stragglers.causes import StragglerCause
from watch.stragglers.findings import Straggler

SWAP: Final = declare_action("straggler.swap")
SWAPPED: Final = frozenset({StragglerCause.HOST, StragglerCause.GPU, StragglerCause.COMPUTE})
WHY_DROPPED: Final = "no host is free to take its place, or the job's swaps are used up"
_BATCH: Final = 20
_log = structlog.get_logger(__name__)


def reaction_to(
    unit: UnitOfWork, loaded: LoadedAttempt, found: Straggler, node_id: NodeId | None, policy: Policy
) -> VerdictReaction:
    """Return what follows a slow rank: a swap where the rule allows it and it is worth its cost, else a report.

    A rule whose verdicts of this cause on this job were dismissed too often only notifies.
    """
    rules = policy.watch.stragglers
    is_measured = found.cause is StragglerCause.GPU
    if has_learnt(unit, loaded.job.id, VerdictKind.STRAGGLER, found.cause, policy.watch, is_measured=is_measured):
        return VerdictReaction.NOTIFY
    rule = job_request(loaded.job).on_straggler or rules.on_straggler
    is_possible = (
        rule == "swap"
        and found.cause in SWAPPED
        and not found.is_of_process
        and node_id is not None
        and gain_s(loaded, found.slowdown, rules, unit.now) > rules.restart_s
        and not _was_slow_elsewhere(unit.session, loaded, found.rank, node_id)
        and has_budget(unit.session, loaded, node_id, rules)
        and has_place(unit, loaded, node_id, policy)
    )
    return VerdictReaction.SWAP if is_possible else VerdictReaction.NOTIFY


def gain_s(loaded: LoadedAttempt, slowdown: float, rules: StragglerPolicy, now: datetime) -> float:
    """Return the seconds that the rest of the attempt takes longer because of a slow rank."""
    left_s = rules.horizon_s
    if loaded.attempt.wall_deadline_at is not None:
        left_s = min(left_s, max((loaded.attempt.wall_deadline_at - now).total_seconds(), 0.0))
    return left_s * slowdown


def has_budget(session: Session, loaded: LoadedAttempt, node_id: NodeId, rules: StragglerPolicy) -> bool:
    """Return whether the job may have one more swap, and has had none of this host."""
    query = (
        select(VerdictRow.attempt_id, VerdictRow.node_id)
        .join(Attempt, Attempt.id == VerdictRow.attempt_id)
        .where(
            VerdictRow.job_id == loaded.job.id,
            VerdictRow.attempt_id != loaded.attempt.id,
            VerdictRow.kind == VerdictKind.STRAGGLER,
            VerdictRow.reaction == VerdictReaction.SWAP,
            Attempt.stop_reason == StopReason.HOT_SWAP,
        )
    )
    before = session.execute(query.distinct()).all()
    has_been_named = any(named == node_id for _, named in before)
    return not has_been_named and len({attempt_id for attempt_id, _ in before}) < rules.swaps


def has_place(unit: UnitOfWork, loaded: LoadedAttempt, node_id: NodeId, policy: Policy) -> bool:
    """Return whether the planner finds a place for the job without the host, on its own GPUs and idle ones.

    Without one the planner would disregard which hosts the job avoids, and place it on the slow host again. The fleet
    is read only if a whole host is free.
    """
    if not has_free_host(unit.session, loaded, unit.now):
        return False
    query = select(AllocationGpu.gpu_uuid).join(Allocation, Allocation.id == AllocationGpu.allocation_id)
    own = set(unit.session.scalars(query.where(Allocation.attempt_id == loaded.attempt.id)))
    views = [
        replace(gpu, facts=replace(gpu.facts, is_assigned=False)) if gpu.uuid in own else gpu
        for gpu in placed_views(unit.session, unit.now, policy)
    ]
    (job,) = waiting_after(unit.session, [loaded.job], (), to_ms(unit.now), ())
    request = request_of(job)
    return place(FleetState(views, policy), request.avoiding(request.avoid_nodes | {node_id})) is not None


def has_free_host(session: Session, loaded: LoadedAttempt, now: datetime) -> bool:
    """Return whether a host of the same kind of GPU has as many free ones as the job needs on a host."""
    shape = job_request(loaded.job).shape
    own = select(Gpu.model).join(AllocationGpu, AllocationGpu.gpu_uuid == Gpu.uuid)
    own = own.join(Allocation, Allocation.id == AllocationGpu.allocation_id)
    models = session.scalars(own.where(Allocation.attempt_id == loaded.attempt.id).distinct()).all()
    is_taken = exists().where(AllocationGpu.gpu_uuid == Gpu.uuid, AllocationGpu.state != AllocationState.RELEASED)
    free = (
        select(Gpu.node_id)
        .join(Node, Node.id == Gpu.node_id)
        .where(
            Gpu.model.in_(models),
            Gpu.node_id.not_in([host.node_id for host in loaded.hosts]),
            Node.contact == Contact.LIVE,
            effective_standing(now) == Standing.HEALTHY,
            ~is_cordoned(now),
            ~is_taken,
            ~exists().where(GpuHold.gpu_uuid == Gpu.uuid),
        )
        .group_by(Gpu.node_id)
        .having(func.count() >= shape.gpus_per_node)
        .limit(1)
    )
    return session.scalar(free) is not None


def _was_slow_elsewhere(session: Session, loaded: LoadedAttempt, rank: int, node_id: NodeId) -> bool:
    """Return whether the rank was slow on another host in an earlier attempt: then its work is slow, and no host."""
    query = select(VerdictRow.id).where(
        VerdictRow.job_id == loaded.job.id,
        VerdictRow.attempt_id != loaded.attempt.id,
        VerdictRow.kind == VerdictKind.STRAGGLER,
        VerdictRow.ranks == [rank],
        VerdictRow.node_id != node_id,
    )
    return session.scalar(query.limit(1)) is not None


def swap_once(units: UnitOfWorkFactory, principal: Principal) -> int:
    """Stop the attempts whose swap is due: they have saved since the verdict. Return how many were stopped."""
    saved = exists().where(
        Checkpoint.attempt_id == VerdictRow.attempt_id,
        Checkpoint.status.in_(RESUMABLE),
        Checkpoint.committed_at > VerdictRow.created_at,
    )
    query = (
        select(VerdictRow.id)
        .join(Attempt, Attempt.id == VerdictRow.attempt_id)
        .where(
            VerdictRow.kind == VerdictKind.STRAGGLER,
            VerdictRow.reaction == VerdictReaction.SWAP,
            VerdictRow.state == VerdictState.STANDING,
            VerdictRow.ended_at.is_(None),
            Attempt.state == AttemptState.RUNNING,
            saved,
        )
        .order_by(VerdictRow.id)
        .limit(_BATCH)
    )
    with units.read() as session:
        due = session.scalars(query).all()
    num_stopped = 0
    for verdict_id in due:
        try:
            num_stopped += retrying(lambda verdict_id=verdict_id: _swap(units, principal, verdict_id))  # type: ignore[misc]  # at once
        except MusterError:
            raise  # the database's; the next turn tries again
        except Exception:  # noqa: BLE001  # the others are swapped
            _log.exception("straggler_not_swapped", verdict_id=verdict_id)
    return num_stopped


def _swap(units: UnitOfWorkFactory, principal: Principal, verdict_id: VerdictId) -> bool:
    with units.begin(principal, SWAP, quiet=True) as unit:  # one that is over meanwhile leaves no trace
        unit.principal.require(Permission.SYSTEM_RUN)
        loaded = lock_attempt(unit, unit.session.get_one(VerdictRow, verdict_id).attempt_id)
        row = unit.session.get_one(VerdictRow, verdict_id, with_for_update=True, populate_existing=True)
        host = None if row.node_id is None else loaded.host(row.node_id)
        is_over = row.ended_at is not None or row.state is not VerdictState.STANDING
        if is_over or host is None or loaded.attempt.state is not AttemptState.RUNNING:
            return False
        policy = active_policy(unit.session)
        may_swap = has_budget(unit.session, loaded, host.node_id, policy.watch.stragglers)
        if not may_swap or not has_place(unit, loaded, host.node_id, policy):
            row.reaction = VerdictReaction.NOTIFY
            payload = {"job_id": loaded.job.id, "verdict_id": row.id, "reason": WHY_DROPPED}
            tenant_id = loaded.job.tenant_id
            unit.emit("attempt.swap_dropped", "attempt", loaded.attempt.id, tenant_id=tenant_id, payload=payload)
            return False
        host.is_at_fault = True
        grace = timedelta(seconds=policy.evacuation.grace_s)
        stop_attempt(unit, loaded, StopReason.HOT_SWAP, policy, grace=grace, detail=row.sentence)
        return True
