"""The plan of a job that was not submitted: what the next cycle would do, stated without doing it."""

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import func, select

from api.job_views import job_plan_view
from control.core.unit_of_work import UnitOfWorkFactory
from control.jobs import job_plans
from control.jobs.job_plans import EXPLAIN, PLAN, JobPlan, explain_job, plan_job
from control.placement import queue_head, scheduling
from control.tenants import quotas
from muster.db.models import AuditEntry, Event, GpuHold, Job, OutboxMessage, Reclaim
from muster.domain.errors import ConflictError, ForbiddenError, NotFoundError, ValidationFailedError
from muster.domain.ids import JobId, TenantId
from muster.domain.job.spec import JobSpec, Shape
from muster.domain.job.wait_reasons import WaitReason
from muster.domain.principals import Principal, Role
from muster.domain.states import JobState, PlanOutcome
from scheduler.explain.advice import TYPING_S, Change
from scheduler.quota.tenancy import Quota
from tests.control.conftest import SetClock
from tests.control.reclaim.stage import Stage, make_stage
from tests.fleet_factory import OPERATOR

SPOT_MIN_RUN_S = 1_800
STRANGER = Principal(name="sam", role=Role.TENANT_MEMBER, tenant_id=TenantId("ten_other"))


@pytest.fixture
def stage(units: UnitOfWorkFactory, clock: SetClock) -> Stage:
    """Two hosts of two GPUs each."""
    return make_stage(units, clock, num_hosts=2)


def spec(nodes: int = 1, gpus: int = 2, **fields: object) -> JobSpec:
    document = {
        "name": "asked",
        "program": {"script": "/srv/train.py"},
        "shape": {"nodes": nodes, "gpus_per_node": gpus},
        **fields,
    }
    return JobSpec.model_validate(document, strict=False)


def requested(stage: Stage, wanted: JobSpec, *, by: Principal | None = None) -> JobPlan:
    with stage.units.begin(by or stage.fleet.tenant, PLAN, dry_run=True, quiet=True) as unit:
        return plan_job(unit, wanted)


def written(stage: Stage) -> list[int]:
    with stage.units.read() as session:
        tables = (Job, Event, AuditEntry, OutboxMessage, GpuHold, Reclaim)
        return [session.scalar(select(func.count()).select_from(table)) or 0 for table in tables]


def test_what_is_planned_is_what_the_next_cycle_does_and_nothing_is_written(stage: Stage) -> None:
    before = written(stage)
    found = requested(stage, spec(nodes=2))
    assert written(stage) == before
    assert (found.outcome, found.verdict, found.num_ahead, found.victims) == (PlanOutcome.STARTS, None, 0, ())
    stage.submit("on_demand", shape={"nodes": 2, "gpus_per_node": 2})
    (placement,) = stage.cycle().placements
    assert tuple((host.node_id, host.gpus) for host in found.hosts) == placement.parts


def test_a_sum_of_gpus_is_planned_on_the_hosts_on_which_it_is_submitted(stage: Stage) -> None:
    found = requested(stage, spec().model_copy(update={"shape": Shape(gpus=4)}))
    stage.submit("on_demand", shape={"gpus": 4})
    (placement,) = stage.cycle().placements
    assert tuple((host.node_id, host.gpus) for host in found.hosts) == placement.parts
    with pytest.raises(ValidationFailedError, match="asks for 6 GPUs; the fleet has 4"):
        requested(stage, spec().model_copy(update={"shape": Shape(gpus=6)}))


def test_of_a_sum_of_gpus_no_number_of_hosts_is_advised(stage: Stage) -> None:
    stage.run("on_demand", shape={"nodes": 1, "gpus_per_node": 2})
    assert requested(stage, spec().model_copy(update={"shape": Shape(gpus=4)})).changes == (Change("fleet.nodes", 1),)


