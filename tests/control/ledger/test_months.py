"""The months that have a statement: their hours, open hours, and corrections, read at once."""

from datetime import UTC, datetime, timedelta

from sqlalchemy import event

from control.core.unit_of_work import UnitOfWorkFactory
from control.ledger import statements
from control.ledger.statements import Month
from muster.db.models import LedgerHour
from tests.control.conftest import SetClock
from tests.control.ledger.test_charges import add_hours
from tests.fleet_factory import OPERATOR

NOW = datetime(2026, 2, 3, 2, 30, tzinfo=UTC)


def months(units: UnitOfWorkFactory, limit: int) -> list[Month]:
    with units.begin(OPERATOR, statements.READ, quiet=True) as unit:
        return list(statements.list_months(unit, limit))


def test_months_have_their_counted_and_open_hours_and_corrections(units: UnitOfWorkFactory, clock: SetClock) -> None:
    clock.now = NOW
    assert [each.num_hours for each in months(units, 2)] == [0, 0]
    december, january = datetime(2025, 12, 31, 22, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)
    add_hours(units, december, december + timedelta(hours=1), january)
    add_hours(units, january + timedelta(hours=1), closed=False)
    with units.begin(OPERATOR, statements.READ, quiet=True) as unit:
        row = unit.session.get(LedgerHour, january)
        assert row is not None
        row.revision = 3
    running, first, last, older = months(units, 4)
    assert running == Month(datetime(2026, 2, 1, tzinfo=UTC), 0, 28 * 24, 0)
    assert first == Month(january, 2, 31 * 24 - 1, 3)
    assert last == Month(datetime(2025, 12, 1, tzinfo=UTC), 2, 0, 0)
    assert older == Month(datetime(2025, 11, 1, tzinfo=UTC), 0, 0, 0)


def test_a_longer_list_needs_no_more_statements(units: UnitOfWorkFactory, clock: SetClock) -> None:
    clock.now = NOW
    numbers = []
    for limit in (1, 13):
        queries: list[str] = []

        def note(*given: object, queries: list[str] = queries) -> None:
            queries.append(str(given[2]))

        event.listen(units.engine, "before_cursor_execute", note)
        assert len(months(units, limit)) == limit
        event.remove(units.engine, "before_cursor_execute", note)
        numbers.append(len(queries))
    assert numbers[0] == numbers[1]
