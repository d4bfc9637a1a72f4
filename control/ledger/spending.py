"""What tenants are charged over a stretch, from facts: fast for a month of a large fleet, and without credits.

Credits rest on the evidence of entries, so they stand in statements alone. Here an amount is rounded by tenant, model,
tier and account; in a statement by job too, so the two may differ in the last digit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from itertools import pairwise
from typing import Final

from control.core.paging import Span
from control.core.unit_of_work import UnitOfWork
from control.ledger import read as ledger
from control.ledger.rates import active_rates
from control.ledger.read import LedgerFilter, LedgerGroup, LedgerQuery, LedgerSum, LedgerSums
from control.ledger.statements import tenant_names
from ledger.accounts import Account
from ledger.bills import Line, LineKey, Sums, sums, sums_by
from ledger.pricing import CHARGED
from muster.db.queries import tenants
from muster.domain.ids import TenantId
from muster.domain.principals import Permission
from muster.domain.rates import RateCards, Tariff

_PRICED_BY: Final = (LedgerGroup.ACCOUNT, LedgerGroup.TENANT, LedgerGroup.TIER, LedgerGroup.MODEL)
_MOST_SUMS: Final = 100_000


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
    """Return what the time of ``found`` costs, which is grouped by account, tenant, tier and model.

    Where prices change within its hours, each part between two changes is read again.
    """
    unit.principal.require(Permission.TENANT_READ)
    rates = active_rates(unit.session)
    tariff = Tariff(() if rates is None else rates.cards)
    changes = tariff.changes(found.since, found.until)
    if not changes:
        return Spending(
            rates, [_line(each, tariff, found.since, found.until) for each in found.sums if _is_charged(each)]
        )
    lines, wanted = list[Line](), LedgerFilter(accounts=sorted(CHARGED))
    for begins, ends in pairwise([found.since, *changes, found.until]):
        part = ledger.sums(unit, LedgerQuery(_PRICED_BY, Span(begins, ends), wanted, _MOST_SUMS))
        lines += [_line(each, tariff, begins, ends) for each in part.sums if _is_charged(each)]
    return Spending(rates, lines)


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


def _is_charged(each: LedgerSum) -> bool:
    return bool(each.values["tenant_id"]) and Account(each.values["account"]) in CHARGED


def _line(each: LedgerSum, tariff: Tariff, begins: datetime, ends: datetime) -> Line:
    own = each.values
    key = LineKey(own["tenant_id"], "", own["model"], own["tier"], begins, Account(own["account"]))
    return Line(key, tariff.price(own["model"], own["tier"], begins), each.num_ms, 0, 0, ends)
