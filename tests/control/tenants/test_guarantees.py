"""Guarantees that change after a snapshot, in the tree or by a policy: none exceeds the fleet."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from sqlalchemy import text, update

from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory
from control.placement import elastic
from control.policy import activation
from control.policy.policies import ACTIVATE
from control.policy.read import READ, compare
from control.tenants import quotas, tenants
from control.tenants.guarantees import CHANGED, guarantees_now
from muster.db.engine import DEFAULT_LIMITS, make_engine
from muster.db.models import Gpu
from muster.db.queries.tenants import LOCK_GUARANTEES, lock_guarantees
from muster.domain.errors import ConflictError, ValidationFailedError
from muster.domain.ids import AttemptId, TenantId
from muster.domain.policy.document import DEFAULT_POLICY, Policy
from muster.domain.states import JobState, Standing
from scheduler.model import Growth
from scheduler.quota.tenancy import Quota
from tests.control.conftest import SetClock
from tests.control.reclaim.stage import SCHEDULER, Stage, make_stage
from tests.fleet_factory import OPERATOR
from workers.control.scheduler_loop import run_cycle

SPOT_IS_FIRM = DEFAULT_POLICY.model_copy(
    update={
        "tiers": {
            **DEFAULT_POLICY.tiers,
            "spot": DEFAULT_POLICY.tiers["spot"].model_copy(update={"notice_s": None}),
        }
    }
)


@pytest.fixture
def stage(units: UnitOfWorkFactory, clock: SetClock) -> Stage:
    """Two hosts of two GPUs."""
    return make_stage(units, clock, num_hosts=2)


def add_tenant(stage: Stage, name: str) -> TenantId:
    tenant_id = stage.add_tenant(name).tenant_id
    assert tenant_id is not None
    return tenant_id


def guarantee(stage: Stage, tenant_id: TenantId, guaranteed: int, *, tier: str = "reserved") -> int:
    """Return how many of them are lent."""
    with stage.units.begin(OPERATOR, quotas.SET) as unit:
        return quotas.set_quota(unit, tenant_id, tier, Quota(guaranteed), reason="contract").lent_gpus


def put(stage: Stage, tenant_id: TenantId, parent_id: TenantId | None) -> None:
    with stage.units.begin(OPERATOR, tenants.PLACE) as unit:
        tenants.place(unit, tenant_id, tenants.Place(parent_id), reason="contract")


def activate(stage: Stage, policy: Policy) -> None:
    with stage.units.begin(OPERATOR, ACTIVATE) as unit:
        activation.activate(unit, policy, reason="contract")


def set_one(stage: Stage, rival: TenantId) -> None:
    guarantee(stage, rival, 4)


def leave_the_department(stage: Stage, rival: TenantId) -> None:
    """It has 4 of the department's guarantee; the waiting tenant was in the department too."""
    put(stage, stage.fleet.tenant_id, None)


def make_spot_firm(stage: Stage, rival: TenantId) -> None:
    activate(stage, SPOT_IS_FIRM)


def _nothing_before(stage: Stage, rival: TenantId) -> None:
    """Nothing is guaranteed yet."""


def _in_a_department(stage: Stage, rival: TenantId) -> None:
    put(stage, stage.fleet.tenant_id, rival)
    guarantee(stage, rival, 4)


def _in_spot(stage: Stage, rival: TenantId) -> None:
    guarantee(stage, rival, 4, tier="spot")


@pytest.mark.parametrize(
    ("before", "change"),
    [(_nothing_before, set_one), (_in_a_department, leave_the_department), (_in_spot, make_spot_firm)],
)
def test_a_guarantee_that_changes_after_the_snapshot_is_not_given_to_a_job_that_would_stay(
    stage: Stage, before: Callable[[Stage, TenantId], None], change: Callable[[Stage, TenantId], None]
) -> None:
    rival = add_tenant(stage, "rival")
    before(stage, rival)
    job_id = stage.submit("reserved")
    changes = [partial(change, stage, rival)]
    planned = run_cycle(stage.units, SCHEDULER, advanced=lambda: changes.pop()() if changes else None)
    assert [placement.job_id for placement in planned.placements] == [job_id], "the plan itself saw what was before"
    assert not changes
    assert stage.job(job_id).state is JobState.QUEUED
    stage.cycle()
    assert "0 are not guaranteed to other tenants" in stage.job(job_id).state_reason


def test_a_job_does_not_grow_by_a_plan_from_before_a_guarantee(stage: Stage) -> None:
    job_id = stage.run("reserved", shape={"gpus_per_node": 2, "nodes": 1, "max_nodes": 2})
    (_, item), *_ = stage.running[job_id]
    with stage.units.read() as session:
        planned_under = guarantees_now(session)
    set_one(stage, add_tenant(stage, "rival"))
    growth = Growth(AttemptId(item.attempt_id), job_id, 1, ())
    with pytest.raises(elastic.GrowthLostError, match=CHANGED), stage.units.begin(SCHEDULER, elastic.GROW) as unit:
        elastic.grow(unit, growth, DEFAULT_POLICY, planned_under=planned_under)


