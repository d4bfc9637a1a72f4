"""Lease grace: an outage of the API itself ends no lease of a host."""

from datetime import timedelta

import pytest

from control.attempts import reconcile
from control.core.lease_grace import API_SILENCE, lease_grace_since_ms
from control.core.unit_of_work import UnitOfWorkFactory
from muster.domain.principals import system_principal
from muster.domain.times import to_ms
from tests.control.conftest import SetClock

API = system_principal("api")


@pytest.fixture
def clock(clock: SetClock) -> SetClock:
    """It shows 10:00, as in the module's example."""
    clock.now = clock.now.replace(hour=10, minute=0, second=0)
    return clock


def beat(units: UnitOfWorkFactory) -> None:
    with units.begin(API, reconcile.HEARTBEAT, quiet=True) as unit:
        reconcile.beat(unit)


def accepts_heartbeats_since(units: UnitOfWorkFactory) -> int:
    with units.begin(API, reconcile.HEARTBEAT, dry_run=True, quiet=True) as unit:
        return lease_grace_since_ms(unit)


def test_after_an_outage_leases_count_from_the_apis_return(units: UnitOfWorkFactory, clock: SetClock) -> None:
    beat(units)
    began_ms = to_ms(clock.now)
    clock.advance(300)
    assert accepts_heartbeats_since(units) == to_ms(clock.now), "while the API is silent no lease ends"
    beat(units)
    assert accepts_heartbeats_since(units) == began_ms + 300_000
    clock.advance(60)
    beat(units)
    assert accepts_heartbeats_since(units) == to_ms(clock.now), "60 s between two beats are an outage too"


def test_a_short_gap_between_beats_is_no_outage(units: UnitOfWorkFactory, clock: SetClock) -> None:
    beat(units)
    since_ms = accepts_heartbeats_since(units)
    clock.now += API_SILENCE - timedelta(seconds=1)
    beat(units)
    assert accepts_heartbeats_since(units) == since_ms
