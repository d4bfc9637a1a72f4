"""Statements by libpq: prepared once and for as long as the connection lives, in whatever transaction they stand."""

import os
import signal
import threading
from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError, InternalError, ProgrammingError
from sqlalchemy.orm import Session

from muster.db.engine import make_engine
from muster.db.pipeline import pg_pipeline
from muster.db.pipeline.batched import query_together
from muster.db.pipeline.pg_pipeline import Query
from muster.db.pipeline.single_query import query_once
from tests.waiting import wait_until

PREPARED: Query = ("SELECT name, statement FROM pg_prepared_statements WHERE name LIKE 'muster%%' ORDER BY name", {})
ONE: Query = ("SELECT %(number)s::int AS number", {"number": 1})
SLEEPING = "SELECT FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%%' AND state = 'active'"


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    """Of one connection, so that what is prepared on it is found again."""
    engine = make_engine(database_url, pool_size=1, max_overflow=0)
    yield engine
    engine.dispose()


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    with Session(engine) as session:
        yield session


def prepared(session: Session) -> list[str]:
    (rows,) = query_together(session, PREPARED)
    return [row.statement for row in rows if "pg_prepared" not in row.statement]


def test_what_was_prepared_stays_so_over_commit_and_rollback(engine: Engine) -> None:
    for end in ("commit", "rollback", "rollback"):
        with Session(engine) as session:
            (rows,) = query_together(session, ONE)
            for _ in range(6):
                session.execute(text("SELECT 1 + :x"), {"x": 1})  # the driver prepares frequent statements by itself
            assert rows[0].number == 1
            assert prepared(session) == ["SELECT $1::int AS number"]
            getattr(session, end)()


def test_a_rollback_undoes_what_was_done_and_a_failed_transaction_too(session: Session) -> None:
    add: Query = ("INSERT INTO outbox VALUES (DEFAULT, 'a', 'k', '{}', now(), now(), 0)", {})
    count: Query = ("SELECT count(*) AS num FROM outbox", {})
    query_together(session, add)
    session.rollback()
    query_together(session, add)
    with pytest.raises(ProgrammingError):
        session.execute(text("SELECT nothing FROM nowhere"))
    session.rollback()
    (rows,) = query_together(session, count)
    assert rows[0].num == 0


def test_where_the_driver_forgets_all_it_is_prepared_again(session: Session) -> None:
    query_together(session, ONE)
    for _ in range(6):
        session.execute(text("SELECT 1 + :x"), {"x": 1})
    point = session.begin_nested()
    session.execute(text("SELECT 2"))
    point.rollback()
    session.execute(text("SELECT 3"))
    assert prepared(session) == []
    (rows,) = query_together(session, ONE)
    assert rows[0].number == 1
    assert len(prepared(session)) == 1


def test_what_could_not_be_prepared_reports_it_each_time_and_which_it_was(session: Session) -> None:
    for _ in range(2):
        with pytest.raises(ProgrammingError, match="nowhere") as refused:
            query_together(session, ONE, ("SELECT nothing FROM nowhere", {}), ("SELECT 3 AS three", {}))
        assert refused.value.statement == "SELECT nothing FROM nowhere"
        session.rollback()
    (rows,) = query_together(session, ("SELECT 3 AS three", {}))
    assert rows[0].three == 3


def test_beyond_so_many_they_are_sent_unprepared(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pg_pipeline, "MAX_PREPARED", 1)
    two: Query = ("SELECT %(number)s::int + %(number)s::int AS twice, 7 %% 4 AS rest", {"number": 2})
    ((one,), (first,), (second,)) = query_together(session, ONE, two, two)
    assert (one.number, first.twice, second.twice, second.rest) == (1, 4, 4, 3)
    monkeypatch.undo()
    assert prepared(session) == ["SELECT $1::int AS number"]


def test_a_parameter_of_another_type_is_another_statement(session: Session) -> None:
    same = "SELECT pg_typeof(%(value)s)::text AS kind"
    kinds = [query_together(session, (same, {"value": value}))[0][0].kind for value in (1.5, [7], True, 1.5)]
    assert kinds == ["double precision", "smallint[]", "boolean", "double precision"]
    assert len(prepared(session)) == 3


def test_long_questions_and_long_answers_pass_each_other(session: Session) -> None:
    """More than a socket's buffers hold, both ways at once: neither end waits for the other to read."""
    long = "x" * 3_000_000
    echo: Query = ("SELECT %(text)s::text AS text, generate_series(1, 2) AS number", {"text": long})
    answers = query_together(session, echo, echo, echo)
    assert [[(len(row.text), row.number) for row in rows] for rows in answers] == [[(3_000_000, 1), (3_000_000, 2)]] * 3


def test_the_transaction_is_of_the_kind_that_the_session_requested(session: Session) -> None:
    session.connection(execution_options={"postgresql_readonly": True, "isolation_level": "REPEATABLE READ"})
    level, read_only = query_together(session, ("SHOW transaction_isolation", {}), ("SHOW transaction_read_only", {}))
    assert (level[0].transaction_isolation, read_only[0].transaction_read_only) == ("repeatable read", "on")
    with pytest.raises(InternalError, match="read-only"):
        query_together(session, ("DELETE FROM outbox", {}))
    session.rollback()


def test_alone_it_leaves_no_transaction_open(engine: Engine) -> None:
    (row,) = query_once(engine, *ONE)
    assert row.number == 1
    with pytest.raises(DBAPIError, match="nowhere"):
        query_once(engine, "SELECT nothing FROM nowhere", {})
    (row,) = query_once(engine, "SELECT count(*) AS num FROM pg_stat_activity WHERE state LIKE 'idle in%%'", {})
    assert row.num == 0


def test_an_interruption_closes_the_connection_and_the_next_one_works(
    engine: Engine, session: Session, database_url: str
) -> None:
    """An unread answer would be treated as the next statement's."""
    other = make_engine(database_url)

    def interrupt() -> None:
        wait_until(lambda: len(query_once(other, SLEEPING, {})) == 1)
        os.kill(os.getpid(), signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        query_together(session, ("SELECT pg_sleep(%(seconds)s)", {"seconds": 5}))
    interrupter.join()
    session.close()
    other.dispose()
    (row,) = query_once(engine, *ONE)
    assert row.number == 1


def test_a_statement_whose_answer_a_migration_has_changed_is_planned_again(engine: Engine, database_url: str) -> None:
    """Of a connection that a pool keeps for days: "cached plan must not change result type" must not stay with it."""
    everything: Query = ("SELECT * FROM grows", {})
    elsewhere = make_engine(database_url)
    with elsewhere.begin() as migration:
        migration.execute(text("CREATE TABLE grows (a int)"))
    try:
        assert query_once(engine, *everything) == []
        with elsewhere.begin() as migration:
            migration.execute(text("ALTER TABLE grows ADD COLUMN b text"))
        assert query_once(engine, *everything) == []
    finally:
        with elsewhere.begin() as migration:
            migration.execute(text("DROP TABLE grows"))
        elsewhere.dispose()