def test_a_tenant_does_not_move_where_guarantees_would_exceed_the_fleet(stage: Stage) -> None:
    """Its 3 GPUs are within its department's 4; in addition to them they are 7."""
    department, team = add_tenant(stage, "department"), stage.fleet.tenant_id
    put(stage, team, department)
    guarantee(stage, department, 4)
    guarantee(stage, team, 3)
    fault = "^/parent_id: there, 7 GPUs would be guaranteed in on_demand, reserved together, and the fleet has 4: lower"
    with pytest.raises(ValidationFailedError, match=fault):
        put(stage, team, None)
    guarantee(stage, department, 1)
    put(stage, team, None)


def test_a_policy_does_not_make_more_guarantees_firm_than_the_fleet_has(stage: Stage) -> None:
    guarantee(stage, add_tenant(stage, "rival"), 4, tier="spot")
    guarantee(stage, stage.fleet.tenant_id, 2)
    with stage.units.begin(OPERATOR, READ, quiet=True) as unit:
        (obstacle,) = compare(unit, SPOT_IS_FIRM).obstacles
    assert (obstacle.pointer, obstacle.code) == ("/tiers/spot/notice_s", "beyond_fleet")
    with pytest.raises(ConflictError, match="6 GPUs would be guaranteed in on_demand, reserved, spot together"):
        activate(stage, SPOT_IS_FIRM)
    guarantee(stage, stage.fleet.tenant_id, 0)
    activate(stage, SPOT_IS_FIRM)


def test_what_the_fleet_has_lost_is_neither_idle_nor_lent(stage: Stage) -> None:
    """Of 4 GPUs one is quarantined: with none in use nothing is lent; with two borrowed by a rival two are."""
    tenant_id, rival = stage.fleet.tenant_id, stage.add_tenant("rival")
    with stage.units.begin(OPERATOR, ACTIVATE) as unit:
        lost = update(Gpu).where(Gpu.uuid == unit.session.query(Gpu.uuid).order_by(Gpu.uuid).limit(1).scalar_subquery())
        unit.session.execute(lost.values(standing=Standing.QUARANTINED))
        unit.audit("gpu.override", "gpu", "test")
    assert guarantee(stage, tenant_id, 4) == 0
    guarantee(stage, tenant_id, 0)
    stage.run("on_demand", by=rival)
    stage.run("on_demand", by=rival)
    assert guarantee(stage, tenant_id, 2) == 1, "one idle GPU is out of service"
    assert rival.tenant_id is not None
    guarantee(stage, rival.tenant_id, 2, tier="on_demand")
    with stage.units.begin(OPERATOR, quotas.READ, quiet=True) as unit:
        assert [found.lent_gpus for found in quotas.list_quotas(unit, tenant_id)] == [0], "these are the rival's own"


def try_quota(unit: UnitOfWork, tenant_id: TenantId) -> None:
    quotas.set_quota(unit, tenant_id, "reserved", Quota(1), reason="contract")


def try_place(unit: UnitOfWork, tenant_id: TenantId) -> None:
    tenants.place(unit, tenant_id, tenants.Place(), reason="contract")


def try_policy(unit: UnitOfWork, _tenant_id: TenantId) -> None:
    activation.activate(unit, DEFAULT_POLICY, reason="contract")


@pytest.mark.parametrize(
    ("action", "change"), [(quotas.SET, try_quota), (tenants.PLACE, try_place), (ACTIVATE, try_policy)]
)
def test_a_dry_run_holds_up_no_placement(
    stage: Stage, action: str, change: Callable[[UnitOfWork, TenantId], None]
) -> None:
    """It reads the fleet after the change, which takes seconds for a large one."""
    rival = add_tenant(stage, "rival")
    with stage.units.begin(OPERATOR, action, dry_run=True) as unit:
        change(unit, rival)
        with stage.units.engine.begin() as placement:
            placement.execute(text(LOCK_GUARANTEES[0] + " NOWAIT"))


def test_a_placement_that_gets_no_lock_is_lost_and_the_lead_goes_on(stage: Stage) -> None:
    job_id = stage.submit("on_demand")
    impatient = make_engine(stage.units.engine.url, limits=replace(DEFAULT_LIMITS, lock_ms=20))
    with stage.units.begin(OPERATOR, quotas.SET, dry_run=True) as unit:
        lock_guarantees(unit.session)
        run_cycle(replace(stage.units, engine=impatient), SCHEDULER)
    impatient.dispose()
    assert stage.job(job_id).state is JobState.QUEUED
    stage.cycle()
    assert stage.job(job_id).state is JobState.ACTIVE
