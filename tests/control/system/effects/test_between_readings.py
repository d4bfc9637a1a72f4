"""A dry run names what its change does, whatever others do between its two readings of the fleet."""

from collections.abc import Collection
from datetime import timedelta

import pytest
from sqlalchemy import select, update

from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory
from control.fleet import cordons, overrides
from control.health import evacuation
from control.jobs import jobs
from control.system.effects import effects
from control.tenants import quotas
from muster.db.models import AllocationGpu, Job
from muster.domain.ids import AttemptId, JobId
from muster.domain.principals import system_principal
from muster.domain.states import JobEffectKind, Standing
from scheduler.quota.tenancy import Quota
from tests.control.conftest import SetClock
from tests.control.reclaim.stage import DONE, LEFT, Stage, make_stage
from tests.control.system.effects.entitled import wait_for_a_guarantee
from tests.fleet_factory import OPERATOR

KEEPER = system_principal("keeper")
ONE = {"nodes": 1, "gpus_per_node": 1}


@pytest.fixture
def stage(units: UnitOfWorkFactory, clock: SetClock) -> Stage:
    """Three hosts of two GPUs each."""
    return make_stage(units, clock, num_hosts=3)


def run_on_a_bad_gpu(stage: Stage) -> JobId:
    """It has to leave, and the judge has not requested that yet."""
    job_id = stage.run("on_demand", shape=ONE)
    with stage.units.begin(OPERATOR, overrides.OVERRIDE) as unit:
        gpu = unit.session.scalars(select(AllocationGpu.gpu_uuid)).one()
        overrides.override(unit, gpu, Standing.QUARANTINED, until=unit.now + timedelta(hours=2), reason="smoke")
    return job_id


def cordon_another(stage: Stage, job_id: JobId) -> effects.Tried:
    node_id = next(host.node_id for host in stage.hosts if host.node_id not in stage.nodes_of(job_id))
    with stage.units.begin(OPERATOR, cordons.CREATE, dry_run=True) as unit:
        leaving = effects.leaving_before(unit)
        cordons.create(unit, reason="fans", node_id=node_id)
        return effects.observe(unit, leaving)


def test_an_evacuation_that_was_due_before_is_no_effect(stage: Stage) -> None:
    tried = cordon_another(stage, run_on_a_bad_gpu(stage))
    assert evacuation.evacuate_once(stage.units, KEEPER) == 1
    assert effects.effect_of(stage.units, OPERATOR, tried).jobs == ()


def test_a_victim_that_ends_before_the_second_reading_is_still_named(stage: Stage) -> None:
    wait_for_a_guarantee(stage)
    with stage.units.begin(OPERATOR, quotas.SET, dry_run=True) as unit:
        leaving = effects.leaving_before(unit)
        quotas.set_quota(unit, stage.fleet.tenant_id, "on_demand", Quota(guaranteed=2), reason="paid")
        tried = effects.observe(unit, leaving)
    for job_id in list(stage.running):
        stage.leave(job_id, LEFT)
    stage.reconcile()
    found = effects.effect_of(stage.units, OPERATOR, tried).jobs
    assert [each.job.tenant for each in found if each.kind is JobEffectKind.LEAVES] == ["other"]


def test_one_evacuation_that_fails_breaks_no_dry_run(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bool:
        raise RuntimeError("an odd row of evidence")

    job_id = run_on_a_bad_gpu(stage)
    monkeypatch.setattr(evacuation, "evacuate", fail)
    effects.effect_of(stage.units, OPERATOR, cordon_another(stage, job_id))
    with stage.units.begin(OPERATOR, cordons.CREATE, dry_run=True) as unit:
        cordons.create(unit, reason="fans", node_id=stage.hosts[0].node_id)
        tried = effects.observe(unit, leaving=())
    assert effects.effect_of(stage.units, OPERATOR, tried).changes


def test_what_others_change_between_the_readings_is_no_effect(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three jobs fill the hosts and one waits. Meanwhile one ends, so the waiting one can start."""
    shape = {"nodes": 1, "gpus_per_node": 2}
    ending, *others = [stage.run("on_demand", shape=shape) for _ in range(3)]
    stage.fleet.submit(shape=shape)
    (node_id,) = stage.nodes_of(others[0])
    observe = effects.observe

    def end_one_then(unit: UnitOfWork, leaving: Collection[AttemptId]) -> effects.Tried:
        found = observe(unit, leaving)
        if ending in stage.running:
            stage.leave(ending, DONE)
            stage.reconcile()
        return found

    def work(unit: UnitOfWork) -> None:
        cordons.create(unit, reason="fans", node_id=node_id)

    monkeypatch.setattr(effects, "observe", end_one_then)
    _, _, effect = effects.try_change(stage.units, OPERATOR, cordons.CREATE, work)
    assert ending not in stage.running
    assert effect.jobs == ()
    assert {tier.before - tier.after for tier in effect.tiers} == {2}


def test_a_row_that_others_change_during_a_dry_run_is_waited_for(stage: Stage) -> None:
    """The second try is without a snapshot, as the change itself would be."""
    job_id, tries = stage.run("on_demand", shape=ONE), list[UnitOfWork]()

    def work(unit: UnitOfWork) -> None:
        if not tries:
            unit.session.execute(select(Job.id).limit(1))  # the snapshot is taken
            with stage.units.begin(OPERATOR, cordons.CREATE, quiet=True) as other:
                other.session.execute(update(Job).values(updated_at=other.now))
        tries.append(unit)
        jobs.cancel(unit, job_id, reason="enough")

    _, _, effect = effects.try_change(stage.units, OPERATOR, jobs.CANCEL, work)
    assert [each.job.job_id for each in effect.jobs] == [job_id]
    assert len(tries) == 2
