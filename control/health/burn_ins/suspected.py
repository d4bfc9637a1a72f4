"""Burn-ins of GPUs that a re-run of a job's suspect steps names: with the operation whose result was false.

A re-run is the tenant's program, so it only asks. The GPU is quarantined if its burn-in fails, as after any other::

    verdict names a GPU ── due ──┬── proposed (shadow), or waits for a place ── decided again
                                 ├── answered by something else
                                 └── ordered ── verdict dismissed ── given up, if it has not begun

The circuit breaker is asked first, as for a repair: an order waits for its place and opens no scope. A GPU gets one a
day at most, and a tenant's verdicts get so many (``watch.reruns``). Lock the job before the GPUs, as a dismissal does.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final, NamedTuple

from sqlalchemy import ColumnElement, exists, func, select
from sqlalchemy.orm import Session

from control.attempts.attempts import lock_attempt
from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory, declare_action, retrying
from control.fleet.gpu_locks import lock_gpus
from control.health.burn_ins.hosts import abandon
from control.health.burn_ins.orders import DIAGNOSED, OPEN_BURN_INS, add, is_overridden, is_requested
from control.health.capacity import admit_takings, full_scopes, locked_breaker
from control.health.cases import cases_of
from control.policy.policies import active_policy
from health.standing.account import Way
from health.standing.breaker import Taking
from muster.db.models import Allocation, AllocationGpu, Attempt, BurnIn, Gpu, VerdictRow
from muster.domain.ids import AttemptId, GpuUuid, VerdictId
from muster.domain.job.verdicts import VerdictState
from muster.domain.policy.document import Policy
from muster.domain.policy.watch import RerunPolicy
from muster.domain.principals import Permission, Principal
from muster.domain.states import BurnInState

SUSPECTED: Final = declare_action("burn_in.suspected")
REASON: Final = "a job's re-run names the GPU: verdict "
NOT_ORDERED: Final = "attempt.burn_in_not_ordered"
_NEWEST: Final = timedelta(days=7)
"""A verdict that is held back for longer asks no more."""
_DAY: Final = timedelta(days=1)
_OWN: Final = timedelta(hours=1)
"""Time after the attempt in which its GPU is burnt in even if another tenant holds it by then."""
_BATCH: Final = 50


class _Due(NamedTuple):
    attempt_id: AttemptId
    verdict_id: VerdictId
    uuid: GpuUuid


class _NotOrdered(NamedTuple):
    """Why no burn-in is ordered now. ``again``: when that is decided again; None: never."""

    note: str
    again: timedelta | None = None


def order_suspected_once(units: UnitOfWorkFactory, principal: Principal) -> int:
    """Order a burn-in for each GPU that a due verdict names, if its rules allow it. Return how many were ordered."""
    with units.read() as session:
        due = _due(session, units)
    return sum(retrying(lambda found=found: _decide(units, principal, found)) for found in due)  # type: ignore[misc]  # bound at once


def _due(session: Session, units: UnitOfWorkFactory) -> Sequence[_Due]:
    query = (
        select(VerdictRow.attempt_id, VerdictRow.id, Gpu.uuid)
        .join(Gpu, Gpu.uuid == VerdictRow.gpu)
        .where(VerdictRow.burn_in_next_at <= units.clock())
        .order_by(VerdictRow.burn_in_next_at, VerdictRow.id)
        .limit(_BATCH)
    )
    return [_Due(*found) for found in session.execute(query).all()]


def _decide(units: UnitOfWorkFactory, principal: Principal, due: _Due) -> bool:
    """Order the burn-in, hold it back, or give up that of a dismissed verdict. Return whether it was ordered."""
    with units.begin(principal, SUSPECTED, quiet=True) as unit:
        unit.principal.require(Permission.SYSTEM_RUN)
        loaded = lock_attempt(unit, due.attempt_id)
        (gpu,) = lock_gpus(unit, [due.uuid])
        row = unit.session.get_one(VerdictRow, due.verdict_id, with_for_update=True, populate_existing=True)
        if row.burn_in_next_at is None or row.burn_in_next_at > unit.now or row.gpu != gpu.uuid:
            return False
        policy = active_policy(unit.session)
        if row.state is not VerdictState.STANDING or row.burn_in_id is not None:
            _give_up(unit, row, gpu, policy)
            return False
        found = _why_not_ordered(unit, row, gpu, loaded.attempt, policy)
        if found is not None:
            _note(unit, row, found)
            return False
        admit_takings(unit, [_taking(gpu)], policy.health)  # it has its place, as was found under the lock
        made = add(unit, gpu, f"{REASON}{row.id}, {row.cause}", (row.rerun or {}).get("operation"))
        row.burn_in_id, row.burn_in_note, row.burn_in_next_at = made.id, None, None
        return True


def _why_not_ordered(
    unit: UnitOfWork, row: VerdictRow, gpu: Gpu, attempt: Attempt, policy: Policy
) -> _NotOrdered | None:
    rule = policy.watch.reruns
    if not rule.is_on or rule.burn_in == "off":
        return _NotOrdered("none is ordered, since watch.reruns.is_on or watch.reruns.burn_in is off")
    if (answer := _answer(unit, row, gpu, attempt, rule)) is not None:
        return _NotOrdered(answer)
    if rule.burn_in == "shadow":
        words = f"proposed for {gpu.uuid}; to order it set watch.reruns.burn_in to `on`, or run `muster burnin run`"
        return _NotOrdered(words, timedelta(hours=1))
    _, state = locked_breaker(unit)  # orders the counts of all processes too
    if _num_of_a_day(unit, row) >= rule.burn_ins_a_day:
        words = f"waits: its tenant's verdicts had {rule.burn_ins_a_day} in 24 hours (watch.reruns.burn_ins_a_day)"
        return _NotOrdered(words, timedelta(hours=1))
    if full_scopes(unit, state, _taking(gpu), policy.health) is not None:  # its tenant reads this, so no scope is named
        return _NotOrdered("waits for a place in the circuit breaker", timedelta(minutes=10))
    return None


def _answer(unit: UnitOfWork, row: VerdictRow, gpu: Gpu, attempt: Attempt, rule: RerunPolicy) -> str | None:
    """Return why the GPU needs no burn-in for this verdict, now or later; None if it does."""
    if gpu.standing not in DIAGNOSED or gpu.is_mig_enabled:
        return f"none is ordered, since the GPU is {'in MIG mode' if gpu.is_mig_enabled else gpu.standing}"
    if row.created_at < unit.now - _NEWEST:
        return f"none is ordered, since the verdict is older than {_NEWEST.days} days"
    since = unit.now - timedelta(seconds=rule.burn_in_again_s)
    lately = (BurnIn.ordered_at > since) & BurnIn.reason.startswith(REASON, autoescape=True)
    has_one = exists().where(BurnIn.gpu_uuid == gpu.uuid, BurnIn.state.in_(OPEN_BURN_INS) | lately)
    if unit.session.scalar(select(has_one)):
        return "none is ordered, since the GPU has one already"
    if unit.session.scalar(select(Gpu.uuid).where(Gpu.uuid == gpu.uuid, is_overridden(unit))) is not None:
        return "none is ordered, since a person's override answers for the GPU"
    if attempt.ended_at is not None and attempt.ended_at < unit.now - _OWN and _was_lent_since(unit, row, gpu):
        return "none is ordered, since other jobs have held the GPU since"
    return None


def _was_lent_since(unit: UnitOfWork, row: VerdictRow, gpu: Gpu) -> bool:
    by_other = (Allocation.tenant_id != row.tenant_id) & (Allocation.created_at > row.created_at)
    found = exists().where(AllocationGpu.allocation_id == Allocation.id, AllocationGpu.gpu_uuid == gpu.uuid)
    return unit.session.scalar(select(Allocation.id).where(by_other, found).limit(1)) is not None


def _num_of_a_day(unit: UnitOfWork, row: VerdictRow) -> int:
    of_tenant: ColumnElement[bool] = VerdictRow.tenant_id == row.tenant_id
    query = (
        select(func.count())
        .join_from(VerdictRow, BurnIn, BurnIn.id == VerdictRow.burn_in_id)
        .where(of_tenant, VerdictRow.burn_in_id.is_not(None), BurnIn.ordered_at > unit.now - _DAY)
    )
    return unit.session.scalar(query) or 0


def _note(unit: UnitOfWork, row: VerdictRow, found: _NotOrdered) -> None:
    row.burn_in_next_at = None if found.again is None else unit.now + found.again
    if row.burn_in_note == found.note:
        return
    row.burn_in_note = found.note
    payload = {"job_id": row.job_id, "verdict_id": row.id, "gpu_uuid": row.gpu, "reason": found.note}
    unit.emit(NOT_ORDERED, "attempt", row.attempt_id, tenant_id=row.tenant_id, payload=payload)


def _give_up(unit: UnitOfWork, row: VerdictRow, gpu: Gpu, policy: Policy) -> None:
    """Abandon the burn-in of a dismissed verdict, if it has not begun and nothing else asks for it."""
    row.burn_in_next_at = None
    if row.burn_in_id is None:
        return
    burn_in = unit.session.get(BurnIn, row.burn_in_id, with_for_update=True, populate_existing=True)
    if burn_in is None or burn_in.state is not BurnInState.ORDERED:
        return
    if is_requested(cases_of(unit, [gpu])[gpu.uuid], policy.health):
        return
    row.burn_in_note = "given up, since the verdict was dismissed"
    abandon(unit, burn_in, f"verdict {row.id} was dismissed")
    admit_takings(unit, [], policy.health, {Way.BURN_IN: [gpu.uuid]})


def _taking(gpu: Gpu) -> Taking:
    return Taking(gpu.uuid, (gpu.uuid,), Way.BURN_IN)
