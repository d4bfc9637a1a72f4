"""The condition on facts of the ledger: by whole days where it may be, in the form that has an index."""

from datetime import UTC, datetime, timedelta

from sqlalchemy import Dialect
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from muster.db.queries.ledger_facts import facts_within

DIALECT: Dialect = PGDialect_psycopg()  # type: ignore[no-untyped-call]  # it has no annotations
FIRST = datetime(2026, 10, 1, tzinfo=UTC)


def test_whole_days_are_one_stretch_of_the_index_by_whole_numbers() -> None:
    """A fraction, or a stretch without an hour, makes PostgreSQL read the whole table: 13 times the time of a month."""
    compiled = facts_within(FIRST, FIRST + timedelta(days=31)).compile(dialect=DIALECT)
    assert [value for value in compiled.params.values() if not isinstance(value, datetime)] == [86_400]
    assert " OR " not in str(compiled)


def test_hours_before_and_after_whole_days_count_too() -> None:
    since, until = FIRST - timedelta(hours=2), FIRST + timedelta(days=2, hours=3)
    compiled = facts_within(since, until, cuts=[FIRST + timedelta(hours=5)]).compile(dialect=DIALECT)
    whole = [value for value in compiled.params.values() if isinstance(value, int)]
    assert whole == [86_400, 3_600, 3_600, 3_600]
