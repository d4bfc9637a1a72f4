"""The commit of a placement: what it locks and in which order, what it sees after a wait, what it stores."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import select, update
from sqlalchemy.exc import IntegrityError

from control.attempts.attempts import lock_job
from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory
from control.fleet.inventory import gpu_views
from control.placement.pending_jobs import waiting_jobs
from control.placement.placement import PLACE, RENDEZVOUS_PORTS, PlacementLostError, place
from control.tenants.guarantees import guarantees_now
from muster.db.errors import violated_constraint
from muster.db.models import AllocationGpu, Attempt, AttemptHost, Cordon, Gpu, GpuHold, GpuOverride, Job, Node
from muster.db.queries import gang_rows, gangs
from muster.db.queries.assignments import ASSIGNED_ONCE
from muster.db.queries.gangs import Parts
from muster.domain.ids import AllocationId, AttemptId, Fence, NodeId
from muster.domain.job.spec import NodeLossRule
from muster.domain.policy.document import DEFAULT_POLICY, Policy
from muster.domain.states import Contact, HostPartState, JobState, Standing
from scheduler.model import Placement
from scheduler.planner import plan
from tests.control.conftest import SetClock
from tests.control.reclaim.stage import SCHEDULER, Stage, make_stage
from tests.lock_waits import wait_for_a_lock
from tests.stored_signals import add_signal

GANG = {"nodes": 2, "gpus_per_node": 2}


@pytest.fixture(params=["few GPUs", "many GPUs", "many GPUs that are what their rows say"])
def stage(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, units: UnitOfWorkFactory, clock: SetClock
) -> Stage:
    """Two hosts of two GPUs each, once asked about GPU by GPU and twice as if they were thousands.

    They are healthy because a person set it, of which their rows say nothing, or by themselves.
    """
    monkeypatch.setattr(gangs, "LARGE", gangs.LARGE if request.param == "few GPUs" else 1)
    stage = make_stage(units, clock, num_hosts=2)
    if request.param.endswith("what their rows say"):
        prove_all(stage)
    return stage


def prove_all(stage: Stage) -> None:
    with stage.units.begin(SCHEDULER, PLACE, quiet=True) as unit:
        unit.session.execute(update(GpuOverride).values(ended_at=unit.now))
        for standing in (Standing.PROBATION, Standing.HEALTHY):
            unit.session.execute(update(Gpu).values(standing=standing))


def planned(stage: Stage) -> Placement:
    with stage.units.read() as session:
        views = gpu_views(session, stage.clock.now, DEFAULT_POLICY.health)
        (placement,) = plan(views, waiting_jobs(session), DEFAULT_POLICY).placements
    return placement


def commit(stage: Stage, placement: Placement) -> AttemptId:
    with stage.units.begin(SCHEDULER, PLACE) as unit:
        return place(unit, placement, DEFAULT_POLICY, planned_under=guarantees_now(unit.session))


def lock_last_gpu(unit: UnitOfWork, placement: Placement) -> Gpu:
    last = max(uuid for _, part in placement.parts for uuid in part)
    return unit.session.scalars(select(Gpu).where(Gpu.uuid == last).with_for_update()).one()


def quarantine(unit: UnitOfWork, placement: Placement) -> None:
    lock_last_gpu(unit, placement).standing = Standing.QUARANTINED


def cordon(unit: UnitOfWork, placement: Placement) -> None:
    gpu = lock_last_gpu(unit, placement)
    unit.session.add(
        Cordon(id="cdn_1", gpu_uuid=gpu.uuid, reason_code="test", reason="noise", owner="test", created_at=unit.now)
    )


def report_as_broken(unit: UnitOfWork, placement: Placement) -> None:
    add_signal(unit, lock_last_gpu(unit, placement).uuid, is_alarming=True)


def hold_for_another(unit: UnitOfWork, placement: Placement) -> None:
    gpu = lock_last_gpu(unit, placement)
    others = select(Job.id).where(Job.id != placement.job_id)
    job_id = unit.session.scalars(others).one()
    unit.session.add(GpuHold(gpu_uuid=gpu.uuid, job_id=job_id, created_at=unit.now))


def override(unit: UnitOfWork, placement: Placement) -> None:
    gpu, later = lock_last_gpu(unit, placement), unit.now + timedelta(seconds=1)
    unit.session.add(
        GpuOverride(
            id="ovr_1",
            gpu_uuid=gpu.uuid,
            standing=Standing.SUSPECT,
            reason="noise",
            actor="test",
            until=later + timedelta(hours=1),
            created_at=later,
        )
    )


def cordon_node(unit: UnitOfWork, placement: Placement) -> None:
    node_id = lock_last_gpu(unit, placement).node_id
    unit.session.add(
        Cordon(id="cdn_1", node_id=node_id, reason_code="test", reason="noise", owner="test", created_at=unit.now)
    )


def lose_contact(unit: UnitOfWork, placement: Placement) -> None:
    node_id = lock_last_gpu(unit, placement).node_id
    unit.session.execute(update(Node).where(Node.id == node_id).values(contact=Contact.SILENT))


def change_cohort(unit: UnitOfWork, placement: Placement) -> None:
    lock_last_gpu(unit, placement).cohort_key = "of another kind"


def move(unit: UnitOfWork, placement: Placement) -> None:
    gpu = lock_last_gpu(unit, placement)
    gpu.node_id, gpu.slot_index = placement.parts[0][0], 7


def hold_job(unit: UnitOfWork, placement: Placement) -> None:
    lock_job(unit, placement.job_id).state = JobState.HELD


def swapped(parts: Parts) -> Parts:
    (first, own), (second, others) = parts
    return [(first, others), (second, own)]


def doubled(parts: Parts) -> Parts:
    (first, own), *rest = parts
    return [(first, [own[0], own[0]]), *rest]


CHANGES: list[tuple[Callable[[UnitOfWork, Placement], None], str]] = [
    (quarantine, "no longer admitted: standing"),
    (cordon, "no longer admitted: cordoned"),
    (cordon_node, "no longer admitted: cordoned"),
    (override, "no longer admitted: standing"),
    (lose_contact, "no longer admitted: node_contact"),
    (change_cohort, "no longer one cohort"),
    (report_as_broken, "no longer admitted: reported"),
    (hold_for_another, "is held for another job"),
    (move, "no longer where they were"),
    (hold_job, "is HELD now"),
]


@pytest.mark.parametrize(("change", "why"), CHANGES)
def test_what_was_committed_while_it_waited_for_a_lock_is_seen(
    stage: Stage, change: Callable[[UnitOfWork, Placement], None], why: str
) -> None:
    job_id = stage.submit("on_demand", shape=GANG)
    placement = planned(stage)
    stage.submit("on_demand")
    with ThreadPoolExecutor(1) as pool:
        with stage.units.begin(SCHEDULER, PLACE, quiet=True) as other:
            change(other, placement)
            other.session.flush()
            committing = pool.submit(commit, stage, placement)
            wait_for_a_lock(stage.units)
        with pytest.raises(PlacementLostError, match=why):
            committing.result()
    assert stage.fleet.attempts(job_id) == []
    with stage.units.read() as session:
        assert session.scalars(select(AllocationGpu)).all() == []


def test_the_job_is_locked_before_any_gpu(stage: Stage) -> None:
    job_id = stage.submit("on_demand", shape=GANG)
    placement = planned(stage)
    with ThreadPoolExecutor(1) as pool:
        with stage.units.begin(SCHEDULER, PLACE, quiet=True) as other:
            lock_job(other, job_id)
            committing = pool.submit(commit, stage, placement)
            wait_for_a_lock(stage.units)
            assert len(other.session.scalars(select(Gpu).with_for_update(skip_locked=True)).all()) == 4
        committing.result()
    assert stage.job(job_id).state is JobState.ACTIVE


def test_gpus_are_locked_in_the_order_of_their_ids(stage: Stage) -> None:
    stage.submit("on_demand", shape=GANG)
    placement = planned(stage)
    with ThreadPoolExecutor(1) as pool:
        with stage.units.begin(SCHEDULER, PLACE, quiet=True) as other:
            last = lock_last_gpu(other, placement)
            committing = pool.submit(commit, stage, placement)
            wait_for_a_lock(stage.units)
            time.sleep(0.05)
            free = other.session.scalars(select(Gpu.uuid).with_for_update(skip_locked=True)).all()
            assert free == [last.uuid], "all but the last are the commit's by now"
        committing.result()


def test_a_gang_is_stored_whole_rank_by_rank_with_the_fence_that_is_reported(stage: Stage) -> None:
    job_id = stage.submit("on_demand", shape=GANG)
    placement = planned(stage)
    before = stage.job(job_id).version
    attempt_id = commit(stage, placement)
    with stage.units.read() as session:
        attempt = session.get_one(Attempt, attempt_id)
        hosts = session.scalars(select(AttemptHost).order_by(AttemptHost.node_rank)).all()
        gpus = session.scalars(select(AllocationGpu).order_by(AllocationGpu.node_rank, AllocationGpu.local_index)).all()
    stored: dict[NodeId, list[str]] = {}
    for gpu in gpus:
        stored.setdefault(gpu.node_id, []).append(gpu.gpu_uuid)
    assert [(node_id, tuple(uuids)) for node_id, uuids in stored.items()] == list(placement.parts)
    assert [(host.node_id, host.state, host.num_wakeups) for host in hosts] == [
        (node_id, HostPartState.UNCLAIMED, 1) for node_id, _ in placement.parts
    ]
    (told,) = stage.events("attempt.placed")
    assert (told.payload["fence"], told.payload["number"]) == (attempt.fence, attempt.number) == (attempt.fence, 1)
    assert attempt.rendezvous_port == RENDEZVOUS_PORTS[attempt.fence % len(RENDEZVOUS_PORTS)]
    assert (stage.job(job_id).state, stage.job(job_id).version) == (JobState.ACTIVE, before + 1)


def test_a_job_that_has_changed_since_the_plan_is_not_placed(stage: Stage) -> None:
    job_id = stage.submit("on_demand")
    placement = planned(stage)
    with stage.units.begin(SCHEDULER, PLACE, quiet=True) as unit:
        unit.session.execute(update(Job).where(Job.id == job_id).values(version=Job.version + 1))
    with pytest.raises(PlacementLostError):
        commit(stage, placement)


def test_a_gpu_that_another_job_has_taken_is_not_placed_again(stage: Stage) -> None:
    stage.submit("on_demand", shape=GANG)
    placement = planned(stage)
    commit(stage, placement)
    job_id = stage.submit("on_demand", shape=GANG)
    late = Placement(job_id, stage.job(job_id).version, placement.parts)
    with pytest.raises(PlacementLostError, match="no longer admitted: assigned"):
        commit(stage, late)


@pytest.mark.parametrize(("change", "constraint"), [(swapped, "allocation_gpus_gpu"), (doubled, ASSIGNED_ONCE)])
def test_the_write_by_itself_refuses_places_that_are_none(
    stage: Stage, change: Callable[[Parts], Parts], constraint: str
) -> None:
    """Whatever was asked before: a GPU on another node than its own, a GPU twice."""
    job_id = stage.submit("on_demand", shape=GANG)
    placement = planned(stage)
    gang = gang_rows.Gang(
        attempt_id=AttemptId("att_1"),
        allocation_id=AllocationId("alc_1"),
        number=1,
        fence=Fence(1 << 40),
        on_node_loss=NodeLossRule.WAIT,
        address="127.0.0.1",
        ports=RENDEZVOUS_PORTS,
        parts=change(placement.parts),
    )
    with pytest.raises(IntegrityError) as refused, stage.units.begin(SCHEDULER, PLACE, quiet=True) as unit:
        unit.write_last(gang_rows.written(unit.session.get_one(Job, job_id), gang, unit.now))
    assert violated_constraint(refused.value) == constraint
    assert stage.fleet.attempts(job_id) == []


def test_a_tier_that_requests_less_to_be_alike_mixes_cohorts_and_no_more(stage: Stage) -> None:
    """I4 as the tier has it: the commit asks by the rule by which the planner chose."""
    stage.submit("on_demand", shape=GANG)
    asked = {"tiers": {"on_demand": {"priority": 1, "homogeneity": ["model", "driver_version"]}}}
    policy = Policy.model_validate(asked)
    placement = planned(stage)
    with stage.units.begin(SCHEDULER, PLACE, quiet=True) as unit:
        gpu = lock_last_gpu(unit, placement)
        key = gpu.cohort_key
        gpu.cohort_key = key.replace("vbios_version=-", "vbios_version=96.00.9F")
        assert gpu.cohort_key != key
    with pytest.raises(PlacementLostError, match="no longer one cohort"):
        commit(stage, placement)
    with stage.units.begin(SCHEDULER, PLACE, quiet=True) as unit:
        lock_last_gpu(unit, placement).cohort_key = key.replace("driver_version=", "driver_version=9")
    with pytest.raises(PlacementLostError, match="no longer one cohort"), stage.units.begin(SCHEDULER, PLACE) as unit:
        place(unit, placement, policy, planned_under=guarantees_now(unit.session))
    with stage.units.begin(SCHEDULER, PLACE, quiet=True) as unit:
        lock_last_gpu(unit, placement).cohort_key = key.replace("vbios_version=-", "vbios_version=96.00.9F")
    with stage.units.begin(SCHEDULER, PLACE) as unit:
        assert place(unit, placement, policy, planned_under=guarantees_now(unit.session))
