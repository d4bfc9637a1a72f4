"""One host with real programs."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from control.core.unit_of_work import UnitOfWorkFactory
from muster.db.engine import make_engine
from tests.fleet_factory import make_fleet
from tests.host_case import HostCase
from tests.patient import PATIENT
from tests.workers.host.burial import bury


@pytest.fixture(autouse=True)
def _buried_attempts(tmp_path: Path) -> Iterator[None]:
    """Last of all, when no launcher turns any more: nothing of an attempt may outlive its test."""
    yield
    for folder in tmp_path.rglob("attempts/*/"):
        bury(folder)


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = make_engine(database_url, limits=PATIENT)
    yield engine
    engine.dispose()


@pytest.fixture
def host(engine: Engine, tmp_path: Path) -> Iterator[HostCase]:
    case = HostCase(make_fleet(UnitOfWorkFactory(engine)), tmp_path / "host")
    yield case
    case.close()
