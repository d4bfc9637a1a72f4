"""What a dry run states is what then happens: each change is tried, then done, and both are compared."""

import random
from collections.abc import Callable
from datetime import timedelta

import pytest
from sqlalchemy import select

from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory
from control.fleet import cordons, maintenance, overrides
from control.health import evacuation, interventions
from control.hosts import drains
from control.hosts.maintenance_evacuation import evacuate_for_maintenance_once
from control.jobs import jobs
from control.system.effects import effects
from control.system.effects.observed import capacity_of, question_at
from control.system.effects.types import Effect, JobEffect
from control.tenants import quotas
from muster.db.models import Event, Gpu, Node
from muster.domain.ids import GpuUuid, JobId
from muster.domain.principals import Principal, system_principal
from muster.domain.states import JobEffectKind, JobState, PlanOutcome, Standing, StopReason
from scheduler.quota.tenancy import Quota
from tests.control.conftest import SetClock
from tests.control.reclaim.stage import LEFT, Stage, make_stage
from tests.control.system.effects.entitled import PAIR, wait_for_a_guarantee
from tests.fleet_factory import OPERATOR

KEEPER = system_principal("keeper")
Work = Callable[[UnitOfWork], object]
ONE = {"nodes": 1, "gpus_per_node": 1}


@pytest.fixture
def stage(units: UnitOfWorkFactory, clock: SetClock) -> Stage:
    """Three hosts of two GPUs each."""
    return make_stage(units, clock, num_hosts=3)


def tried(stage: Stage, action: str, work: Work, by: Principal = OPERATOR) -> Effect:
    with stage.units.begin(by, action, dry_run=True) as unit:
        leaving = effects.leaving_before(unit)
        work(unit)
        found = effects.observe(unit, leaving)
    return effects.effect_of(stage.units, by, found)


def done(stage: Stage, action: str, work: Work, by: Principal = OPERATOR) -> None:
    """Do it, with what the keepers do because of it."""
    with stage.units.begin(by, action) as unit:
        work(unit)
    evacuation.evacuate_once(stage.units, KEEPER)
    evacuate_for_maintenance_once(stage.units, KEEPER)


def gpu_on(stage: Stage, host: int) -> GpuUuid:
    of_host = select(Gpu.uuid).where(Gpu.node_id == stage.hosts[host].node_id)
    with stage.units.read() as session:
        return session.scalars(of_host.order_by(Gpu.uuid).limit(1)).one()


def host_of(stage: Stage, job_id: JobId) -> int:
    (node_id,) = stage.nodes_of(job_id)
    return next(number for number, host in enumerate(stage.hosts) if host.node_id == node_id)


def names_of(stage: Stage, job_id: JobId) -> list[str]:
    with stage.units.read() as session:
        return sorted(session.scalars(select(Node.name).where(Node.id.in_(stage.nodes_of(job_id)))))


def capacities(stage: Stage) -> dict[str, tuple[int, int]]:
    with stage.units.read() as session:
        found = capacity_of(question_at(session, stage.clock.now))
    return {tier: (each.admitted, each.idle) for tier, each in found.items()}


def leave(stage: Stage, reported: JobEffect) -> None:
    """Its programs end as they were requested to, unless no host had claimed them yet."""
    if reported.job.job_id in stage.running:
        stage.leave(reported.job.job_id, {**LEFT, "stop_reason": reported.why})
    stage.reconcile()


def ways_out(stage: Stage, host: int) -> dict[str, tuple[str, Work, StopReason]]:
    node_id, gpu, now = stage.hosts[host].node_id, gpu_on(stage, host), stage.clock.now
    soon, later = now + timedelta(minutes=10), now + timedelta(hours=2)
    return {
        "drain": (
            drains.DRAIN,
            lambda unit: drains.drain(unit, node_id, reason="fans"),
            StopReason.MAINTENANCE,
        ),
        "maintenance": (
            maintenance.DECLARE,
            lambda unit: maintenance.declare(
                unit, node_id, reason="fans", until=later, starts_at=soon, evacuate_lead_s=600
            ),
            StopReason.MAINTENANCE,
        ),
        "quarantine": (
            overrides.OVERRIDE,
            lambda unit: overrides.override(unit, gpu, Standing.QUARANTINED, until=later, reason="smoke"),
            StopReason.EVACUATION,
        ),
        "retire": (
            interventions.RETIRE,
            lambda unit: interventions.retire(unit, gpu, reason="sold"),
            StopReason.EVACUATION,
        ),
    }


