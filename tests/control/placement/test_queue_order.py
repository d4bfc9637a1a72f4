"""The listed queue has the order in which the scheduler tries it: by tier and urgency, and by the turns of tenants."""

import pytest

from control.core.unit_of_work import UnitOfWorkFactory
from control.jobs import queue_views
from muster.domain.errors import ForbiddenError
from muster.domain.ids import JobId
from muster.domain.principals import Principal, Role
from tests.control.conftest import SetClock
from tests.control.reclaim.stage import Stage, make_stage
from tests.fleet_factory import OPERATOR

WHOLE = {"gpus_per_node": 2}


@pytest.fixture
def stage(units: UnitOfWorkFactory, clock: SetClock) -> Stage:
    """One host of two GPUs, which a tenant holds."""
    stage = make_stage(units, clock)
    stage.run("on_demand", shape=WHOLE)
    return stage


def shown(stage: Stage) -> list[JobId]:
    with stage.units.begin(OPERATOR, queue_views.READ) as unit:
        found = queue_views.queue_of(unit, limit=100)
    assert [one.place for one in found.jobs] == list(range(1, len(found.jobs) + 1))
    return [one.job.id for one in found.jobs]


def test_a_tenant_that_has_its_share_is_shown_behind_one_that_came_later(stage: Stage) -> None:
    older = [stage.submit("on_demand", shape=WHOLE) for _ in range(2)]
    stage.clock.advance(600)
    later = stage.submit("on_demand", by=stage.add_tenant("other"), shape=WHOLE)
    assert shown(stage) == [*older, later], "before a cycle has planned them no shares are known"
    tried = [waiting.job_id for waiting in stage.cycle().waiting]
    assert shown(stage) == tried == [later, *older]


def test_a_host_reads_no_queue(stage: Stage) -> None:
    node = Principal(name=f"node:{stage.fleet.node_id}", role=Role.NODE, node_id=stage.fleet.node_id)
    with pytest.raises(ForbiddenError), stage.units.begin(node, queue_views.READ) as unit:
        queue_views.queue_of(unit, limit=100)


def test_of_tiers_the_first_is_shown_first_whatever_the_turns_within_them(stage: Stage) -> None:
    spot = stage.submit("spot", by=stage.add_tenant("other"), shape=WHOLE)
    stage.clock.advance(600)
    own = stage.submit("on_demand", shape=WHOLE)
    reserved = stage.submit("reserved", shape=WHOLE)
    stage.cycle()
    assert shown(stage) == [reserved, own, spot]
