"""Of a queue that is longer than a cycle takes, the oldest of each kind are planned: many hide no other."""

from collections.abc import Callable

import pytest

from control.core.unit_of_work import UnitOfWorkFactory
from control.jobs.job_plans import PLAN, JobPlan, plan_job
from control.placement import queue_head
from control.policy.policies import active_policy
from muster.domain.ids import JobId
from muster.domain.job.spec import JobSpec
from muster.domain.job.wait_reasons import WaitReason
from muster.domain.principals import Principal
from muster.domain.states import JobState, PlanOutcome
from tests.control.conftest import SetClock
from tests.control.reclaim.stage import Stage, make_stage
from tests.filled_once import filled_world

LARGE = {"nodes": 2, "gpus_per_node": 2}
SMALL = {"nodes": 1, "gpus_per_node": 2}


@pytest.fixture
def stage(units: UnitOfWorkFactory, clock: SetClock, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """Two hosts of two GPUs, of which one is in use; a cycle takes four jobs."""
    monkeypatch.setattr(queue_head, "MAX_QUEUE", 4)
    return filled_world(units, clock, "two hosts, one in use", lambda: _make_stage(units, clock))


def _make_stage(units: UnitOfWorkFactory, clock: SetClock) -> Stage:
    stage = make_stage(units, clock, num_hosts=2)
    stage.run("on_demand", shape=SMALL)
    return stage


def submit(
    stage: Stage, count: int, tier: str = "on_demand", *, by: Principal | None = None, **spec: object
) -> list[JobId]:
    ids = []
    for _ in range(count):
        ids.append(stage.submit(tier, by=by, **{"shape": LARGE, **spec}))
        stage.clock.advance(1)
    return ids


def seen(stage: Stage) -> list[JobId]:
    with stage.units.read() as session:
        return [job.id for job in queue_head.queue_head(session, active_policy(session)).jobs]


def planned(stage: Stage, **spec: object) -> JobPlan:
    document = {"name": "one", "program": {"script": "/srv/train.py"}, **spec}
    with stage.units.begin(stage.fleet.tenant, PLAN, dry_run=True, quiet=True) as unit:
        return plan_job(unit, JobSpec.model_validate(document, strict=False))


def test_many_that_cannot_start_do_not_hide_one_that_can(stage: Stage) -> None:
    submit(stage, 9)
    (last,) = submit(stage, 1, shape=SMALL)
    stage.cycle()
    assert stage.job(last).state is JobState.ACTIVE


@pytest.mark.parametrize(
    "other",
    [
        lambda stage: submit(stage, 1, tier="spot"),
        lambda stage: submit(stage, 1, by=stage.add_tenant("globex")),
        lambda stage: submit(stage, 1, shape=SMALL),
        lambda stage: submit(stage, 1, topology={"required": "rack"}),
        lambda stage: submit(stage, 1, wall_time_s=60),
    ],
    ids=["tier", "tenant", "shape", "topology", "wall_time"],
)
def test_the_oldest_of_each_kind_are_checked(stage: Stage, other: Callable[[Stage], list[JobId]]) -> None:
    many = submit(stage, 6)
    (one,) = other(stage)
    assert seen(stage) == [*many[:3], one]


def test_the_head_is_as_the_module_draws_it(stage: Stage) -> None:
    of_kind_a = submit(stage, 3)
    of_kind_b = submit(stage, 2, shape=SMALL)
    assert seen(stage) == [*of_kind_a[:2], *of_kind_b]


def test_a_tenant_whose_jobs_are_all_of_different_kinds_hides_no_other(stage: Stage) -> None:
    many = [submit(stage, 1, wall_time_s=10.0**power)[0] for power in range(1, 7)]
    theirs = submit(stage, 2, by=stage.add_tenant("globex"))
    assert seen(stage) == [*many[:2], *theirs]


def test_a_higher_tier_goes_first_where_each_has_as_many(stage: Stage) -> None:
    spot = submit(stage, 4, tier="spot")
    reserved = submit(stage, 4, tier="reserved")
    assert seen(stage) == [*spot[:2], *reserved[:2]]
    on_demand = submit(stage, 1)
    assert seen(stage) == [spot[0], *reserved[:2], *on_demand], "of a second one each the higher tier's"


def test_a_plan_has_the_place_that_the_job_would_have(stage: Stage) -> None:
    submit(stage, 6)
    assert planned(stage, shape=SMALL).outcome is PlanOutcome.STARTS
    found = planned(stage, shape=LARGE)
    assert found.outcome is PlanOutcome.WAITS
    assert found.verdict is not None
    assert (found.verdict.binding, found.num_ahead) == (WaitReason.FAR_BEHIND, 6)
    (job_id,) = submit(stage, 1)
    assert job_id not in seen(stage)
