"""Fleets that run a job: an hour by the clock, and a host whose telemetry is stored."""

import pytest

from control.core.unit_of_work import UnitOfWorkFactory
from tests.control.conftest import SetClock
from tests.control.ledger.figure_case import Lived
from tests.control.ledger.played_hour import PlayedHour
from tests.control.telemetry.conftest import Stored, stored
from tests.fleet_factory import make_fleet

__all__ = ["stored"]


@pytest.fixture
def played(units: UnitOfWorkFactory, clock: SetClock) -> PlayedHour:
    return PlayedHour(units, clock)


@pytest.fixture
def placed(stored: Stored) -> Lived:
    """Let the factory's host run one job on one of its two GPUs, from its start on."""
    fleet = make_fleet(stored.units, stored.node_id)
    lived = Lived(stored.units, stored.clock, fleet)
    fleet.beat()
    job_id = fleet.submit(shape={"nodes": 1, "gpus_per_node": 1})
    fleet.cycle()
    (attempt,) = fleet.attempts(job_id)
    assert attempt.attempt.placed_at == lived.begin
    return lived
