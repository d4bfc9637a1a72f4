"""One host with real programs."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from control.core.unit_of_work import UnitOfWorkFactory
from tests.fleet_factory import make_fleet
from tests.host_case import HostCase
from tests.patient import patient_engine


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    with patient_engine(database_url) as engine:
        yield engine


@pytest.fixture
def job_python() -> str:
    """The interpreter that runs jobs under torchrun. A module in which no test is about its start has a warm one."""
    return sys.executable


@pytest.fixture
def host(engine: Engine, tmp_path: Path, job_python: str) -> Iterator[HostCase]:
    case = HostCase(make_fleet(UnitOfWorkFactory(engine)), tmp_path / "host", python=job_python)
    yield case
    case.close()
