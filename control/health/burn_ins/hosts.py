"""The agent's side of burn-ins: it asks for orders and reports. An order that it lost is given to it again."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import msgspec
from msgspec import UNSET
from sqlalchemy import exists, select

from control.core.unit_of_work import SCHEDULER_CHANNEL, UnitOfWork, UnitOfWorkFactory, declare_action, retrying
from control.fleet.gpu_locks import lock_gpus
from control.health.burn_ins.abandoned import report_abandoned
from control.health.burn_ins.polling import poll_again_s
from control.policy.policies import active_policy
from health.burn_in import coverage_of
from muster.db.models import AllocationGpu, BurnIn, Gpu
from muster.domain.errors import NotFoundError, UnauthenticatedError, UpgradeRequiredError, ValidationFailedError
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.policy.health import BurnInPolicy
from muster.domain.principals import Permission, Principal
from muster.domain.states import BURN_IN_EDGES, NOTHING_RUNS, AllocationState, BurnInState, Standing, require_edge
from muster.wire.burn_in import (
    BURN_IN_PROTOCOL,
    BurnInAnswer,
    BurnInOrder,
    BurnInPoll,
    BurnInPollAnswer,
    BurnInReport,
    Figures,
)
from muster.wire.operations import SuspectOperation

POLL: Final = declare_action("burn_in.poll")
REPORT: Final = declare_action("burn_in.report")
EXPIRE: Final = declare_action("burn_in.expire")
REPORT_WITHIN: Final = timedelta(seconds=60)
"""Time beyond a burn-in's deadline within which its report may arrive."""


def poll(unit: UnitOfWork, request: BurnInPoll) -> BurnInPollAnswer:
    """Return orders of the calling node. A caller runs nothing, so a burn-in that is RUNNING there was lost.

    A lost burn-in is given again. None is given for a GPU that an allocation holds: both lock the GPU before they read.
    """
    node_id = _node_of(unit, request.protocol)
    policy = active_policy(unit.session).health.burn_in
    answer = BurnInPollAnswer(poll_again_s=poll_again_s(unit, policy))
    waiting = _lock_waiting(unit, node_id)
    if not waiting:
        return answer
    for row in waiting:
        if row.state is BurnInState.RUNNING:
            give_back(unit, row, "its agent asked again without a report", policy)
    orders = tuple(_begin(unit, row, policy) for row in _ready(unit, waiting)[: request.max_orders])
    return msgspec.structs.replace(answer, orders=orders)


def _ready(unit: UnitOfWork, waiting: Sequence[BurnIn]) -> list[BurnIn]:
    """Return the ordered burn-ins of free GPUs, oldest first."""
    free = _free(unit, [row.gpu_uuid for row in waiting])
    ready = (row for row in waiting if row.state is BurnInState.ORDERED and row.gpu_uuid in free)
    return sorted(ready, key=lambda row: (row.ordered_at, row.id))


def report(unit: UnitOfWork, burn_in_id: str, reported: BurnInReport) -> BurnInAnswer:
    """Store the figures, or why there are none. A repeated report, and one of a try that was given up, have no effect.

    Raises:
        NotFoundError: the calling node has no such burn-in.
        ValidationFailedError: neither or both of figures and reason, or figures of another kind of GPU.
    """
    node_id = _node_of(unit, reported.protocol)
    found = unit.session.get(BurnIn, burn_in_id)
    if found is None or found.node_id != node_id:
        raise NotFoundError
    if (reported.figures is None) == (reported.could_not_run is None):
        raise ValidationFailedError.at("/figures", "one_of", "give either figures or could_not_run")
    gpus = lock_gpus(unit, [found.gpu_uuid])
    row = unit.session.get_one(BurnIn, burn_in_id, with_for_update=True, populate_existing=True)
    if reported.figures is not None and reported.figures.is_simulated != gpus[0].is_simulated:
        kind = "simulated" if gpus[0].is_simulated else "real"
        raise ValidationFailedError.at("/figures/is_simulated", "other_kind", f"{row.gpu_uuid} is enrolled as {kind}")
    if row.state is not BurnInState.RUNNING or row.tries != reported.try_number:
        return BurnInAnswer(is_taken=False)
    if reported.figures is None:
        give_back(unit, row, reported.could_not_run or "", active_policy(unit.session).health.burn_in)
    else:
        _store(unit, row, reported.figures)
    unit.wake(SCHEDULER_CHANNEL)
    return BurnInAnswer(is_taken=True)


def expire_once(units: UnitOfWorkFactory, principal: Principal) -> int:
    """Expire burn-ins whose agent is silent past the deadline, or on whose GPU nothing may run. Return their number."""
    with units.read() as session:
        due = session.execute(
            select(BurnIn.id, BurnIn.gpu_uuid)
            .join(Gpu, Gpu.uuid == BurnIn.gpu_uuid)
            .where(
                ((BurnIn.state == BurnInState.RUNNING) & (BurnIn.deadline_at < units.clock()))
                | ((BurnIn.state == BurnInState.ORDERED) & Gpu.standing.in_(NOTHING_RUNS))
            )
        ).all()
    for burn_in_id, gpu_uuid in due:
        retrying(lambda key=(burn_in_id, gpu_uuid): _expire(units, principal, *key))  # type: ignore[misc]  # bound at once
    return len(due)


