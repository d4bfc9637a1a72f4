"""A setting of a person with an end: at its end it is over, and that is reported."""

from datetime import timedelta

import pytest
from sqlalchemy import select

from control.core.unit_of_work import UnitOfWorkFactory
from control.fleet import cordons, overrides
from control.fleet.expiry import expire
from muster.db.models import AuditEntry, Cordon, Event, GpuOverride
from muster.domain.ids import GpuUuid
from muster.domain.principals import system_principal
from muster.domain.states import Standing
from tests.control.conftest import SetClock
from tests.fleet_factory import OPERATOR, Fleet, make_fleet

GPU = GpuUuid("GPU-alpha-0")
RECONCILER = system_principal("reconciler")


@pytest.fixture
def fleet(units: UnitOfWorkFactory) -> Fleet:
    return make_fleet(units)


def reported(fleet: Fleet, kind: str) -> list[Event]:
    with fleet.units.read() as session:
        return list(session.scalars(select(Event).where(Event.kind == kind)))


def audited(fleet: Fleet, action: str) -> int:
    with fleet.units.read() as session:
        return len(session.scalars(select(AuditEntry.id).where(AuditEntry.action == action)).all())


def test_a_cordon_that_runs_out_is_reported_once_and_ended_when_it_stated(fleet: Fleet, clock: SetClock) -> None:
    until = clock() + timedelta(hours=1)
    with fleet.units.begin(OPERATOR, cordons.CREATE) as unit:
        cordon_id = cordons.create(unit, reason="fan", node_id=fleet.node_id, until=until).id
        cordons.create(unit, reason="without an end", gpu_uuid=GPU)
    assert expire(fleet.units, RECONCILER) == 0
    clock.advance(2 * 3600)
    assert expire(fleet.units, RECONCILER) == 1
    assert expire(fleet.units, RECONCILER) == 0
    with fleet.units.read() as session:
        cordon = session.get_one(Cordon, cordon_id)
    assert (cordon.released_at, cordon.released_by) == (until, RECONCILER.name)
    assert [event.payload["cordon_id"] for event in reported(fleet, "node.uncordoned")] == [cordon_id]
    assert audited(fleet, "cordon.expire") == 1


def test_an_override_that_runs_out_is_reported_once_and_one_that_was_released_is_not(
    fleet: Fleet, clock: SetClock
) -> None:
    until = clock() + timedelta(hours=1)
    for standing in (Standing.SUSPECT, Standing.QUARANTINED):
        with fleet.units.begin(OPERATOR, overrides.OVERRIDE) as unit:
            overrides.override(unit, GPU, standing, until=until, reason="looks odd")
    clock.advance(2 * 3600)
    assert expire(fleet.units, RECONCILER) == 1
    assert expire(fleet.units, RECONCILER) == 0
    assert [event.payload["standing"] for event in reported(fleet, "gpu.override_expired")] == [Standing.QUARANTINED]
    with fleet.units.read() as session:
        ends = session.scalars(select(GpuOverride.ended_at).where(GpuOverride.gpu_uuid == GPU)).all()
    assert until in ends
    assert None not in ends
    assert audited(fleet, "gpu.override.expire") == 1