def test_which_it_would_reclaim_from_is_which_the_next_cycle_notifies(stage: Stage) -> None:
    for _ in range(2):
        stage.run("spot", shape={"nodes": 1, "gpus_per_node": 2})
    stage.pass_time(SPOT_MIN_RUN_S + 60)
    before = written(stage)
    found = requested(stage, spec(tier="reserved"))
    assert written(stage) == before
    assert found.outcome is PlanOutcome.RECLAIMS
    assert found.starts_at is not None
    assert (found.starts_at - stage.clock.now).total_seconds() == found.victims[0].notice_s == 120
    stage.submit("reserved", shape={"nodes": 1, "gpus_per_node": 2})
    (reclaim,) = stage.cycle().reclaims
    assert found.victims[0].cost_gpu_s == pytest.approx(reclaim.cost_gpu_s, abs=0.1)
    assert found.victims[0].num_gpus == len(reclaim.gpus)
    assert [uuid for host in found.hosts for uuid in host.gpus] == list(reclaim.hold)


def test_only_what_was_notified_is_reported_as_being_reclaimed(stage: Stage) -> None:
    for _ in range(2):
        stage.run("spot", shape={"nodes": 1, "gpus_per_node": 2})
    stage.pass_time(SPOT_MIN_RUN_S + 60)
    told = job_plan_view(requested(stage, spec(tier="reserved")), STRANGER)
    assert "GPUs would be reclaimed for it" in str(told["why"])
    assert told["reasons"][-1]["text"] == "would be reclaimed for it"
    job_id = stage.submit("reserved", shape={"nodes": 1, "gpus_per_node": 2})
    told = job_plan_view(explained(stage, job_id), STRANGER)
    assert "GPUs would be reclaimed for it" in str(told["why"]), "no cycle has seen it yet"
    stage.cycle()
    told = job_plan_view(explained(stage, job_id), STRANGER)
    assert "GPUs are being reclaimed for it" in str(told["why"])
    assert told["reasons"][-1]["text"] == "being reclaimed for it"


def test_a_gang_is_reported_from_when_on_its_place_is_free(stage: Stage) -> None:
    stage.run("on_demand", shape={"nodes": 1, "gpus_per_node": 2}, wall_time_s=3600.0)
    found = requested(stage, spec(nodes=2))
    assert found.outcome is PlanOutcome.HOLD
    assert found.starts_at is not None
    assert 3000 < (found.starts_at - stage.clock.now).total_seconds() <= 3630, "its wall time and the grace after it"
    assert len(found.hosts) == 2
    assert found.changes == (Change("shape.nodes", 1), Change("fleet.nodes", 1))


def test_what_would_pass_with_a_wall_time_is_reported_the_longest(stage: Stage) -> None:
    stage.run("on_demand", shape={"nodes": 1, "gpus_per_node": 2}, wall_time_s=3600.0)
    stage.submit("on_demand", shape={"nodes": 2, "gpus_per_node": 2}, wall_time_s=60.0)
    stage.cycle()
    found = requested(stage, spec())
    assert (found.outcome, found.num_ahead) == (PlanOutcome.WAITS, 1)
    change, tier, dearer = found.changes
    assert change.field == "wall_time_s"
    assert tier == Change("tier", "reserved"), "it goes before the gang that the place is held for"
    assert requested(stage, spec(tier="reserved")).outcome is PlanOutcome.STARTS
    assert dearer == Change("fleet.nodes", 1)
    assert isinstance(change.value, float)
    assert requested(stage, spec(wall_time_s=change.value)).outcome is PlanOutcome.STARTS
    assert requested(stage, spec(wall_time_s=change.value + TYPING_S)).outcome is PlanOutcome.STARTS
    assert requested(stage, spec(wall_time_s=change.value + TYPING_S + 1)).outcome is PlanOutcome.WAITS


