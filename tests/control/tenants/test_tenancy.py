"""The tree of tenants: where one may be put, limits above it at the commit, what was lent, what was used."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest
from sqlalchemy import select, text

from control.core.tenant_tree import tenancy
from control.core.unit_of_work import UnitOfWorkFactory
from control.fleet.inventory import gpu_views
from control.jobs import jobs
from control.jobs.listing import JobFilter, list_jobs
from control.placement.pending_jobs import waiting_jobs
from control.placement.placement import PLACE, PlacementLostError, place
from control.placement.scheduling import question
from control.policy.policies import active_policy
from control.reclaim.notices import NOTIFY, ReclaimLostError, notify
from control.tenants import quotas, tenants
from control.tenants.guarantees import guarantees_now
from control.tenants.tenancy import used
from muster.db.models import AuditEntry, Event, Gpu, Incident, Tenant
from muster.db.models import Quota as QuotaRow
from muster.db.queries import tenants as tree
from muster.domain.errors import ForbiddenError, NotFoundError, ValidationFailedError
from muster.domain.ids import TenantId
from muster.domain.policy.document import DEFAULT_POLICY
from muster.domain.policy.tiers import ReclaimPolicy
from muster.domain.principals import Principal
from muster.domain.states import JobState, ReclaimState
from muster.identity import new_id
from scheduler.model import Reclaim
from scheduler.planner import plan
from scheduler.quota.tenancy import MOST_LEVELS, Quota
from tests.control.conftest import SetClock
from tests.control.reclaim.stage import AFTER_MIN_RUN_S, LEFT, SCHEDULER, Stage, make_stage
from tests.fleet_factory import OPERATOR, enrol_host
from tests.waiting import wait_until

HOUR_S = 3600


@pytest.fixture
def stage(units: UnitOfWorkFactory, clock: SetClock) -> Stage:
    """Two hosts of two GPUs each."""
    return make_stage(units, clock, num_hosts=2)


def tenant(stage: Stage, name: str) -> TenantId:
    with stage.units.begin(OPERATOR, tenants.CREATE) as unit:
        return tenants.create(unit, name=name).id


def put(stage: Stage, tenant_id: TenantId, parent_id: TenantId | None, weight: float = 1.0) -> None:
    with stage.units.begin(OPERATOR, tenants.PLACE) as unit:
        tenants.place(unit, tenant_id, tenants.Place(parent_id, weight), reason="their department")


def limit(stage: Stage, tenant_id: TenantId, tier: str, quota: Quota) -> None:
    with stage.units.begin(OPERATOR, quotas.SET) as unit:
        quotas.set_quota(unit, tenant_id, tier, quota, reason="contract")


def owner(principal: Principal) -> TenantId:
    assert principal.tenant_id is not None
    return principal.tenant_id


def test_a_tenant_is_put_under_another_with_its_reason_in_the_audit(stage: Stage) -> None:
    department = tenant(stage, "research")
    put(stage, stage.fleet.tenant_id, department, 2.5)
    with stage.units.read() as session:
        row = session.get_one(Tenant, stage.fleet.tenant_id)
        entry = session.scalars(select(AuditEntry).where(AuditEntry.action == "tenant.place")).one()
        event = session.scalars(select(Event).where(Event.kind == "tenant.placed")).one()
        assert (row.parent_id, row.weight) == (department, 2.5)
        assert tree.line(session, row.id) == (row.id, department)
        assert set(tree.below(session, department)) == {row.id, department}
        assert tenancy(session).member(row.id).weight == 2.5
    assert entry.reason == "their department"
    assert event.payload["to"] == {"parent_id": department, "weight": 2.5}


def test_a_tree_has_no_circles_an_end_and_no_parents_that_are_not_there(stage: Stage) -> None:
    line = [tenant(stage, f"t{number}") for number in range(MOST_LEVELS + 1)]
    for below, above in pairwise(line[:-1]):
        put(stage, below, above)
    with pytest.raises(ValidationFailedError, match=f"{MOST_LEVELS + 1} levels deep; {MOST_LEVELS} is the most"):
        put(stage, line[-2], line[-1])
    with pytest.raises(ValidationFailedError, match="name a parent outside its own teams"):
        put(stage, line[3], line[0])
    with pytest.raises(ValidationFailedError, match="name a parent outside its own teams"):
        put(stage, line[3], line[3])
    with pytest.raises(ValidationFailedError, match="/parent_id: there is no such tenant"):
        put(stage, line[3], TenantId(new_id("tenant")))
    with pytest.raises(NotFoundError):
        put(stage, TenantId(new_id("tenant")), None)
    put(stage, line[3], None)
    put(stage, line[-2], line[-1])


def test_only_an_operator_moves_a_tenant(stage: Stage) -> None:
    with pytest.raises(ForbiddenError), stage.units.begin(stage.fleet.tenant, tenants.PLACE) as unit:
        tenants.place(unit, stage.fleet.tenant_id, tenants.Place(), reason="more")


def test_a_departments_ceiling_binds_its_teams_together(stage: Stage) -> None:
    department, rival = tenant(stage, "research"), stage.add_tenant("rival")
    for team in (stage.fleet.tenant_id, owner(rival)):
        put(stage, team, department)
    limit(stage, department, "on_demand", Quota(ceiling=2))
    stage.run("on_demand")
    stage.run("on_demand", by=rival)
    over = stage.submit("on_demand", by=rival)
    stage.cycle()
    assert stage.job(over).state is JobState.QUEUED
    assert "the department of its tenant holds, with all its teams, 2 of the 2 GPUs" in stage.job(over).state_reason
    put(stage, owner(rival), None)
    stage.cycle()
    assert stage.job(over).state is JobState.ACTIVE, "the limit went with the department"


def test_a_limit_above_that_is_set_after_the_plan_holds_at_the_commit(stage: Stage) -> None:
    department = tenant(stage, "research")
    put(stage, stage.fleet.tenant_id, department)
    job_id = stage.submit("on_demand")
    with stage.units.read() as session:
        policy = active_policy(session)
        views = gpu_views(session, stage.clock.now, policy.health)
        (placement,) = plan(views, waiting_jobs(session), policy).placements
    limit(stage, department, "on_demand", Quota(guaranteed=0, borrowable=0))
    words = "the department of its tenant holds, with all its teams, 0 of the 0 GPUs that its guarantee"
    with pytest.raises(PlacementLostError, match=words), stage.units.begin(SCHEDULER, PLACE) as unit:
        place(unit, placement, policy, planned_under=guarantees_now(unit.session))
    assert stage.job(job_id).state is JobState.QUEUED


def test_a_move_under_a_limit_that_is_passed_by_it_opens_an_incident_and_stops_nothing(stage: Stage) -> None:
    department = tenant(stage, "research")
    limit(stage, department, "on_demand", Quota(ceiling=1))
    job_id = stage.run("on_demand", shape={"gpus_per_node": 2})
    put(stage, stage.fleet.tenant_id, department)
    assert stage.job(job_id).state is JobState.ACTIVE
    with stage.units.read() as session:
        opened = session.scalars(select(Incident)).one()
    assert (opened.subject_id, opened.payload["assigned_gpus"], opened.closed_by) == (department, 2, None)
    put(stage, stage.fleet.tenant_id, None)
    with stage.units.read() as session:
        assert session.scalars(select(Incident)).one().closed_by == OPERATOR.name


def test_no_more_is_guaranteed_than_the_ceiling_allows(stage: Stage) -> None:
    with pytest.raises(ValidationFailedError, match="/guaranteed_gpus: 5 GPUs are guaranteed, and the ceiling is 4"):
        limit(stage, stage.fleet.tenant_id, "spot", Quota(guaranteed=5, ceiling=4))


def test_what_was_lent_is_taken_back_with_its_notice_and_reported_as_such(stage: Stage) -> None:
    rival = stage.add_tenant("rival")
    limit(stage, owner(rival), "spot", Quota(guaranteed=2))
    borrowed = [stage.run("spot", shape={"gpus_per_node": 2}) for _ in range(2)]
    stage.pass_time(AFTER_MIN_RUN_S)
    mine = stage.submit("spot", by=rival, shape={"gpus_per_node": 2})
    stage.cycle()
    reclaim = stage.reclaim()
    assert (reclaim.state, reclaim.victim_tier, reclaim.beneficiary_tier) == (ReclaimState.NOTIFIED, "spot", "spot")
    assert reclaim.reason == "what was borrowed in the tier spot is taken back by a tenant for 2 GPUs of its guarantee"
    assert reclaim.deadline_at - reclaim.notified_at == timedelta(seconds=DEFAULT_POLICY.tier("spot").notice_s or 0)
    assert reclaim.victim_job_id in borrowed
    stage.beat_all()
    stage.leave(reclaim.victim_job_id, LEFT)
    stage.cycle()
    assert stage.job(mine).state is JobState.ACTIVE
    more = stage.submit("spot", by=rival, shape={"gpus_per_node": 2})
    stage.pass_time(AFTER_MIN_RUN_S)
    stage.cycle()
    assert stage.job(more).state is JobState.QUEUED
    assert len(stage.reclaims()) == 1, "it has what is guaranteed to it"


def test_lending_is_queried_again_at_the_commit(stage: Stage) -> None:
    rival = stage.add_tenant("rival")
    limit(stage, owner(rival), "spot", Quota(guaranteed=2))
    for _ in range(2):
        stage.run("spot", shape={"gpus_per_node": 2})
    stage.pass_time(AFTER_MIN_RUN_S)
    stage.submit("spot", by=rival, shape={"gpus_per_node": 2})
    with stage.units.read() as session:
        asked = question(session, stage.clock.now)
    assert asked is not None
    chosen = plan(asked.gpus, asked.queue, asked.policy, asked.workload).reclaims
    assert len(chosen) == 1

    def commit() -> None:
        with stage.units.begin(SCHEDULER, NOTIFY, dry_run=True) as unit:
            notify(unit, chosen, asked.policy)

    commit()
    enrol_host(stage.units, "more", num_gpus=2)  # a fleet that could meet both guarantees
    limit(stage, stage.fleet.tenant_id, "spot", Quota(guaranteed=4))
    with pytest.raises(ReclaimLostError, match="what is borrowed in the tier spot is no longer as it was"):
        commit()
    limit(stage, stage.fleet.tenant_id, "spot", Quota())
    limit(stage, owner(rival), "spot", Quota(guaranteed=1))
    with pytest.raises(ReclaimLostError, match="past what is guaranteed to it in the tier spot"):
        commit()


def chosen_for(stage: Stage, rival: Principal) -> tuple[Reclaim, ...]:
    """Return what the rival, with a guarantee of two GPUs, would take back."""
    limit(stage, owner(rival), "spot", Quota(guaranteed=2))
    stage.submit("spot", by=rival, shape={"gpus_per_node": 2})
    with stage.units.read() as session:
        asked = question(session, stage.clock.now)
    assert asked is not None
    return plan(asked.gpus, asked.queue, asked.policy, asked.workload).reclaims


def test_what_has_notice_already_is_lent_no_more(stage: Stage) -> None:
    """Two schedulers, each of which takes one gang: the lender is guaranteed the other."""
    stage.set_policy(DEFAULT_POLICY.model_copy(update={"reclaim": ReclaimPolicy(cap_fraction=1.0)}))
    for _ in range(2):
        stage.run("spot", shape={"gpus_per_node": 2})
    stage.pass_time(AFTER_MIN_RUN_S)
    enrol_host(stage.units, "silent", num_gpus=2)  # a fleet that could meet all guarantees
    limit(stage, stage.fleet.tenant_id, "spot", Quota(guaranteed=2))
    (first,) = chosen_for(stage, stage.add_tenant("rival"))
    with stage.units.begin(SCHEDULER, NOTIFY) as unit:
        notify(unit, [first], active_policy(unit.session))
    (other,) = (attempt for attempt in stage.workload().running if attempt.attempt_id != first.victim)
    second = stage.add_tenant("second")
    assert chosen_for(stage, second) == ()
    with stage.units.begin(second, jobs.READ) as unit:
        (waiting,) = list_jobs(unit, JobFilter(), limit=50)
    late = replace(first, victim=other.attempt_id, beneficiary=waiting.job.id, gpus=other.gpus, hold=other.gpus)
    words = "what is borrowed in the tier spot is no longer as it was"
    with pytest.raises(ReclaimLostError, match=words), stage.units.begin(SCHEDULER, NOTIFY) as unit:
        notify(unit, [late], active_policy(unit.session))


def test_what_is_lent_is_queried_with_the_gpus_locked_as_a_placement_locks_them(stage: Stage) -> None:
    """Quotas before GPUs would wait for a placement that waits for the quotas."""
    for _ in range(2):
        stage.run("spot", shape={"gpus_per_node": 2})
    stage.pass_time(AFTER_MIN_RUN_S)
    chosen = chosen_for(stage, stage.add_tenant("rival"))

    def commit() -> None:
        with stage.units.begin(SCHEDULER, NOTIFY) as unit:
            notify(unit, chosen, active_policy(unit.session))

    with ThreadPoolExecutor(1) as aside, stage.units.engine.connect() as placing:
        placing.execute(select(Gpu.uuid).where(Gpu.uuid.in_(chosen[0].hold)).with_for_update())
        taking = aside.submit(commit)
        waits = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
        wait_until(lambda: bool(placing.scalar(waits)))
        assert placing.scalars(select(QuotaRow.tier).with_for_update(nowait=True)).all() == ["spot"]
        placing.rollback()
        taking.result(timeout=30)
    assert len(stage.reclaims()) == 1


def test_what_is_used_fades_by_half_in_a_half_life(stage: Stage) -> None:
    half_life_s = DEFAULT_POLICY.queue.usage_half_life_s
    stage.clock.advance(HOUR_S - stage.clock.now.timestamp() % HOUR_S)
    job_id = stage.run("on_demand", shape={"gpus_per_node": 2})
    began = stage.clock.now
    stage.clock.advance(half_life_s)
    with stage.units.read() as session:
        held = tree.used(session, stage.clock.now, half_life_s)
        assert held == {(stage.fleet.tenant_id, "on_demand"): pytest.approx(1.0, rel=1e-3)}, "half of all time"
        assert tree.used(session, began, half_life_s) == {}
    assert job_id in stage.running


def test_a_process_counts_what_was_used_once_an_hour(stage: Stage) -> None:
    stage.clock.advance(HOUR_S - stage.clock.now.timestamp() % HOUR_S)
    stage.run("on_demand")
    stage.clock.advance(HOUR_S - 1)
    with stage.units.read() as session:
        assert used(session, stage.clock.now, DEFAULT_POLICY) == {}, "not this hour's"
    stage.clock.advance(1)
    queue = DEFAULT_POLICY.queue.model_copy(update={"usage_half_life_s": 60.0})
    with stage.units.read() as session:
        first = used(session, stage.clock.now, DEFAULT_POLICY)
        other = used(session, stage.clock.now, DEFAULT_POLICY.model_copy(update={"queue": queue}))
    assert 0 < first[stage.fleet.tenant_id, "on_demand"] < other[stage.fleet.tenant_id, "on_demand"]


def test_usage_is_requested_where_two_tenants_wait_in_one_tier(stage: Stage) -> None:
    stage.clock.advance(HOUR_S - stage.clock.now.timestamp() % HOUR_S)
    stage.run("on_demand")
    stage.clock.advance(HOUR_S)
    rival = stage.add_tenant("rival")
    stage.submit("on_demand")
    with stage.units.read() as session:
        alone = question(session, stage.clock.now)
    stage.submit("on_demand", by=rival)
    with stage.units.read() as session:
        both = question(session, stage.clock.now)
    assert alone is not None
    assert both is not None
    assert alone.workload.tenancy.used == {}
    assert set(both.workload.tenancy.used) == {(stage.fleet.tenant_id, "on_demand")}
    assert replace(both.workload.tenancy, used={}) == alone.workload.tenancy
