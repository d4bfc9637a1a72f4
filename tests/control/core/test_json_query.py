"""One statement answers: a query alone, and a query that comes with a key."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError, ProgrammingError
from sqlalchemy.orm import Session

from control.core.json_query import JsonQuery
from muster.db.engine import make_engine
from muster.db.errors import translation_of
from muster.db.models import ApiKey
from muster.db.pipeline.single_query import query_once
from muster.domain.errors import UnavailableError
from muster.domain.ids import KeyId
from muster.domain.principals import Role
from tests.db.conftest import NOW

SELF = "SELECT pg_backend_pid() AS pid, current_setting('transaction_isolation') AS isolation"


@pytest.fixture
def single(database_url: str) -> Iterator[Engine]:
    """Of one connection, so that each question has the same."""
    engine = make_engine(database_url, pool_size=1, max_overflow=0)
    yield engine
    engine.dispose()


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    with Session(engine) as session:
        yield session


def test_a_question_alone_begins_no_transaction_and_leaves_the_connection_as_it_was(single: Engine) -> None:
    (first,) = query_once(single, SELF, {})
    for _ in range(3):
        assert query_once(single, "SELECT %(n)s::int AS n", {"n": 3})[0].n == 3
    with single.connect() as connection:
        assert connection.scalar(text("SELECT pg_backend_pid()")) == first.pid
        assert connection.in_transaction()
        connection.execute(text("CREATE TEMPORARY TABLE passing (n int)"))
        connection.rollback()
        assert connection.scalar(text("SELECT to_regclass('passing')")) is None, "SQLAlchemy's transactions hold again"


def test_a_fault_of_a_question_is_the_one_sqlalchemy_gives_and_costs_no_connection(single: Engine) -> None:
    with pytest.raises(ProgrammingError):
        query_once(single, "SELECT nothing FROM nowhere", {})
    assert query_once(single, SELF, {})[0].pid


def test_what_the_driver_makes_the_server_forget_is_prepared_again(single: Engine) -> None:
    """The driver deallocates everything after some rollbacks."""
    twice = "SELECT 2 * %(n)s::int AS n"
    for forgotten in (False, True, True):
        if forgotten:
            with single.connect() as connection:
                connection.execute(text("DEALLOCATE ALL"))
                connection.commit()
        for statement in (SELF, twice, SELF):
            assert query_once(single, statement, {"n": 3})
        assert query_once(single, twice, {"n": 3})[0].n == 6


def test_a_prepared_question_is_queried_with_other_values_and_other_types(single: Engine) -> None:
    echo = "SELECT %(value)s::text AS value, %(value)s IS NULL AS is_none, 7 %% 4 AS rest"
    for value in ("a", 3, None, "b%s", 2**40, "$1"):
        expected = None if value is None else str(value), value is None, 3
        assert tuple(query_once(single, echo, {"value": value})[0]) == expected
    for kind, typed in {"text[]": ["x", "y"], "bytea": b"\x00\xff", "timestamptz": NOW, "bigint": 2**40}.items():
        assert query_once(single, f"SELECT %(value)s::{kind} AS value", {"value": typed})[0].value == typed
    with pytest.raises(KeyError):
        query_once(single, echo, {})
    with pytest.raises(ProgrammingError):
        query_once(single, "SELECT 7 % 4", {})


def test_threads_that_ask_do_not_wait_for_one_another(engine: Engine) -> None:
    """Libpq waits without Python's lock: otherwise one sleeper would block the thread that wakes it."""
    with ThreadPoolExecutor(1) as beside, engine.connect() as held:
        held.execute(text("SELECT pg_advisory_lock(7)"))
        waiting = beside.submit(query_once, engine, "SELECT pg_advisory_xact_lock(7)::text AS done", {})
        while not query_once(engine, "SELECT 1 AS one FROM pg_locks WHERE locktype = 'advisory' AND NOT granted", {}):
            assert not waiting.done()
        held.execute(text("SELECT pg_advisory_unlock(7)"))
        assert len(waiting.result()) == 1


def test_a_connection_that_was_cut_in_a_question_is_unavailable_and_is_lent_no_more(
    single: Engine, engine: Engine
) -> None:
    (before,) = query_once(single, SELF, {})
    with pytest.raises(DBAPIError) as cut:
        query_once(single, "SELECT pg_terminate_backend(pg_backend_pid(), 10000)", {})
    assert isinstance(translation_of(cut.value), UnavailableError)
    (after,) = query_once(single, SELF, {})
    assert after.pid != before.pid
    with engine.connect() as connection:
        query = text("SELECT count(*) FROM pg_stat_activity WHERE pid = :pid")
        assert connection.scalar(query, {"pid": before.pid}) == 0


def test_a_question_with_a_key_works_for_none_but_its_holder(session: Session, engine: Engine) -> None:
    """The expression fails when it is computed: an answer without a fault shows that nothing was computed."""
    session.add(ApiKey(id=KeyId("key_1"), prefix="p", secret_sha256=b"s", name="a", role=Role.AUDITOR, created_at=NOW))
    session.commit()
    question = JsonQuery("to_json(1 / (length(k.name) - 1))", int)
    opens = {"prefix": "p", "digest": b"s", "now": NOW, "roles": ["auditor"]}
    with pytest.raises(DBAPIError, match="division by zero"):
        query_once(engine, question.by_key, opens)
    others: list[dict[str, Any]] = [{"digest": b"t"}, {"roles": ["operator"]}, {"roles": []}]
    for other in others:
        (row,) = query_once(engine, question.by_key, {**opens, **other})
        assert (row.id, row.answer) == ("key_1", None)
    assert query_once(engine, question.by_key, {**opens, "prefix": "q"}) == []
    session.get_one(ApiKey, KeyId("key_1")).expires_at = NOW
    session.commit()
    assert query_once(engine, question.by_key, opens)[0].answer is None
    key = session.get_one(ApiKey, KeyId("key_1"))
    key.expires_at, key.revoked_at = None, NOW
    session.commit()
    assert query_once(engine, question.by_key, opens)[0].answer is None
