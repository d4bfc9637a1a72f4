"""Units of work on a migrated database of the test's own."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine

from control.core.unit_of_work import UnitOfWorkFactory
from tests.patient import patient_engine

# Two at once meet on purpose in many of these tests: a busy machine may let one wait long for the other.


class SetClock:
    """A clock that stands until a test moves it."""

    def __init__(self) -> None:
        self.now = datetime(2026, 11, 21, 4, 0, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    with patient_engine(database_url) as engine:
        yield engine


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def units(engine: Engine, clock: SetClock) -> UnitOfWorkFactory:
    return UnitOfWorkFactory(engine, clock)
