"""A host's driver is what its agent says now, whatever it was at enrolment: cohorts follow."""

from sqlalchemy import select

from control.core.unit_of_work import UnitOfWorkFactory
from control.fleet import inventory
from control.fleet.driver_refresh import refresh_drivers_once
from muster.db.models import Event, Gpu, NodeLatest
from muster.domain.principals import system_principal
from tests.fleet_factory import enrol_host

KEEPER = system_principal("reconciler")


def test_an_upgraded_host_is_of_another_cohort_once_its_agent_reports(units: UnitOfWorkFactory) -> None:
    node_id = enrol_host(units, "alpha", num_gpus=2)
    enrol_host(units, "beta", num_gpus=1)
    assert refresh_drivers_once(units, KEEPER) == 0
    with units.begin(KEEPER, inventory.READ, quiet=True) as unit:
        unit.session.add(NodeLatest(node_id=node_id, readings={"driver_version": "580.95"}))
    assert refresh_drivers_once(units, KEEPER) == 2
    assert refresh_drivers_once(units, KEEPER) == 0, "once"
    with units.read() as session:
        gpus = session.scalars(select(Gpu)).all()
        events = session.scalars(select(Event).where(Event.kind == "gpu.driver_changed")).all()
    upgraded = [gpu for gpu in gpus if gpu.node_id == node_id]
    assert {gpu.driver_version for gpu in upgraded} == {"580.95"}
    assert all("driver_version=580.95" in gpu.cohort_key for gpu in upgraded)
    assert len({gpu.cohort_key for gpu in gpus}) == 2
    assert sorted(event.subject_id for event in events) == sorted(gpu.uuid for gpu in upgraded)
    assert {event.payload["before"] for event in events} == {"0"}


def test_an_agent_that_does_not_know_its_driver_changes_nothing(units: UnitOfWorkFactory) -> None:
    node_id = enrol_host(units, "alpha", num_gpus=1)
    with units.begin(KEEPER, inventory.READ, quiet=True) as unit:
        unit.session.add(NodeLatest(node_id=node_id, readings={"driver_version": ""}))
    assert refresh_drivers_once(units, KEEPER) == 0