def test_what_no_wait_makes_possible_is_refused_as_submitting_it_is(stage: Stage) -> None:
    with pytest.raises(ValidationFailedError, match="the policy defines"):
        requested(stage, spec(tier="gold"))
    with pytest.raises(ValidationFailedError, match="the fleet has 4"):
        requested(stage, spec(nodes=3))
    with pytest.raises(ForbiddenError):
        requested(stage, spec(), by=Principal(name="reader", role=Role.AUDITOR))


def explained(stage: Stage, job_id: JobId) -> JobPlan:
    with stage.units.begin(stage.fleet.tenant, EXPLAIN, dry_run=True, quiet=True) as unit:
        return explain_job(unit, job_id)


def test_a_waiting_job_is_explained_as_its_plan_was_and_nothing_is_written(stage: Stage) -> None:
    stage.run("on_demand", shape={"nodes": 1, "gpus_per_node": 2}, wall_time_s=3600.0)
    planned = requested(stage, spec(nodes=2))
    job_id = stage.submit("on_demand", shape={"nodes": 2, "gpus_per_node": 2})
    stage.cycle()
    before = written(stage)
    found = explained(stage, job_id)
    assert written(stage) == before
    assert found.verdict is not None
    assert found.verdict.binding is WaitReason.IN_USE
    assert [(each.token, each.num_gpus) for each in found.verdict.reasons] == [
        (WaitReason.IN_USE, 2),
        (WaitReason.HOLD, 4),
    ]
    assert (found.outcome, found.hosts, found.changes) == (planned.outcome, planned.hosts, planned.changes)
    assert found.earliest_at is not None
    assert found.starts_at is not None
    assert found.latest_at is not None
    assert stage.clock.now < found.earliest_at < found.starts_at <= found.latest_at


def test_jobs_before_it_are_counted_with_their_gpus(stage: Stage) -> None:
    stage.run("on_demand", shape={"nodes": 2, "gpus_per_node": 2})
    first = stage.submit("on_demand", shape={"nodes": 2, "gpus_per_node": 2})
    last = stage.submit("spot", shape={"nodes": 1, "gpus_per_node": 2})
    found = explained(stage, last)
    assert (found.num_ahead, found.gpus_ahead) == (1, 4)
    own = stage.fleet.tenant.tenant_id
    (before,) = job_plan_view(found, stage.fleet.tenant)["ahead"]
    assert before == {"job_id": first, "tenant_id": own, "tier": "on_demand", "num_gpus": 4}
    (before,) = job_plan_view(found, STRANGER)["ahead"]
    assert before == {"job_id": None, "tenant_id": None, "tier": "on_demand", "num_gpus": 4}


def test_the_first_of_many_before_it_are_named(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_plans, "AHEAD_SHOWN", 2)
    stage.run("on_demand", shape={"nodes": 2, "gpus_per_node": 2})
    many = [stage.submit("reserved", shape={"nodes": 2, "gpus_per_node": 2}) for _ in range(3)]
    found = explained(stage, stage.submit("on_demand", shape={"nodes": 1, "gpus_per_node": 2}))
    assert found.num_ahead == 3
    assert [one.job_id for one in found.ahead] == many[:2]


def test_a_job_above_its_quota_is_reported_the_ceiling_that_would_do(stage: Stage) -> None:
    tenant_id = stage.fleet.tenant.tenant_id
    assert tenant_id is not None
    with stage.units.begin(OPERATOR, quotas.SET) as unit:
        quotas.set_quota(unit, tenant_id, "on_demand", Quota(ceiling=1), reason="contract")
    job_id = stage.submit("on_demand", shape={"nodes": 1, "gpus_per_node": 2})
    stage.cycle()
    found = explained(stage, job_id)
    assert found.verdict is not None
    assert found.verdict.binding is WaitReason.QUOTA
    assert Change("quota.ceiling_gpus", 2) in found.changes


def test_a_job_that_does_not_wait_is_not_explained(stage: Stage) -> None:
    running = stage.run("on_demand", shape={"nodes": 1, "gpus_per_node": 2})
    with pytest.raises(ConflictError, match=JobState.ACTIVE):
        explained(stage, running)


