"""Charges of tenants over a stretch, from facts: fast for a month of a large fleet, and without credits.

Credits rest on the evidence of entries, so they stand in statements alone. Here an amount is rounded by tenant, model,
tier and account; in a statement by job too, so the two may differ in the last digit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import NamedTuple

from sqlalchemy import func, literal, select
from sqlalchemy.dialects.postgresql import ARRAY

from control.core.unit_of_work import UnitOfWork
from control.core.visibility import visible_rows
from control.ledger.rates import active_rates
from control.ledger.read import LedgerSums
from control.ledger.statements import tenant_names
from ledger.accounts import CHARGED, Account
from ledger.bills import Line, LineKey, Sums, sums, sums_by
from muster.db.base import UtcTimestamp
from muster.db.models import LedgerFact
from muster.db.queries import tenants
from muster.db.queries.ledger_facts import facts_within
from muster.domain.ids import TenantId
from muster.domain.principals import Permission
from muster.domain.rates import RateCards, Tariff


class _Row(NamedTuple):
    """Time of one price. ``part``: the number of changes of prices before it."""

    tenant_id: str
    account: str
    model: str
    tier: str
    part: int
    num_ms: int


@dataclass(frozen=True, slots=True)
class Spending:
    """``rates``: None where no cards are set, and nothing has a price."""

    rates: RateCards | None
    lines: Sequence[Line]

    @property
    def decimals(self) -> int:
        return 2 if self.rates is None else self.rates.decimals

    @property
    def all(self) -> Sums:
        return sums(self.lines, self.decimals)

    @property
    def by_tenant(self) -> list[tuple[str, Sums]]:
        """The sums of each tenant by its id, the dearest first."""
        return sums_by(self.lines, lambda key: key.tenant_id, self.decimals)

    @property
    def charged(self) -> Decimal | None:
        """None: nothing that was used has a price."""
        return self.all.charged if any(line.price is not None for line in self.lines) else None


@dataclass(frozen=True, slots=True)
class Payer:
    """A tenant by its name, and the topmost tenant that it belongs to; None: it is topmost itself."""

    name: str
    department: str | None


def spending(unit: UnitOfWork, found: LedgerSums) -> Spending:
    """Return what the time of ``found`` costs, which is grouped by account, tenant, tier and model, and whole.

    Where prices change within its hours, they are summed up again, apart between any two changes.
    """
    unit.principal.require(Permission.TENANT_READ)
    rates = active_rates(unit.session)
    tariff = Tariff(() if rates is None else rates.cards)
    changes = tariff.changes(found.since, found.until)
    begins, ends = [found.since, *changes], [*changes, found.until]
    rows = [_Row(**each.values, part=0, num_ms=each.num_ms) for each in found.sums]
    if changes:
        rows = _by_price(unit, found, changes)
    return Spending(rates, [_line(row, tariff, begins[row.part], ends[row.part]) for row in rows if _is_charged(row)])


def payers(unit: UnitOfWork, ids: set[str]) -> Mapping[str, Payer]:
    """Return the tenants with these ids by id. One that was removed since is called by its id."""
    unit.principal.require(Permission.TENANT_READ)
    above = tenants.parents(unit.session)
    tops = {tenant_id: _top(above, TenantId(tenant_id)) for tenant_id in ids}
    names = tenant_names(unit.session, {*ids, *tops.values()})
    return {
        tenant_id: Payer(names.get(tenant_id, tenant_id), None if top == tenant_id else names.get(top, top))
        for tenant_id, top in tops.items()
    }


def _top(above: Mapping[TenantId, TenantId | None], tenant_id: TenantId) -> TenantId:
    while (parent := above.get(tenant_id)) is not None:
        tenant_id = parent
    return tenant_id


def _by_price(unit: UnitOfWork, found: LedgerSums, changes: Sequence[datetime]) -> list[_Row]:
    """Return the sums of the hours of ``found``, apart before and after each change of a price."""
    columns = LedgerFact.tenant_id, LedgerFact.account, LedgerFact.model, LedgerFact.tier
    part = func.width_bucket(LedgerFact.begins_at, literal(changes, ARRAY(UtcTimestamp())))
    num_ms = func.sum(LedgerFact.num_ms)
    query = select(*columns, part, num_ms).group_by(*columns, part).having(num_ms != 0).order_by(*columns, part)
    query = query.where(facts_within(found.since, found.until, cuts=changes), LedgerFact.account.in_(sorted(CHARGED)))
    query = query.where(visible_rows(unit.principal, LedgerFact.tenant_id))
    rows = unit.session.execute(query).all()
    return [_Row(tenant, account, model, tier, number, int(own)) for tenant, account, model, tier, number, own in rows]


def _is_charged(row: _Row) -> bool:
    return bool(row.tenant_id) and Account(row.account) in CHARGED


def _line(row: _Row, tariff: Tariff, begins: datetime, ends: datetime) -> Line:
    key = LineKey(row.tenant_id, "", row.model, row.tier, begins, Account(row.account))
    return Line(key, tariff.price(row.model, row.tier, begins), row.num_ms, 0, 0, ends)