def give_back(unit: UnitOfWork, row: BurnIn, why: str, policy: BurnInPolicy) -> None:
    """End a try without figures: order the burn-in again, or abandon it after its last try."""
    row.last_fault = why
    row.deadline_at = None
    if row.tries >= policy.tries_max:
        abandon(unit, row, why)
        report_abandoned(unit, row, why)
        return
    _move(row, BurnInState.ORDERED)
    if row.began_at is not None:
        row.earlier_tries = [*row.earlier_tries, [row.began_at.isoformat(), unit.now.isoformat()]]
        row.began_at = None
    unit.emit("gpu.burn_in_given_back", "gpu", row.gpu_uuid, payload=_payload(row, reason=why))


def abandon(unit: UnitOfWork, row: BurnIn, why: str) -> None:
    _move(row, BurnInState.ABANDONED)
    row.last_fault, row.ended_at = why, unit.now
    _evaluate_again(unit, row.gpu_uuid)
    unit.emit("gpu.burn_in_abandoned", "gpu", row.gpu_uuid, payload=_payload(row, reason=why))


def _evaluate_again(unit: UnitOfWork, uuid: GpuUuid) -> None:
    """Have a SUSPECT GPU judged: time alone may return it once its burn-in could not run. The caller holds the GPU."""
    gpu = unit.session.get_one(Gpu, uuid)
    if gpu.standing is Standing.SUSPECT:
        gpu.judge_at = unit.now


def _expire(units: UnitOfWorkFactory, principal: Principal, burn_in_id: str, gpu_uuid: GpuUuid) -> None:
    with units.begin(principal, EXPIRE) as unit:
        unit.principal.require(Permission.SYSTEM_RUN)
        gpu = lock_gpus(unit, [gpu_uuid])[0]
        row = unit.session.get_one(BurnIn, burn_in_id, with_for_update=True, populate_existing=True)
        if row.state is BurnInState.RUNNING and row.deadline_at is not None and row.deadline_at < unit.now:
            give_back(unit, row, "its agent did not report in time", active_policy(unit.session).health.burn_in)
        elif row.state is BurnInState.ORDERED and gpu.standing in NOTHING_RUNS:
            abandon(unit, row, f"the GPU is {gpu.standing}")


def _begin(unit: UnitOfWork, row: BurnIn, policy: BurnInPolicy) -> BurnInOrder:
    _move(row, BurnInState.RUNNING)
    row.tries += 1
    row.began_at = unit.now
    row.deadline_at = unit.now + timedelta(seconds=policy.deadline_s) + REPORT_WITHIN
    unit.emit("gpu.burn_in_began", "gpu", row.gpu_uuid, payload=_payload(row))
    operation = None if row.operation is None else msgspec.convert(row.operation, SuspectOperation)
    return BurnInOrder(
        burn_in_id=row.id,
        gpu_uuid=row.gpu_uuid,
        try_number=row.tries,
        deadline_s=policy.deadline_s,
        operation=operation,
    )


def _store(unit: UnitOfWork, row: BurnIn, figures: Figures) -> None:
    _move(row, BurnInState.MEASURED)
    named = None if figures.covers is UNSET else figures.covers
    covers = coverage_of([each.name for each in figures.partial_sums], figures.rates, named)
    row.figures = {**msgspec.to_builtins(figures), "covers": sorted(covers)}
    row.comparison_key = f"{figures.model}|{figures.driver}|{figures.library}"
    row.ended_at, row.deadline_at = unit.now, None
    unit.emit("gpu.burn_in_measured", "gpu", row.gpu_uuid, payload=_payload(row, took_s=figures.took_s))


def _move(row: BurnIn, target: BurnInState) -> None:
    require_edge(BURN_IN_EDGES, row.state, target)
    row.state = target


def _payload(row: BurnIn, **more: Any) -> dict[str, Any]:
    return {"burn_in_id": row.id, "try": row.tries, **more}


def _node_of(unit: UnitOfWork, protocol: int) -> NodeId:
    unit.principal.require(Permission.HOST_REPORT)
    if unit.principal.node_id is None:
        raise UnauthenticatedError
    if protocol != BURN_IN_PROTOCOL:
        message = f"protocol {protocol} is not supported; this server supports {BURN_IN_PROTOCOL}"
        raise UpgradeRequiredError(message, spoken=BURN_IN_PROTOCOL)
    return unit.principal.node_id


def _lock_waiting(unit: UnitOfWork, node_id: NodeId) -> list[BurnIn]:
    is_waiting = (BurnIn.node_id == node_id) & BurnIn.state.in_((BurnInState.ORDERED, BurnInState.RUNNING))
    uuids = unit.session.scalars(select(BurnIn.gpu_uuid).where(is_waiting)).all()
    if not uuids:
        return []
    lock_gpus(unit, uuids)
    query = select(BurnIn).where(is_waiting, BurnIn.gpu_uuid.in_(uuids)).order_by(BurnIn.gpu_uuid).with_for_update()
    return list(unit.session.scalars(query.execution_options(populate_existing=True)).all())


def _free(unit: UnitOfWork, uuids: Sequence[GpuUuid]) -> set[GpuUuid]:
    """Return the GPUs on which a burn-in may run now. The caller holds their locks."""
    held = exists().where(
        AllocationGpu.gpu_uuid == Gpu.uuid,
        AllocationGpu.state.in_([AllocationState.ASSIGNED, AllocationState.CLEANING]),
    )
    query = select(Gpu.uuid).where(Gpu.uuid.in_(uuids), ~held, Gpu.standing.not_in(NOTHING_RUNS), ~Gpu.is_mig_enabled)
    return set(unit.session.scalars(query).all())
