"""Statements by month: what each tenant used, and what is due, by job, model, tier, price and account.

A statement is computed from the ledger whenever it is read, so a correction or a price set later is in it. It needs no
row of a job or of a key, so the statement of a tenant that left stays. ``closed_until`` states how far it is final.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import ARRAY, ColumnElement, SQLColumnExpression, Text, any_, func, literal, select
from sqlalchemy.orm import Session

from control.core.unit_of_work import UnitOfWork, declare_action
from control.core.visibility import only_tenant_of
from control.ledger.charges import Charges, Scope, attempts_of_lines, charges
from ledger.bills import LineKey
from muster.db.models import Job, LedgerHour, Tenant
from muster.db.queries import tenants
from muster.domain.budgets import month_of
from muster.domain.errors import NotFoundError
from muster.domain.ids import TenantId
from muster.domain.principals import Permission

READ: Final = declare_action("statement.read")
_IS_CLOSED: Final = LedgerHour.closed_at.is_not(None)
_CLOSED_COUNTS: Final = (
    func.count().filter(_IS_CLOSED),
    func.coalesce(func.max(LedgerHour.revision).filter(_IS_CLOSED), 0),
)
"""How many hours are closed, and the newest correction of these."""


@dataclass(frozen=True, slots=True)
class Statement:
    """The charges of a month. ``tenant_names``, ``job_names``: by id; a job that was removed since has none.

    ``attempts``: whose time is in each line, by which it is followed to what happened; empty where they were not asked
    for. ``num_open``: hours of the month that are not closed or not counted yet; ``revision``: the newest correction.
    """

    charges: Charges
    tenant_names: dict[str, str]
    job_names: dict[str, str]
    attempts: dict[LineKey, list[str]]
    num_open: int
    revision: int


@dataclass(frozen=True, slots=True)
class Month:
    """A month that has a statement. ``num_hours``: counted ones. ``num_open``, ``revision``: as of ``Statement``."""

    begins_at: datetime
    num_hours: int
    num_open: int
    revision: int


def list_months(unit: UnitOfWork, limit: int) -> Sequence[Month]:
    """Return the last months, the running one first."""
    unit.principal.require(Permission.TENANT_READ)
    spans = [month_of(unit.now)]
    while len(spans) < limit:
        spans.append(month_of(spans[-1][0] - timedelta(days=1)))
    month = func.date_trunc("month", LedgerHour.hour, "UTC")
    query = select(month, func.count(), *_CLOSED_COUNTS).where(LedgerHour.hour >= spans[-1][0]).group_by(month)
    known = {begins_at: counts for begins_at, *counts in unit.session.execute(query)}
    first = _first_hour(unit.session)
    found = []
    for start, end in spans:
        num_hours, num_closed, revision = known.get(start, (0, 0, 0))
        found.append(Month(start, num_hours, _num_hours(first, start, end) - num_closed, revision))
    return found


def statement(unit: UnitOfWork, month: datetime, *, tenant_id: TenantId | None = None) -> Statement:
    """Return the statement of a month; of one tenant with all below it, or of all that the reader may see.

    ``month``: any time in it. Raises ``NotFoundError`` for a tenant that is not there or not the reader's.
    """
    return usage_in(unit, *month_of(month), tenant_id=tenant_id, with_attempts=True)


def usage_in(
    unit: UnitOfWork,
    start: datetime,
    end: datetime,
    *,
    tenant_id: TenantId | None = None,
    with_attempts: bool = False,
) -> Statement:
    """Return the same over the hours that begin from ``start`` to before ``end``. Raises as ``statement`` does.

    ``with_attempts``: the attempts of each line are read as well.
    """
    unit.principal.require(Permission.TENANT_READ)
    own = only_tenant_of(unit.principal)
    if tenant_id is not None and (own not in {None, tenant_id} or unit.session.get(Tenant, tenant_id) is None):
        raise NotFoundError
    wanted = tenant_id or own
    # A tenant reads its own alone: those below it are other tenants to it (I16).
    those = None if wanted is None else [wanted] if own is not None else list(tenants.below(unit.session, wanted))
    scope = Scope(those)
    found = charges(unit.session, scope, start, end)
    job_ids = {line.key.job_id for line in found.lines if line.key.job_id}
    return Statement(
        found,
        tenant_names(unit.session, {line.key.tenant_id for line in found.lines}),
        job_names(unit.session, job_ids),
        attempts_of_lines(unit.session, scope, found) if with_attempts else {},
        *_state(unit.session, start, end),
    )


def tenant_names(session: Session, ids: set[str]) -> dict[str, str]:
    """Return the names of tenants by id."""
    rows = session.execute(select(Tenant.id, Tenant.name).where(_among(Tenant.id, ids)))
    return {str(tenant_id): name for tenant_id, name in rows}


def job_names(session: Session, ids: set[str]) -> dict[str, str]:
    """Return the names of jobs by id."""
    rows = session.execute(select(Job.id, Job.name).where(_among(Job.id, ids)))
    return {str(job_id): name for job_id, name in rows}


def _among(column: SQLColumnExpression[Any], ids: set[str]) -> ColumnElement[bool]:
    """Return the condition with one parameter: a month may have more jobs than a statement may have parameters."""
    return column == any_(literal(sorted(ids), ARRAY(Text)))


def _state(session: Session, start: datetime, end: datetime) -> Sequence[int]:
    """Return how many hours of the month are not closed, and the newest correction.

    Hours before the first of the ledger are none: nothing was counted in them, and nothing will be.
    """
    query = select(*_CLOSED_COUNTS).where(LedgerHour.hour >= start, LedgerHour.hour < end)
    num_closed, revision = session.execute(query).one()
    return _num_hours(_first_hour(session), start, end) - num_closed, revision


def _first_hour(session: Session) -> datetime | None:
    return session.scalar(select(func.min(LedgerHour.hour)))


def _num_hours(first: datetime | None, start: datetime, end: datetime) -> int:
    """Return the hours of a month from the first of the ledger on."""
    return int((end - min(max(first or start, start), end)).total_seconds()) // 3600
