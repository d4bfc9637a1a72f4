"""A burn-in that cannot run needs attention: one incident a GPU, until a later burn-in of it is judged."""

from collections.abc import Sequence

import pytest
from sqlalchemy import select

from control.core.unit_of_work import UnitOfWorkFactory
from control.health import interventions
from control.health.burn_ins.hosts import expire_once
from muster.db.models import Event, Incident
from muster.wire.burn_in import Figures
from tests.control.burn_in_case import KEEPER, WRONG_SUM, enrol, figures, judge, newest, order, order_intake, store
from tests.control.conftest import SetClock
from tests.fleet_factory import OPERATOR


def incidents(units: UnitOfWorkFactory) -> Sequence[Incident]:
    with units.read() as session:
        return session.scalars(select(Incident).order_by(Incident.id)).all()


@pytest.mark.parametrize("later", [figures(), figures(partial_sums=WRONG_SUM)])
def test_one_incident_a_gpu_which_a_verdict_closes(units: UnitOfWorkFactory, clock: SetClock, later: Figures) -> None:
    policy = store(units, burn_in={"tries_max": 1})
    host = enrol(units, num_gpus=2)
    broken, fine = host.gpus
    order_intake(units)
    orders = {each.gpu_uuid: each for each in host.ask().orders}
    assert host.report(orders[broken], "torch cannot be imported")
    assert host.report(orders[fine], figures())
    judge(units)
    (found,) = incidents(units)
    assert (found.kind, found.subject_type, found.subject_id) == ("burn_in_abandoned", "gpu", broken)
    assert found.summary.endswith("the last time: torch cannot be imported")
    clock.advance(policy.health.burn_in.again_s + 1)
    order_intake(units)
    host.burn_in("torch cannot be imported")
    assert [each.id for each in incidents(units)] == [found.id], "one, however often"
    order(units, broken)
    host.burn_in(later)
    assert incidents(units)[0].closed_at is None, "measured is not judged"
    judge(units)
    (closed,) = incidents(units)
    assert closed.closed_at == clock.now
    assert closed.close_reason == f"{newest(units, broken).id} was judged: {newest(units, broken).outcome}"
    with units.read() as session:
        kinds = session.scalars(select(Event.kind).where(Event.subject_id == found.id).order_by(Event.at)).all()
    assert kinds == ["incident.opened", "incident.closed"]
    assert fine != broken


def test_an_agent_that_never_reports_is_notified_of_too(units: UnitOfWorkFactory, clock: SetClock) -> None:
    policy = store(units, burn_in={"tries_max": 1})
    host = enrol(units)
    order_intake(units)
    host.ask()
    clock.advance(policy.health.burn_in.deadline_s + 61)
    expire_once(units, KEEPER)
    (found,) = incidents(units)
    assert found.payload["fault"] == "its agent did not report in time"


def test_what_a_person_took_out_of_service_wants_none(units: UnitOfWorkFactory) -> None:
    host = enrol(units)
    order_intake(units)
    with units.begin(OPERATOR, interventions.RETIRE) as unit:
        interventions.retire(unit, host.gpus[0], reason="sold")
    assert expire_once(units, KEEPER) == 1
    assert incidents(units) == []
