"""I6 where a tenant gets its first limit as a gang of it is placed: one of the two sees what the other did."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import select, text

from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory
from control.fleet.inventory import gpu_views
from control.placement.pending_jobs import waiting_jobs
from control.placement.placement import PLACE, PlacementLostError, place
from control.tenants import quotas, tenants
from control.tenants.guarantees import guarantees_now
from muster.db.models import Allocation, AllocationGpu, Incident
from muster.db.queries.tenants import assigned_in_tier
from muster.domain.ids import JobId, TenantId
from muster.domain.policy.document import DEFAULT_POLICY
from muster.domain.principals import Principal
from muster.domain.states import JobState
from scheduler.model import Placement
from scheduler.planner import plan
from scheduler.quota.tenancy import Quota
from tests.control.conftest import SetClock
from tests.control.reclaim.stage import DONE, SCHEDULER, Stage, make_stage
from tests.fleet_factory import OPERATOR
from tests.lock_waits import wait_for_a_lock

Limiting = Callable[[UnitOfWork, Stage, TenantId], object]


@pytest.fixture
def stage(units: UnitOfWorkFactory, clock: SetClock) -> Stage:
    """One host of two GPUs."""
    return make_stage(units, clock)


@pytest.fixture
def department(stage: Stage) -> TenantId:
    """Return a department whose limit is one GPU, without tenants under it."""
    with stage.units.begin(OPERATOR, tenants.CREATE) as unit:
        tenant_id = tenants.create(unit, name="research").id
    with stage.units.begin(OPERATOR, quotas.SET) as unit:
        quotas.set_quota(unit, tenant_id, "on_demand", Quota(ceiling=1), reason="contract")
    return tenant_id


def give_a_limit(unit: UnitOfWork, stage: Stage, _department: TenantId) -> None:
    quotas.set_quota(unit, stage.fleet.tenant_id, "on_demand", Quota(ceiling=1), reason="contract")


def put_under_the_department(unit: UnitOfWork, stage: Stage, department: TenantId) -> None:
    tenants.place(unit, stage.fleet.tenant_id, tenants.Place(department), reason="contract")


WAYS = pytest.mark.parametrize("limit", [give_a_limit, put_under_the_department])


def planned(stage: Stage, *, by: Principal | None = None) -> tuple[JobId, Placement]:
    job_id = stage.submit("on_demand", by=by, shape={"gpus_per_node": 2})
    with stage.units.read() as session:
        views = gpu_views(session, stage.clock.now, DEFAULT_POLICY.health)
        (placement,) = plan(views, waiting_jobs(session), DEFAULT_POLICY).placements
    return job_id, placement


@WAYS
def test_what_is_placed_first_is_counted_by_what_sets_the_limit(
    stage: Stage, department: TenantId, limit: Limiting
) -> None:
    job_id, placement = planned(stage)

    def set_limit() -> None:
        with stage.units.begin(OPERATOR, quotas.SET) as unit:
            limit(unit, stage, department)

    with ThreadPoolExecutor(1) as aside:
        with stage.units.begin(SCHEDULER, PLACE) as unit:
            place(unit, placement, DEFAULT_POLICY, planned_under=guarantees_now(unit.session))
            setting = aside.submit(set_limit)
            wait_for_a_lock(stage.units)
        setting.result(timeout=60)
    assert stage.job(job_id).state is JobState.ACTIVE
    with stage.units.read() as session:
        (incident,) = session.scalars(select(Incident)).all()
    assert (incident.kind, incident.payload["assigned_gpus"], incident.payload["ceiling_gpus"]) == (
        "quota_below_holdings",
        2,
        1,
    )


@WAYS
def test_a_limit_that_is_set_first_holds_for_what_is_being_placed(
    stage: Stage, department: TenantId, limit: Limiting
) -> None:
    job_id, placement = planned(stage)

    def commit() -> None:
        with stage.units.begin(SCHEDULER, PLACE) as unit:
            place(unit, placement, DEFAULT_POLICY, planned_under=guarantees_now(unit.session))

    with ThreadPoolExecutor(1) as aside:
        with stage.units.begin(OPERATOR, quotas.SET) as unit:
            limit(unit, stage, department)
            unit.session.flush()
            placing = aside.submit(commit)
            wait_for_a_lock(stage.units)
        with pytest.raises(PlacementLostError, match="0 of the 1 GPUs"):
            placing.result(timeout=60)
    assert stage.job(job_id).state is JobState.QUEUED
    with stage.units.read() as session:
        assert session.scalars(select(Incident)).all() == []


def test_two_what_set_a_first_limit_at_once_both_do(stage: Stage) -> None:
    def set_limit(ceiling: int) -> None:
        with stage.units.begin(OPERATOR, quotas.SET) as unit:
            quotas.set_quota(unit, stage.fleet.tenant_id, "spot", Quota(ceiling=ceiling), reason="contract")

    with ThreadPoolExecutor(1) as aside:
        with stage.units.begin(OPERATOR, quotas.SET) as unit:
            quotas.set_quota(unit, stage.fleet.tenant_id, "spot", Quota(ceiling=1), reason="contract")
            second = aside.submit(set_limit, 2)
            wait_for_a_lock(stage.units)
        second.result(timeout=60)
    with stage.units.begin(OPERATOR, quotas.READ, quiet=True) as unit:
        (found,) = quotas.list_quotas(unit, stage.fleet.tenant_id)
    assert found.row.ceiling_gpus == 2


@pytest.mark.parametrize("is_written", [True, False], ids=["as it is placed", "by a release that wrote none"])
def test_what_a_tenant_holds_is_the_sum_of_its_gangs_sizes(stage: Stage, *, is_written: bool) -> None:
    stage.add_host("beta")
    gone, kept = (stage.run("on_demand", shape={"gpus_per_node": size}) for size in (2, 1))
    if not is_written:
        with stage.units.engine.begin() as connection:
            connection.execute(text("ALTER TABLE allocations DISABLE TRIGGER num_gpus_stays"))
            connection.execute(text("UPDATE allocations SET num_gpus = NULL"))
    with stage.units.read() as session:
        sizes = dict(session.execute(select(Allocation.job_id, Allocation.num_gpus)).all())
        assert sizes == ({gone: 2, kept: 1} if is_written else {gone: None, kept: None})
        assert assigned_in_tier(session, stage.fleet.tenant_id, "on_demand") == 3
        assert assigned_in_tier(session, stage.fleet.tenant_id, "spot") == 0
    stage.leave(gone, DONE)
    with stage.units.read() as session:
        assert assigned_in_tier(session, stage.fleet.tenant_id, "on_demand") == 1
        assert session.scalars(select(AllocationGpu.gpu_uuid)).all()
