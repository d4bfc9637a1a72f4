"""Rows that were made once stand in the next database as the services stored them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import cast

import pytest
from sqlalchemy import Engine, text

from control.core.unit_of_work import UnitOfWorkFactory, utc_now
from local.postgres import PostgresServer
from muster.domain.ids import NodeId
from tests.control.conftest import SetClock
from tests.databases import Connection, Databases, rows_of, sequences_of
from tests.filled_once import FRESH, filled, filled_world
from tests.fleet_factory import enrol_host
from tests.patient import patient_engine

TABLES = "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' ORDER BY relname"


class Filling:
    """A host of a name that no other fill has, and how often it was enrolled."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.num_fills = 0

    def into(self, engine: Engine, now: datetime) -> NodeId:
        units = UnitOfWorkFactory(engine, lambda: now)

        def fill() -> NodeId:
            self.num_fills += 1
            return enrol_host(units, "it's \\ alpha")

        return filled(units, self.name, fill)


@pytest.fixture
def two(postgres_server: PostgresServer, databases: Databases) -> Iterator[tuple[Engine, Engine]]:
    with (
        databases.lent() as one,
        databases.lent() as other,
        patient_engine(postgres_server.url(one)) as first,
        patient_engine(postgres_server.url(other)) as second,
    ):
        yield first, second


def stored(engine: Engine) -> tuple[dict[str, bytes], dict[str, tuple[int, bool]]]:
    """Return the rows of each table, and where each sequence stands."""
    with engine.connect() as connection:
        tables = list(connection.scalars(text(TABLES)))
        driver = cast("Connection", connection.connection.driver_connection)
        return {name: rows_of(driver, name) for name in tables}, sequences_of(driver)


def test_it_is_filled_once_and_each_database_holds_the_same(two: tuple[Engine, Engine]) -> None:
    filling, now = Filling("once"), utc_now()
    ids = [filling.into(engine, now) for engine in two]
    first, second = map(stored, two)
    assert (len(set(ids)), filling.num_fills) == (1, 1)
    assert ids[0].encode() in first[0]["nodes"]
    assert first == second


@pytest.mark.parametrize("age", [FRESH + timedelta(seconds=1), timedelta(seconds=-1)])
def test_rows_of_another_time_are_made_again(two: tuple[Engine, Engine], age: timedelta) -> None:
    filling, now = Filling(f"aged {age}"), utc_now()
    first, second = filling.into(two[0], now), filling.into(two[1], now + age)
    assert first != second
    assert filling.num_fills == 2


@dataclass
class Made:
    units: UnitOfWorkFactory
    clock: SetClock
    node_id: NodeId
    names: list[str] = field(default_factory=list)


def test_a_world_is_each_tests_own_and_its_clock_shows_when_it_was_made(two: tuple[Engine, Engine]) -> None:
    node_ids = set()
    for engine in two:
        clock = SetClock()
        began_at, units = clock.now, UnitOfWorkFactory(engine, clock)

        def make(units: UnitOfWorkFactory = units, clock: SetClock = clock) -> Made:
            clock.advance(7)
            return Made(units, clock, enrol_host(units, "of-a-world"))

        made = filled_world(units, clock, "a world", make)
        assert (made.units, made.clock, made.names) == (units, clock, [])
        assert clock.now == began_at + timedelta(seconds=7)
        made.names.append("what a test alters stays in it")
        node_ids.add(made.node_id)
    assert len(node_ids) == 1, "it was made once"


def test_a_database_that_was_reached_before_is_filled_by_the_services(two: tuple[Engine, Engine]) -> None:
    filling, now = Filling("reached"), utc_now()
    stored(two[1])
    assert filling.into(two[0], now) != filling.into(two[1], now)
    assert filling.num_fills == 2
