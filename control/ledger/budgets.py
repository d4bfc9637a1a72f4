"""Budgets of tenants in money: what is spent of each, notices at its shares, and what follows once it is spent.

Spent are the priced hours of the ledger after credits, and the time since the last counted hour. So a budget is judged
by what is known now, and a later correction counts as well. Nothing is stopped without the notice of its tier, also
where a budget is set below what is spent.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from control.core.records import record_of
from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory, declare_action
from control.core.visibility import may_see, visible_rows
from control.ledger.charges import Charges, Scope, charges
from control.ledger.rates import active_rates
from muster.db.models import Tenant, TenantBudget
from muster.db.queries import tenants
from muster.domain.budgets import SPENT, BudgetAction, BudgetWindow, month_of, share_of, share_reached
from muster.domain.errors import ConflictError, NotFoundError, ValidationFailedError
from muster.domain.ids import TenantId
from muster.domain.principals import Permission, Principal
from muster.domain.times import in_utc

SET: Final = declare_action("tenant_budget.set")
LIFT: Final = declare_action("tenant_budget.lift")
READ: Final = declare_action("tenant_budget.read")
JUDGE: Final = declare_action("tenant_budget.judge")


class TenantBudgetRecord(msgspec.Struct, frozen=True):
    """A budget. Its columns' meanings are in ``muster.db.models.money``."""

    tenant_id: TenantId
    amount: Decimal
    currency: str
    window: BudgetWindow
    action: BudgetAction
    shares: list[int]
    begins_at: datetime
    set_at: datetime
    set_by: str
    reason: str
    ends_at: datetime | None
    lifted_at: datetime | None


@dataclass(frozen=True, slots=True)
class Standing:
    """A budget with what is spent of it from ``start`` to ``end``. ``unpriced_ms``: time that counts for nothing.

    ``fault``: why it cannot be judged; empty: it can.
    """

    row: TenantBudgetRecord
    start: datetime
    end: datetime
    spent: Decimal
    share: int
    unpriced_ms: int
    fault: str = ""

    @property
    def is_spent(self) -> bool:
        return not self.fault and self.share >= SPENT


@dataclass(frozen=True, slots=True)
class Wanted:
    """A budget to set. Without ``ends_at`` it is one of each calendar month; with it, it begins now or at a time."""

    amount: Decimal
    action: BudgetAction
    shares: Sequence[int]
    begins_at: datetime | None = None
    ends_at: datetime | None = None


def set_budget(unit: UnitOfWork, tenant_id: TenantId, wanted: Wanted, *, reason: str) -> Standing:
    """Set the budget of a tenant with all below it, in place of the one before.

    One that is spent already has its notice in the same transaction, and its action from then on.

    Raises:
        NotFoundError: there is no such tenant.
        ConflictError: no rate cards are set, so nothing has a price.
        ValidationFailedError: it ends before it begins, or before now; or a time is in no year from 1 to 9999 in UTC.
    """
    unit.principal.require(Permission.TENANT_WRITE)
    if unit.session.get(Tenant, tenant_id, with_for_update={"key_share": True}) is None:
        raise NotFoundError
    rates = active_rates(unit.session)
    if rates is None:
        suggestion = "Set them first with `muster rates set`."
        raise ConflictError("no rate cards are set, so nothing would count", suggestion=suggestion)
    wanted = _in_utc(wanted)
    _require_window(unit, wanted)
    before = _row_of(unit.session, tenant_id)
    if before is not None:
        before.lifted_at, before.lifted_by = unit.now, unit.principal.name
        unit.session.flush()
    row = TenantBudget(
        tenant_id=tenant_id,
        amount=wanted.amount,
        currency=rates.currency,
        window=BudgetWindow.MONTH if wanted.ends_at is None else BudgetWindow.UNTIL,
        action=wanted.action,
        shares=sorted(set(wanted.shares)),
        begins_at=wanted.begins_at or unit.now,
        ends_at=wanted.ends_at,
        set_at=unit.now,
        set_by=unit.principal.name,
        reason=reason,
    )
    unit.session.add(row)
    unit.session.flush()
    found = _standing(unit.session, row, unit.now)
    detail = {**_words(found), "action": str(wanted.action), "window": str(row.window), "reason": reason}
    detail["before"] = None if before is None else _plain(before.amount)
    unit.emit("tenant.budget_set", "tenant", tenant_id, tenant_id=tenant_id, payload=detail)
    unit.audit("tenant_budget.set", "tenant", tenant_id, tenant_id=tenant_id, reason=reason, detail=detail)
    _note(unit, row, found)
    return found


