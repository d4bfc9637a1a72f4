"""What the tests of the watch share."""

import pytest

from control.core.unit_of_work import UnitOfWorkFactory
from tests.control.conftest import SetClock
from tests.control.watch.slow_job import SlowJob
from tests.control.watch.stalled_job import StalledJob


@pytest.fixture
def stalled(units: UnitOfWorkFactory, clock: SetClock) -> StalledJob:
    return StalledJob(units, clock)


@pytest.fixture
def slow(units: UnitOfWorkFactory, clock: SetClock) -> SlowJob:
    return SlowJob(units, clock)
