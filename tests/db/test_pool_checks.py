"""What the pool lends is alive, and is asked about it only where its socket does not show it."""

import select
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, text

from muster.db import pool_checks
from muster.db.engine import make_engine


@pytest.fixture
def small(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """Of one connection, so that each loan is of the same."""
    monkeypatch.setattr(pool_checks, "SURE_FOR_S", 3_600.0)
    engine = make_engine(database_url, pool_size=1, max_overflow=0)
    yield engine
    engine.dispose()


@pytest.fixture
def questions(small: Engine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    asked: list[int] = []
    ask = small.dialect.do_ping

    def counted(connection: Any) -> bool:
        asked.append(connection.info.backend_pid)
        return ask(connection)

    monkeypatch.setattr(small.dialect, "do_ping", counted)
    return asked


def backend(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.scalar(text("SELECT pg_backend_pid()")) or 0)


def cut(engine: Engine, pid: int) -> None:
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT pg_terminate_backend(:pid, 10000)"), {"pid": pid})


def test_one_that_was_just_in_use_is_lent_without_a_question(small: Engine, questions: list[int]) -> None:
    first = backend(small)
    assert [backend(small), backend(small)] == [first, first]
    assert questions == []


def test_one_that_lay_idle_is_queried(small: Engine, questions: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    first = backend(small)
    monkeypatch.setattr(pool_checks, "SURE_FOR_S", 0.0)
    assert backend(small) == first
    assert questions == [first]


def test_one_that_the_server_ended_is_never_lent(small: Engine, engine: Engine, questions: list[int]) -> None:
    first = backend(small)
    cut(engine, first)
    assert backend(small) != first, "no error reaches the next caller"
    assert questions == [first], "its socket had something to say, so it was asked"


def test_a_notice_that_came_meanwhile_costs_a_question_and_no_connection(
    small: Engine, engine: Engine, questions: list[int]
) -> None:
    with small.connect() as connection:
        first = connection.scalar(text("SELECT pg_backend_pid()"))
        connection.execute(text("LISTEN muster_lending"))
        connection.commit()
        assert connection.connection.driver_connection
        socket = connection.connection.driver_connection.fileno()
    with engine.connect() as other:
        other.execute(text("NOTIFY muster_lending"))
        other.commit()
    assert select.select([socket], [], [], 60)[0], "the notice is there before the next loan, not in its answer"
    assert [backend(small), backend(small)] == [first, first]
    assert questions == [first], "once: the question took the notice with it"
