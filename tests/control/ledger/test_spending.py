"""What tenants are charged over a stretch: by the prices of their hours, by tenant and department."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from decimal import Decimal

from sqlalchemy import Engine, event, text

from control.core.paging import Span
from control.core.unit_of_work import UnitOfWorkFactory
from control.ledger import read as ledger
from control.ledger.read import LedgerGroup, LedgerQuery
from control.ledger.spending import Payer, Spending, payers, spending
from ledger.accounts import Account
from muster.db.models import Tenant
from muster.domain.ids import TenantId
from tests.control.ledger.test_charges import MODEL, MS, NOON, card, set_cards
from tests.fleet_factory import OPERATOR, make_fleet

HOUR = timedelta(hours=1)
TEAM = TenantId("ten_team")
ADD = text("""
    INSERT INTO ledger_facts (begins_at, span_s, account, cause, tenant_id, tier, job_class, model, cohort_key, rack,
        site, num_ms)
    VALUES (:at, :span_s, :account, '', :tenant, :tier, '', :model, 'c', 'r1', '', :ms)
    ON CONFLICT ON CONSTRAINT pk_ledger_facts DO UPDATE SET num_ms = ledger_facts.num_ms + excluded.num_ms
""")


def add_fact(
    units: UnitOfWorkFactory, at: datetime, account: Account, num_ms: int, tenant_id: str | None = None
) -> None:
    """Add GPU time to the facts of its hour and of its day: of a tenant in on_demand, or of none."""
    given = {
        "account": account.value,
        "tenant": tenant_id or "",
        "tier": "on_demand" if tenant_id else "",
        "ms": num_ms,
    }
    with units.begin(OPERATOR, ledger.READ, quiet=True) as unit:
        for begins, span_s in ((at, 3600), (at.replace(hour=0), 86_400)):
            unit.session.execute(ADD, {**given, "at": begins, "span_s": span_s, "model": MODEL})


@contextmanager
def recording(engine: Engine, statements: list[str]) -> Iterator[None]:
    """Add the statements that the engine sends to ``statements``."""

    def add(*sent: object) -> None:
        statements.append(str(sent[2]))

    event.listen(engine, "before_cursor_execute", add)
    try:
        yield
    finally:
        event.remove(engine, "before_cursor_execute", add)


def spent(units: UnitOfWorkFactory, num_hours: int = 4) -> Spending:
    groups = (LedgerGroup.ACCOUNT, LedgerGroup.TENANT, LedgerGroup.TIER, LedgerGroup.MODEL)
    with units.begin(OPERATOR, ledger.READ, dry_run=True, quiet=True) as unit:
        span = Span(NOON, NOON + num_hours * HOUR)
        return spending(unit, ledger.sums(unit, LedgerQuery(groups, span, limit=None)))


def test_each_hour_has_its_price_and_the_proof_of_cleanness_none(units: UnitOfWorkFactory) -> None:
    for hours in range(3):
        add_fact(units, NOON + hours * HOUR, Account.PRODUCTIVE, 2 * MS, TEAM)
    add_fact(units, NOON, Account.CLEANING, MS, TEAM)
    add_fact(units, NOON, Account.FREE, MS)
    assert spent(units).charged is None, "nothing has a price"
    assert spent(units).all.unpriced_ms == 6 * MS
    set_cards(units, card(NOON - HOUR, "2.00"))
    assert spent(units).charged == Decimal("12.00")
    set_cards(units, card(NOON - HOUR, "2.00"), card(NOON + 2 * HOUR, "5.00"))
    found = spent(units)
    assert found.charged == Decimal("18.00")
    assert [(tenant_id, own.num_ms) for tenant_id, own in found.by_tenant] == [(TEAM, 6 * MS)]


def test_prices_that_change_within_days_and_between_them_are_read_at_once(units: UnitOfWorkFactory) -> None:
    midnight = NOON + 12 * HOUR
    num_hours = 12 + 4 * 24 + 6
    for number in range(num_hours):
        add_fact(units, NOON + number * HOUR, Account.PRODUCTIVE, MS, TEAM)
    cards = [card(NOON - HOUR, "1.00"), card(NOON + 5 * HOUR, "2.00"), card(midnight + 24 * HOUR, "3.00")]
    cards += [card(midnight + (48 + number) * HOUR, f"{4 + number}.00") for number in range(7, 10)]
    set_cards(units, *cards)
    statements: list[str] = []
    with recording(units.engine, statements):
        found = spent(units, num_hours)
    prices = 5 * 1 + (7 + 24) * 2 + (24 + 7) * 3 + 11 + 12 + (24 - 9 + 24 + 6) * 13
    assert found.charged == Decimal(prices)
    assert found.all.num_ms == num_hours * MS
    assert len([each for each in statements if "ledger_facts" in each]) == 2


def test_a_team_is_of_its_topmost_tenant(units: UnitOfWorkFactory) -> None:
    fleet = make_fleet(units)
    with units.begin(OPERATOR, ledger.READ, quiet=True) as unit:
        unit.session.add(Tenant(id=TEAM, name="team", created_at=unit.now, parent_id=fleet.tenant_id))
        top = unit.session.get_one(Tenant, fleet.tenant_id).name
        unit.session.flush()
        assert payers(unit, {TEAM, fleet.tenant_id, "ten_removed"}) == {
            TEAM: Payer("team", top),
            fleet.tenant_id: Payer(top, None),
            "ten_removed": Payer("ten_removed", None),
        }