@pytest.mark.parametrize("way", ["drain", "maintenance", "quarantine", "retire"])
def test_a_job_that_has_to_leave_is_named_with_its_deadline_its_loss_and_its_next_hosts(stage: Stage, way: str) -> None:
    job_id = stage.run("on_demand", shape=PAIR, name="bert")
    stage.pass_time(300)
    stage.saves(job_id, step=10)
    stage.pass_time(60)
    action, work, reason = ways_out(stage, host_of(stage, job_id))[way]
    effect = tried(stage, action, work)
    (reported,) = effect.jobs
    assert (reported.kind, reported.job.name, reported.job.job_id, reported.num_gpus, reported.why) == (
        JobEffectKind.LEAVES,
        "bert",
        job_id,
        2,
        reason,
    )
    assert reported.lost_gpu_s == 120, "two GPUs for the minute since its checkpoint"
    assert reported.onward is not None
    assert reported.onward.outcome is PlanOutcome.STARTS
    assert not stage.stop_requests(), "nothing was requested to leave"
    done(stage, action, work)
    (requested,) = stage.stop_requests()
    assert (requested.reason, requested.deadline_at) == (reported.why, reported.deadline_at)
    assert {each.tier: (each.after, each.idle) for each in effect.tiers} == capacities(stage)
    stage.beat_all()
    leave(stage, reported)
    stage.cycle()
    stage.beat_all()
    assert names_of(stage, job_id) == sorted(reported.onward.hosts)


def test_where_no_place_is_left_it_is_reported_to_wait_and_why(stage: Stage) -> None:
    found = [stage.run("on_demand", shape=PAIR, name=f"job-{number}") for number in range(3)]
    action, work, _ = ways_out(stage, host_of(stage, found[0]))["drain"]
    effect = tried(stage, action, work)
    (reported,) = effect.jobs
    assert reported.onward is not None
    assert (reported.job.job_id, reported.onward.outcome) == (found[0], PlanOutcome.WAITS)
    assert reported.onward.why
    assert effect.tiers[0].before - effect.tiers[0].after == 2
    assert effect.changes == ("alpha takes no new job", "node alpha is drained: 1 job has to leave")


def test_a_window_to_come_states_when_each_job_is_requested_to_leave(stage: Stage) -> None:
    job_id = stage.run("on_demand", shape=PAIR)
    starts_at = stage.clock.now + timedelta(hours=5)
    effect = tried(
        stage,
        maintenance.DECLARE,
        lambda unit: maintenance.declare(
            unit,
            stage.hosts[host_of(stage, job_id)].node_id,
            reason="fans",
            starts_at=starts_at,
            until=starts_at + timedelta(hours=1),
            evacuate_lead_s=3600,
        ),
    )
    (reported,) = effect.jobs
    assert (reported.requested_at, reported.deadline_at) == (starts_at - timedelta(hours=1), starts_at)


def test_a_cancelled_job_ends_and_the_job_that_gets_its_gpus_is_named(stage: Stage) -> None:
    running = [stage.run("on_demand", shape=PAIR) for _ in range(3)]
    waiting = stage.submit("on_demand", shape=PAIR, name="next")
    stage.cycle()
    effect = tried(stage, jobs.CANCEL, lambda unit: jobs.cancel(unit, running[0]))
    ended, started = effect.jobs
    assert (ended.kind, ended.job.job_id, ended.why, ended.onward) == (
        JobEffectKind.ENDS,
        running[0],
        StopReason.CANCEL,
        None,
    )
    assert (started.kind, started.job.job_id) == (JobEffectKind.STARTS, waiting)
    effect = tried(stage, jobs.CANCEL, lambda unit: jobs.cancel(unit, waiting))
    assert [(each.kind, each.job.name, each.num_gpus) for each in effect.jobs] == [(JobEffectKind.ENDS, "next", 0)]