def test_a_pending_job_behind_all_that_are_checked_is_shown_how_many_are_before_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_head, "MAX_QUEUE", 2)
    stage.run("on_demand", shape={"nodes": 2, "gpus_per_node": 2})
    for _ in range(3):
        stage.submit("on_demand", shape={"nodes": 2, "gpus_per_node": 2})
        stage.clock.advance(1)
    elastic = {"nodes": 2, "gpus_per_node": 2, "min_nodes": 1, "max_nodes": 2}
    stage.submit("on_demand", shape=elastic)
    stage.clock.advance(1)
    last = stage.submit("on_demand", shape={"nodes": 1, "gpus_per_node": 2})
    found = explained(stage, last)
    assert found.verdict is not None
    assert found.verdict.binding is WaitReason.FAR_BEHIND
    assert (found.num_ahead, found.gpus_ahead) == (4, 4 + 4 + 4 + 2)


def test_another_tenants_job_is_explained_to_none_and_an_operators_answer_alone_names_others(stage: Stage) -> None:
    for _ in range(2):
        stage.run("spot", shape={"nodes": 1, "gpus_per_node": 2})
    stage.pass_time(SPOT_MIN_RUN_S + 60)
    stranger = stage.add_tenant("globex")
    job_id = stage.submit("reserved", by=stranger, shape={"nodes": 1, "gpus_per_node": 2})
    with pytest.raises(NotFoundError), stage.units.begin(stage.fleet.tenant, EXPLAIN, dry_run=True, quiet=True) as unit:
        explain_job(unit, job_id)
    with stage.units.begin(stranger, EXPLAIN, dry_run=True, quiet=True) as unit:
        found = explain_job(unit, job_id)
    assert found.outcome is PlanOutcome.RECLAIMS
    told, whole = job_plan_view(found, STRANGER), job_plan_view(found, OPERATOR)
    assert told["hosts"] == []
    assert [(victim["job_id"], victim["tenant_id"]) for victim in told["victims"]] == [(None, None)]
    assert [(victim["tier"], victim["num_gpus"]) for victim in told["victims"]] == [("spot", 2)]
    assert len(whole["hosts"]) == 1
    assert whole["victims"][0]["tenant_id"] == stage.fleet.tenant.tenant_id
    theirs = job_plan_view(found, stage.fleet.tenant)
    assert theirs["victims"] == whole["victims"], "the tenant whose job would be reclaimed sees which"


def test_a_reclaim_that_stands_is_reported_with_the_ranks_as_they_will_start(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is stored of it has no order."""

    def question(*given: Any, **named: Any) -> Any:
        asked = scheduling.question(*given, **named)
        assert asked is not None
        turned = tuple(replace(one, hold=one.hold[::-1]) for one in asked.workload.reclaims)
        return replace(asked, workload=replace(asked.workload, reclaims=turned))

    monkeypatch.setattr(job_plans, "question", question)
    stage.run("spot", shape={"nodes": 1, "gpus_per_node": 2})
    stage.pass_time(SPOT_MIN_RUN_S + 60)
    job_id = stage.submit("reserved", shape={"nodes": 2, "gpus_per_node": 2})
    (reclaim,) = stage.cycle().reclaims
    found = explained(stage, job_id)
    assert [gpu for host in found.hosts for gpu in host.gpus] == list(reclaim.hold)


def test_a_job_that_is_placed_while_it_is_explained_is_stated_not_to_wait(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each statement sees what was committed before it: the queue may lack a job that was QUEUED a moment ago."""
    job_id = stage.submit("on_demand", shape={"nodes": 1, "gpus_per_node": 2})

    def question(*given: Any, **named: Any) -> Any:
        assert stage.cycle().placements, "another process places it in between"
        return scheduling.question(*given, **named)

    monkeypatch.setattr(job_plans, "question", question)
    with pytest.raises(ConflictError, match=JobState.ACTIVE):
        explained(stage, job_id)