def lift(unit: UnitOfWork, tenant_id: TenantId, *, reason: str) -> TenantBudgetRecord:
    """End a tenant's budget: it refuses and stops nothing more. Raises ``NotFoundError`` where it has none."""
    unit.principal.require(Permission.TENANT_WRITE)
    unit.session.get(Tenant, tenant_id, with_for_update={"key_share": True})
    row = _row_of(unit.session, tenant_id)
    if row is None:
        raise NotFoundError("the tenant has no budget")
    row.lifted_at, row.lifted_by = unit.now, unit.principal.name
    detail = {"amount": _plain(row.amount), "currency": row.currency, "reason": reason}
    unit.emit("tenant.budget_lifted", "tenant", tenant_id, tenant_id=tenant_id, payload=detail)
    unit.audit("tenant_budget.lift", "tenant", tenant_id, tenant_id=tenant_id, reason=reason, detail=detail)
    unit.session.flush()
    return record_of(row, TenantBudgetRecord)


def show(unit: UnitOfWork, tenant_id: TenantId) -> Standing:
    """Return a visible tenant's budget and what is spent of it. Raises ``NotFoundError`` where it has none."""
    unit.principal.require(Permission.TENANT_READ)
    row = _row_of(unit.session, tenant_id) if may_see(unit.principal, tenant_id) else None
    if row is None:
        raise NotFoundError("the tenant has no budget")
    return _standing(unit.session, row, unit.now)


def list_budgets(unit: UnitOfWork, limit: int) -> Sequence[Standing]:
    """Return the budgets of visible tenants that are not lifted, by tenant, with what is spent of each."""
    unit.principal.require(Permission.TENANT_READ)
    query = select(TenantBudget).where(
        visible_rows(unit.principal, TenantBudget.tenant_id), TenantBudget.lifted_at.is_(None)
    )
    rows = unit.session.scalars(query.order_by(TenantBudget.tenant_id).limit(limit)).all()
    return [_standing(unit.session, row, unit.now) for row in rows]


def spent_refusal(session: Session, tenant_id: TenantId, now: datetime, *actions: BudgetAction) -> str | None:
    """Return why a job of the tenant may not start: its budget, or one above it, is spent; or None.

    ``actions``: of such budgets alone; none: of all that refuse new jobs. It reads what was noticed, and sums up
    nothing: each submission asks.
    """
    query = select(TenantBudget).where(
        TenantBudget.tenant_id.in_(tenants.line(session, tenant_id)),
        TenantBudget.lifted_at.is_(None),
        TenantBudget.action.in_(actions or (BudgetAction.NO_NEW_JOBS, BudgetAction.STOP_RECLAIMABLE)),
        TenantBudget.noticed_share >= SPENT,
    )
    for row in session.scalars(query):
        start, end = _window(row, now)
        if row.noticed_window == start and start <= now < end:
            whose = "the tenant" if row.tenant_id == tenant_id else "its department"
            return (
                f"the budget of {whose}, {_plain(row.amount)} {row.currency} until {end:%Y-%m-%d %H:%M} UTC, is spent"
            )
    return None


def judge_budgets_once(units: UnitOfWorkFactory, principal: Principal) -> list[Standing]:
    """Give the notices that are due, and return the budgets that are spent and stop jobs."""
    with units.read() as session:
        now = units.clock()
        rows = session.scalars(select(TenantBudget).where(TenantBudget.lifted_at.is_(None))).all()
        found = [(row.id, row, _standing(session, row, now)) for row in rows if _is_open(row, now)]
    for row_id in [row_id for row_id, row, each in found if _is_due(row, each)]:
        with units.begin(principal, JUDGE) as unit:
            row = unit.session.get(TenantBudget, row_id, with_for_update=True)
            if row is not None and row.lifted_at is None:
                # Another worker may have noted a newer share since the sum above.
                _note(unit, row, _standing(unit.session, row, unit.now))
    return [each for _, _, each in found if each.is_spent and each.row.action is BudgetAction.STOP_RECLAIMABLE]