def test_a_released_cordon_names_the_job_that_it_lets_start(stage: Stage) -> None:
    with stage.units.begin(OPERATOR, cordons.CREATE) as unit:
        made = cordons.create(unit, reason="fans", node_id=stage.hosts[0].node_id)
    job_id = stage.submit("on_demand", shape={"nodes": 3, "gpus_per_node": 2}, name="large")
    stage.cycle()

    def work(unit: UnitOfWork) -> object:
        return cordons.release(unit, made.id)

    effect = tried(stage, cordons.RELEASE, work)
    (reported,) = effect.jobs
    assert reported.onward is not None
    assert (reported.kind, reported.job.name, reported.onward.hosts) == (
        JobEffectKind.STARTS,
        "large",
        ("alpha", "beta", "gamma"),
    )
    done(stage, cordons.RELEASE, work)
    (placed,) = stage.cycle().placements
    assert (placed.job_id, len(placed.parts)) == (job_id, 3)


def test_a_guarantee_that_reclaims_names_the_victim_and_where_it_goes_on(stage: Stage) -> None:
    waiting = wait_for_a_guarantee(stage)
    assert stage.job(waiting).state is JobState.QUEUED

    def work(unit: UnitOfWork) -> object:
        return quotas.set_quota(unit, stage.fleet.tenant_id, "on_demand", Quota(guaranteed=2), reason="paid")

    effect = tried(stage, quotas.SET, work)
    reported = {each.kind: each for each in effect.jobs}
    assert reported[JobEffectKind.STARTS].job.name == "entitled"
    victim = reported[JobEffectKind.LEAVES]
    assert (victim.why, victim.job.tenant) == (StopReason.RECLAIM, "other")
    assert victim.onward is not None
    assert victim.onward.outcome is PlanOutcome.WAITS
    done(stage, quotas.SET, work)
    (reclaim,) = stage.cycle().reclaims
    assert stage.job_of(reclaim.victim) == victim.job.job_id
    assert victim.deadline_at == stage.clock.now + timedelta(seconds=reclaim.notice_s)


def test_a_tenant_reads_its_own_jobs_and_nothing_of_the_fleet(stage: Stage) -> None:
    other = stage.add_tenant("other")
    mine = stage.run("on_demand", shape=PAIR)
    stage.submit("on_demand", by=other, shape={"nodes": 3, "gpus_per_node": 2})
    stage.cycle()
    effect = tried(stage, jobs.CANCEL, lambda unit: jobs.cancel(unit, mine), by=stage.fleet.tenant)
    assert ([each.job.job_id for each in effect.jobs], effect.tiers) == ([mine], ())


def test_nothing_that_is_tried_leaves_a_trace(stage: Stage) -> None:
    job_id = stage.run("on_demand", shape=PAIR)
    before = _written(stage)
    for action, work, _ in ways_out(stage, host_of(stage, job_id)).values():
        tried(stage, action, work)
    assert _written(stage) == before


def _written(stage: Stage) -> list[object]:
    with stage.units.read() as session:
        return [*session.scalars(select(Event.id).order_by(Event.id)), *session.scalars(select(Gpu.version))]


@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_tried_does_to_jobs_and_capacity_what_it_stated(stage: Stage, seed: int) -> None:
    """Random jobs run and wait, and one random way out of service is tried, then done."""
    chance = random.Random(seed)  # noqa: S311  # no secret
    for _ in range(chance.randint(1, 3)):
        stage.run("on_demand", shape=chance.choice([PAIR, ONE]))
    stage.submit("on_demand", shape={"nodes": chance.randint(2, 3), "gpus_per_node": 2})
    stage.cycle()
    host = chance.randrange(3)
    action, work, _ = chance.choice(list(ways_out(stage, host).values()))
    effect = tried(stage, action, work)
    done(stage, action, work)
    assert {each.tier: (each.after, each.idle) for each in effect.tiers} == capacities(stage)
    requested = {(stage.job_of(one.attempt_id), one.reason, one.deadline_at) for one in stage.stop_requests()}
    left = [each for each in effect.jobs if each.kind is JobEffectKind.LEAVES]
    assert {(each.job.job_id, each.why, each.deadline_at) for each in left} == requested
    stage.beat_all()
    for each in left:
        leave(stage, each)
    stage.cycle()
    stage.beat_all()
    for each in left:
        assert each.onward is not None
        is_placed = each.job.job_id in stage.running
        assert is_placed == (each.onward.outcome is PlanOutcome.STARTS)
        if is_placed:
            assert names_of(stage, each.job.job_id) == sorted(each.onward.hosts)
