"""Cordons: owned, reasoned, expiring; the place is schedulable only when none is left."""

from datetime import timedelta

import pytest
from sqlalchemy import Engine

from control.core.unit_of_work import UnitOfWorkFactory
from control.fleet import cordons
from muster.domain.errors import ForbiddenError, NotFoundError, ValidationFailedError
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.states import JobState
from tests.fleet_factory import OPERATOR, Fleet, make_fleet


@pytest.fixture
def fleet(engine: Engine) -> Fleet:
    made = make_fleet(UnitOfWorkFactory(engine))
    made.beat()
    return made


def cordon(fleet: Fleet, **where: object) -> str:
    with fleet.units.begin(OPERATOR, cordons.CREATE) as unit:
        return cordons.create(unit, reason="fan", **where).id  # type: ignore[arg-type]  # as the test says


def release(fleet: Fleet, cordon_id: str) -> None:
    with fleet.units.begin(OPERATOR, cordons.RELEASE) as unit:
        cordons.release(unit, cordon_id)


def is_placed(fleet: Fleet) -> bool:
    job_id = fleet.submit(shape={"gpus_per_node": 2})
    fleet.cycle()
    placed = fleet.job(job_id).state is JobState.ACTIVE
    if not placed:
        assert "cordoned" in fleet.job(job_id).state_reason
        fleet.cancel(job_id)
    return placed


def test_a_place_is_schedulable_only_when_no_cordon_is_left(fleet: Fleet) -> None:
    first = cordon(fleet, node_id=fleet.node_id)
    second = cordon(fleet, gpu_uuid=GpuUuid("GPU-alpha-0"))
    assert not is_placed(fleet)
    release(fleet, first)
    assert not is_placed(fleet)
    release(fleet, second)
    release(fleet, second)
    with fleet.units.begin(OPERATOR, cordons.READ) as unit:
        assert cordons.list_open(unit) == []
    assert is_placed(fleet)


def test_a_cordon_ends_by_itself(fleet: Fleet) -> None:
    with fleet.units.begin(OPERATOR, cordons.CREATE) as unit:
        soon = unit.now + timedelta(milliseconds=1)
        cordons.create(unit, reason="fan", node_id=fleet.node_id, until=soon)
    assert is_placed(fleet)


@pytest.mark.parametrize(
    "where",
    [
        {},
        {"node_id": NodeId("node_1"), "gpu_uuid": GpuUuid("GPU-1")},
        {"node_id": NodeId("node_nobody")},
        {"gpu_uuid": GpuUuid("GPU-nobody")},
    ],
)
def test_no_place_and_two_places_are_refused(fleet: Fleet, where: dict[str, object]) -> None:
    with pytest.raises(ValidationFailedError):
        cordon(fleet, **where)


def test_a_tenant_cordons_nothing_and_none_releases_what_is_not(fleet: Fleet) -> None:
    with pytest.raises(ForbiddenError), fleet.units.begin(fleet.tenant, cordons.CREATE) as unit:
        cordons.create(unit, reason="fan", node_id=fleet.node_id)
    with pytest.raises(NotFoundError):
        release(fleet, "cdn_nothing")
