"""Ceilings: I6 in the plan and again at commit."""

import pytest
from sqlalchemy import select

from control.core.unit_of_work import UnitOfWorkFactory
from control.fleet.inventory import gpu_views
from control.placement.pending_jobs import waiting_jobs
from control.placement.placement import PLACE, PlacementLostError, place
from control.policy.policies import active_policy
from control.tenants import quotas
from control.tenants.guarantees import guarantees_now
from muster.db.models import Incident
from muster.db.queries.tenants import fleet_gpus
from muster.domain.errors import ForbiddenError, NotFoundError, ValidationFailedError
from muster.domain.ids import TenantId
from muster.domain.principals import Principal
from muster.domain.states import JobState
from muster.identity import new_id
from scheduler.planner import plan
from scheduler.quota.tenancy import Quota
from tests.control.conftest import SetClock
from tests.control.reclaim.stage import SCHEDULER, Stage, make_stage
from tests.fleet_factory import OPERATOR


@pytest.fixture
def stage(units: UnitOfWorkFactory, clock: SetClock) -> Stage:
    return make_stage(units, clock)


def set_ceiling(stage: Stage, ceiling: int, *, tier: str = "on_demand", by: Principal = OPERATOR) -> None:
    with stage.units.begin(by, quotas.SET) as unit:
        quotas.set_quota(unit, stage.fleet.tenant_id, tier, Quota(ceiling=ceiling), reason="contract")


def test_a_job_over_its_tenants_ceiling_waits_and_is_shown_why_and_others_do_not(stage: Stage) -> None:
    set_ceiling(stage, 1)
    stage.run("on_demand")
    over = stage.submit("on_demand")
    stage.cycle()
    assert stage.job(over).state is JobState.QUEUED
    assert "holds 1 of the 1 GPUs that its quota allows in the tier on_demand" in stage.job(over).state_reason
    other_tier = stage.submit("reserved")
    stage.cycle()
    assert stage.job(other_tier).state is JobState.ACTIVE
    set_ceiling(stage, 2)


def test_a_ceiling_set_after_the_plan_holds_at_the_commit(stage: Stage) -> None:
    job_id = stage.submit("on_demand")
    with stage.units.read() as session:
        policy = active_policy(session)
        (placement,) = plan(
            gpu_views(session, stage.clock.now, policy.health), waiting_jobs(session), policy
        ).placements
    set_ceiling(stage, 0)
    with pytest.raises(PlacementLostError, match="holds 0 of the 0 GPUs"), stage.units.begin(SCHEDULER, PLACE) as unit:
        place(unit, placement, policy, planned_under=guarantees_now(unit.session))
    assert stage.job(job_id).state is JobState.QUEUED


def test_a_ceiling_below_what_is_on_hold_opens_an_incident_and_stops_nothing(stage: Stage) -> None:
    job_id = stage.run("on_demand", shape={"gpus_per_node": 2})
    set_ceiling(stage, 1)
    assert stage.job(job_id).state is JobState.ACTIVE
    assert stage.beat_all() == []
    with stage.units.read() as session:
        (incident,) = session.scalars(select(Incident)).all()
    assert (incident.kind, incident.payload["assigned_gpus"], incident.payload["ceiling_gpus"]) == (
        "quota_below_holdings",
        2,
        1,
    )


def test_the_incident_is_one_a_tier_and_closes_with_a_ceiling_that_suffices(stage: Stage) -> None:
    stage.run("on_demand", shape={"gpus_per_node": 2})
    for ceiling in (1, 0, 2):
        set_ceiling(stage, ceiling)
        set_ceiling(stage, 0, tier="reserved")
    with stage.units.read() as session:
        (incident,) = session.scalars(select(Incident)).all()
    assert (incident.closed_by, incident.close_reason) == (OPERATOR.name, "the limit is 2 now")


def test_only_an_operator_sets_one_for_a_tenant_and_a_tier_that_exist(stage: Stage) -> None:
    with pytest.raises(ForbiddenError):
        set_ceiling(stage, 5, by=stage.fleet.tenant)
    with pytest.raises(ValidationFailedError, match="/tier: the policy defines: on_demand, reserved, spot"):
        set_ceiling(stage, 5, tier="platinum")
    with pytest.raises(NotFoundError), stage.units.begin(OPERATOR, quotas.SET) as unit:
        quotas.set_quota(unit, TenantId(new_id("tenant")), "spot", Quota(ceiling=5), reason="contract")


def test_a_tenant_reads_its_own_and_no_other(stage: Stage) -> None:
    set_ceiling(stage, 3)
    with stage.units.begin(stage.fleet.tenant, quotas.READ, quiet=True) as unit:
        assert [
            (found.row.tier, found.row.ceiling_gpus) for found in quotas.list_quotas(unit, stage.fleet.tenant_id)
        ] == [("on_demand", 3)]
    with stage.units.begin(stage.add_tenant("rival"), quotas.READ, quiet=True) as unit, pytest.raises(NotFoundError):
        quotas.list_quotas(unit, stage.fleet.tenant_id)


def guarantee(stage: Stage, guaranteed: int, *, tier: str = "reserved", to: Principal | None = None) -> int:
    """Return how many of them are lent."""
    tenant_id = stage.fleet.tenant_id if to is None else to.tenant_id
    assert tenant_id is not None
    with stage.units.begin(OPERATOR, quotas.SET) as unit:
        return quotas.set_quota(unit, tenant_id, tier, Quota(guaranteed), reason="contract").lent_gpus


def all_gpus(stage: Stage) -> int:
    stage.add_host("more")
    with stage.units.read() as session:
        return fleet_gpus(session)


def test_no_more_is_guaranteed_than_the_fleet_has(stage: Stage) -> None:
    """In tiers that no rule reclaims together, in a reclaimable tier by itself. A lower guarantee is accepted."""
    num_gpus, rival = all_gpus(stage), stage.add_tenant("rival")
    guarantee(stage, num_gpus - 1)
    with pytest.raises(ValidationFailedError, match=f"^/guaranteed_gpus: .* has {num_gpus}: guarantee at most 1"):
        guarantee(stage, 2, tier="on_demand", to=rival)
    guarantee(stage, 1, tier="on_demand", to=rival)
    guarantee(stage, num_gpus, tier="spot", to=rival)
    with pytest.raises(ValidationFailedError, match="in spot together"):
        guarantee(stage, 1, tier="spot")
    guarantee(stage, num_gpus - 2)


def test_a_guarantee_reports_what_is_lent_of_it(stage: Stage) -> None:
    num_gpus, rival = all_gpus(stage), stage.add_tenant("rival")
    assert guarantee(stage, 2, to=rival) == 0
    guarantee(stage, 0, to=rival)
    for _ in range(num_gpus):
        stage.run("on_demand")
    assert guarantee(stage, 2, to=rival) == 2
    assert rival.tenant_id is not None
    with stage.units.begin(rival, quotas.READ, quiet=True) as unit:
        assert [found.lent_gpus for found in quotas.list_quotas(unit, rival.tenant_id)] == [2]