def _in_utc(wanted: Wanted) -> Wanted:
    """Return it with times in UTC, as they are stored and read: one that has none there could not be read again."""
    found: dict[str, Any] = {}
    for name in ("begins_at", "ends_at"):
        at: datetime | None = getattr(wanted, name)
        try:
            found[name] = None if at is None else in_utc(at)
        except ValueError as fault:
            raise ValidationFailedError.at(f"/{name}", "no_moment", str(fault)) from None
    return replace(wanted, **found)


def _require_window(unit: UnitOfWork, wanted: Wanted) -> None:
    if wanted.ends_at is None:
        if wanted.begins_at is not None:
            detail = "a monthly budget has no beginning: leave it out, or set `ends_at` too"
            raise ValidationFailedError.at("/begins_at", "not_of_a_month", detail)
    elif wanted.ends_at <= max(unit.now, wanted.begins_at or unit.now):
        detail = "it must be after the beginning, and after now"
        raise ValidationFailedError.at("/ends_at", "ends_too_early", detail)


def _row_of(session: Session, tenant_id: TenantId) -> TenantBudget | None:
    query = select(TenantBudget).where(TenantBudget.tenant_id == tenant_id, TenantBudget.lifted_at.is_(None))
    return session.scalar(query)


def _window(row: TenantBudget, now: datetime) -> tuple[datetime, datetime]:
    return month_of(now) if row.ends_at is None else (row.begins_at, row.ends_at)


def _is_open(row: TenantBudget, now: datetime) -> bool:
    start, end = _window(row, now)
    return start <= now < end


def _standing(session: Session, row: TenantBudget, now: datetime) -> Standing:
    start, end = _window(row, now)
    scope = Scope(list(tenants.below(session, row.tenant_id)))
    # Entries are of whole hours: the hour in which a window begins counts as a whole.
    found = charges(session, scope, start.replace(minute=0, second=0, microsecond=0), end, now=now)
    fault = "" if found.rates is not None and found.rates.currency == row.currency else "the currency has changed"
    stored = record_of(row, TenantBudgetRecord)
    return Standing(stored, start, end, found.spent, share_of(found.spent, row.amount), _unpriced(found), fault)


def _unpriced(found: Charges) -> int:
    return sum(line.num_ms for line in (*found.lines, *found.running) if line.price is None)


def _is_due(row: TenantBudget, found: Standing) -> bool:
    """Return whether another share is reached, or no longer is: a correction or a credit may take it back."""
    reached = 0 if found.fault else share_reached(found.share, row.shares)
    return reached != (row.noticed_share if row.noticed_window == found.start else 0)


def _note(unit: UnitOfWork, row: TenantBudget, found: Standing) -> None:
    """Store the share that is reached, with an event where it is a higher one."""
    reached = 0 if found.fault else share_reached(found.share, row.shares)
    before = row.noticed_share if row.noticed_window == found.start else 0
    row.noticed_share, row.noticed_window = reached, found.start
    if reached != before:
        kind = "tenant.budget_notice" if reached > before else "tenant.budget_share_fell"
        payload = {**_words(found), "reached": reached, "action": str(row.action)}
        unit.emit(kind, "tenant", row.tenant_id, tenant_id=row.tenant_id, payload=payload)
    unit.session.flush()


def _words(found: Standing) -> dict[str, Any]:
    row = found.row
    amounts = {"amount": _plain(row.amount), "spent": f"{found.spent:f}", "currency": row.currency}
    return {**amounts, "share": found.share, "until": found.end.isoformat()}


def _plain(amount: Decimal) -> str:
    """Return an amount without an exponent and without zeros at its end, as it was set."""
    return f"{amount.normalize():f}"
