"""One stage a test."""

import pytest

from control.core.unit_of_work import UnitOfWorkFactory
from tests.control.conftest import SetClock
from tests.control.reclaim.stage import Stage, make_stage


@pytest.fixture
def stage(units: UnitOfWorkFactory, clock: SetClock) -> Stage:
    """One host of two GPUs."""
    return make_stage(units, clock)


@pytest.fixture
def two_hosts(units: UnitOfWorkFactory, clock: SetClock) -> Stage:
    return make_stage(units, clock, num_hosts=2)
