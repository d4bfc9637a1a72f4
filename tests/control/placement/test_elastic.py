"""Elastic jobs over PostgreSQL: each attempt has its own size, and no job takes the GPUs that another keeps."""

import pytest
from sqlalchemy import select

from control.core.unit_of_work import UnitOfWorkFactory
from control.jobs import jobs
from control.jobs import read as job_reads
from control.jobs.read import AttemptView
from control.placement import resizing
from control.placement.placement import PLACE, PlacementLostError, place
from control.tenants import quotas
from control.tenants.guarantees import guarantees_now
from muster.db.models import AuditEntry, Gpu
from muster.domain.errors import ConflictError, NotFoundError, ValidationFailedError
from muster.domain.ids import GpuUuid, JobId
from muster.domain.policy.document import DEFAULT_POLICY, DispatchPolicy, Policy
from muster.domain.principals import Principal
from muster.domain.states import Cause, JobState, StopReason
from scheduler.model import Placement
from scheduler.quota.tenancy import Quota
from tests.control.conftest import SetClock
from tests.control.reclaim.stage import DONE, SCHEDULER, Stage, make_stage
from tests.fleet_factory import OPERATOR
from tests.played_host import PlayedHost

GANG = {"min_nodes": 1, "nodes": 2, "max_nodes": 3, "gpus_per_node": 2}
STOPPED = {"launcher_exit_code": 0, "ranks": {"0": {"exit_code": 75, "signal": None}}, "stop_reason": "resize"}
DWELL_S = 301


@pytest.fixture
def stage(units: UnitOfWorkFactory, clock: SetClock) -> Stage:
    """Three hosts of two GPUs each."""
    return make_stage(units, clock, num_hosts=3)


def attempts(stage: Stage, job_id: JobId) -> list[AttemptView]:
    with stage.units.begin(OPERATOR, jobs.READ) as unit:
        return job_reads.attempts_of(unit, job_id)


def num_hosts(stage: Stage, job_id: JobId) -> list[int | None]:
    """Of each attempt, as its row says; and its hosts agree."""
    views = attempts(stage, job_id)
    assert [view.attempt.num_nodes for view in views] == [len(view.hosts) for view in views]
    return [view.attempt.num_nodes for view in views]


def gpus(stage: Stage, job_id: JobId) -> set[GpuUuid]:
    return {uuid for host in attempts(stage, job_id)[-1].hosts for uuid in host.gpus}


def resize(stage: Stage, job_id: JobId, nodes: int, *, by: Principal | None = None) -> None:
    with stage.units.begin(by or stage.fleet.tenant, resizing.RESIZE) as unit:
        resizing.resize(unit, job_id, nodes, reason="a test")


def place_again(stage: Stage) -> None:
    stage.reconcile()
    stage.cycle()
    stage.beat_all()


@pytest.fixture
def shrunk(stage: Stage) -> tuple[JobId, JobId]:
    """An elastic job on the one host that another job left it, and that other job."""
    other = stage.run("on_demand", shape={"nodes": 2, "gpus_per_node": 2})
    job_id = stage.run("on_demand", shape=GANG)
    assert num_hosts(stage, job_id) == [1]
    return job_id, other


def test_it_starts_with_fewer_hosts_and_its_order_reports_it(stage: Stage, shrunk: tuple[JobId, JobId]) -> None:
    ((host, held),) = stage.running[shrunk[0]]
    order = host.claim(held.attempt_id, held.fence).order
    assert order is not None
    assert (order.num_nodes, order.env["MUSTER_ACCUMULATION"]) == (1, "2")
    rule = order.env["MUSTER_CHECKPOINT_INTERVAL"]
    assert '"num_gpus": 2' in rule


def test_it_grows_when_gpus_are_idle_and_is_charged_nothing(stage: Stage, shrunk: tuple[JobId, JobId]) -> None:
    job_id, other = shrunk
    own = gpus(stage, job_id)
    stage.leave(other, DONE)
    stage.cycle()
    assert not stage.stop_requests(), "it has not run for long"
    stage.pass_time(DWELL_S)
    stage.cycle()
    (stop,) = stage.stop_requests()
    assert (stop.reason, stop.detail) == (
        StopReason.RESIZE,
        "continues with 3 instead of 1 hosts: GPUs are idle that it can use",
    )
    assert len(stage.assigned_for(job_id)) == 6
    (event,) = stage.events("attempt.resizing")
    assert (event.payload["from_nodes"], event.payload["to_nodes"]) == (1, 3)
    stage.cycle()
    assert len(stage.stop_requests()) == 1
    higher = stage.submit("reserved", shape={"gpus_per_node": 2})
    stage.cycle()
    assert stage.job(higher).state is JobState.QUEUED, "no job takes the GPUs that it will continue with"
    stage.beat_all()
    stage.leave(job_id, STOPPED)
    place_again(stage)
    assert num_hosts(stage, job_id) == [1, 3]
    assert own < gpus(stage, job_id)
    assert stage.assigned_for(job_id) == set()
    assert attempts(stage, job_id)[0].attempt.cause is Cause.RESIZE
    assert stage.job(job_id).restarts_used == 0


def test_a_job_that_cannot_wait_for_its_new_size_holds_nothing(stage: Stage, shrunk: tuple[JobId, JobId]) -> None:
    job_id, other = shrunk
    stage.leave(other, DONE)
    stage.pass_time(DWELL_S)
    stage.cycle()
    assert stage.assigned_for(job_id)
    stage.cancel(job_id)
    stage.leave(job_id, DONE)
    stage.cycle()
    assert stage.assigned_for(job_id) == set()


def test_it_does_not_grow_past_its_quota(stage: Stage, shrunk: tuple[JobId, JobId]) -> None:
    job_id, other = shrunk
    with stage.units.begin(OPERATOR, quotas.SET) as unit:
        quotas.set_quota(unit, stage.fleet.tenant_id, "on_demand", Quota(ceiling=4), reason="small")
    stage.leave(other, DONE)
    stage.pass_time(DWELL_S)
    stage.cycle()
    assert len(stage.assigned_for(job_id)) == 4


def test_after_a_lost_host_it_goes_on_with_those_that_are_left(stage: Stage) -> None:
    job_id = stage.run("on_demand", shape={**GANG, "nodes": 3}, on_node_loss="fenced")
    assert num_hosts(stage, job_id) == [3]
    lost, *alive = stage.hosts
    stage.hosts.remove(lost)
    parts = [part for part in stage.running[job_id] if part[0] is not lost]
    stage.running[job_id] = parts
    for _ in range(25):
        stage.clock.advance(15)
        stage.beat_all()
        stage.reconcile()
    stage.leave(job_id, STOPPED)
    place_again(stage)
    assert num_hosts(stage, job_id) == [3, 2]
    assert attempts(stage, job_id)[0].attempt.cause is Cause.NODE_LOST
    assert {host.part.node_id for host in attempts(stage, job_id)[-1].hosts} == {host.node_id for host in alive}
    told = stage.events("attempt.placed")[-1].payload["recovery"]
    assert (told["kind"], told["reason"]) == ("shrunk", "continues with 2 instead of 3 hosts: it keeps 2 of its hosts")
    assert (told["left"], told["joined"], told["replaced"]) == ([lost.node_id], [], [])
    assert (told["kept_nodes"], told["kept_gpus"]) == (2, 4)


def test_it_waits_for_its_own_hosts_to_be_clean_rather_than_to_go_on_smaller(stage: Stage) -> None:
    stage.set_policy(Policy(dispatch=DispatchPolicy(retry_backoff_s=1.0)))
    job_id = stage.run("on_demand", shape={**GANG, "nodes": 3}, restart={"max_restarts": 3})
    fails = {"launcher_exit_code": 1, "ranks": {"0": {"exit_code": 1, "signal": None}}}
    parts = stage.running.pop(job_id)
    for host, held in parts:
        host.report(held.attempt_id, held.fence, "exited", record=fails)
    for host, held in parts[:2]:
        host.report(held.attempt_id, held.fence, "cleaned")
    stage.clock.advance(2)
    place_again(stage)
    assert stage.job(job_id).state is JobState.QUEUED
    assert num_hosts(stage, job_id) == [3]
    host, held = parts[2]
    host.report(held.attempt_id, held.fence, "cleaned")
    place_again(stage)
    assert num_hosts(stage, job_id) == [3, 3]


def test_its_tenant_makes_it_smaller_and_larger_again(stage: Stage) -> None:
    job_id = stage.run("on_demand", shape=GANG)
    assert num_hosts(stage, job_id) == [3]
    before = gpus(stage, job_id)
    resize(stage, job_id, 2)
    assert len(stage.assigned_for(job_id)) == 4
    stage.beat_all()
    stage.leave(job_id, STOPPED)
    place_again(stage)
    assert num_hosts(stage, job_id) == [3, 2]
    assert gpus(stage, job_id) < before
    stage.pass_time(DWELL_S)
    stage.cycle()
    assert len(stage.stop_requests()) == 1, "what was asked for is the most it takes"
    resize(stage, job_id, 3)
    stage.cycle()
    assert len(stage.assigned_for(job_id)) == 6
    stage.beat_all()
    stage.leave(job_id, STOPPED)
    place_again(stage)
    assert num_hosts(stage, job_id) == [3, 2, 3]
    assert stage.job(job_id).restarts_used == 0


def test_requesting_twice_is_once_and_what_is_queried_is_reported(stage: Stage) -> None:
    job_id = stage.submit("on_demand", shape=GANG)
    resize(stage, job_id, 1)
    resize(stage, job_id, 1)
    (event,) = stage.events("job.resize_requested")
    assert event.payload == {"nodes": 1, "before": None, "reason": "a test"}
    with stage.units.read() as session:
        entries = session.scalars(select(AuditEntry).where(AuditEntry.action == "job.resize")).all()
    assert len(entries) == 1
    stage.cycle()
    assert num_hosts(stage, job_id) == [1]


def test_what_is_no_size_of_the_job_is_refused_by_name(stage: Stage) -> None:
    job_id = stage.submit("on_demand", shape=GANG)
    rigid = stage.submit("on_demand", shape={"nodes": 2, "gpus_per_node": 2})
    with pytest.raises(ValidationFailedError) as refused:
        resize(stage, job_id, 4)
    assert "must be from 1 to 3" in refused.value.detail
    with pytest.raises(ValidationFailedError) as refused:
        resize(stage, rigid, 2)
    assert "no other number" in refused.value.detail
    with pytest.raises(NotFoundError):
        resize(stage, job_id, 2, by=stage.add_tenant("foreign"))
    stage.cancel(job_id)
    with pytest.raises(ConflictError, match="ended already"):
        resize(stage, job_id, 2)


def test_a_plan_of_another_size_is_refused_at_its_commit(stage: Stage) -> None:
    job_id = stage.submit("on_demand", shape={**GANG, "max_nodes": 2})
    job = stage.job(job_id)
    parts = tuple((host.node_id, _gpus_on(stage, host)) for host in stage.hosts)
    with (
        pytest.raises(PlacementLostError, match="3 hosts are no size"),
        stage.units.begin(SCHEDULER, PLACE) as unit,
    ):
        place(unit, Placement(job_id, job.version, parts), DEFAULT_POLICY, planned_under=guarantees_now(unit.session))


def _gpus_on(stage: Stage, host: PlayedHost) -> tuple[GpuUuid, ...]:
    with stage.units.read() as session:
        return tuple(session.scalars(select(Gpu.uuid).where(Gpu.node_id == host.node_id).order_by(Gpu.uuid)))


def ask_by_program(stage: Stage, job_id: JobId, *numbers: int, offset: int = 0, rank: int = 0) -> None:
    host, item = stage.running[job_id][0]
    messages = [{"type": "resize", "num_nodes": number} for number in numbers]
    at_ms = int(stage.clock.now.timestamp() * 1000)
    host.report_words(item.attempt_id, item.fence, *messages, at_ms=at_ms, offset=offset, rank=rank)


def test_its_program_makes_it_smaller_and_a_word_that_comes_again_has_no_effect(stage: Stage) -> None:
    job_id = stage.run("on_demand", shape=GANG)
    _, held = stage.running[job_id][0]
    ask_by_program(stage, job_id, 2, 1)
    ask_by_program(stage, job_id, 2)  # the same bytes of the file: the answer to the first was lost
    assert stage.job(job_id).wanted_nodes == 1
    (stop,) = stage.stop_requests()
    assert (stop.reason, stop.attempt_id) == (StopReason.RESIZE, held.attempt_id)
    (event,) = stage.events("job.resize_requested")
    assert event.payload["attempt_id"] == held.attempt_id
    with stage.units.read() as session:
        (entry,) = session.scalars(select(AuditEntry).where(AuditEntry.action == "job.resize"))
    assert (entry.reason, entry.detail["attempt_id"]) == ("its program asked for it", held.attempt_id)
    stage.beat_all()
    stage.leave(job_id, STOPPED)
    place_again(stage)
    assert num_hosts(stage, job_id) == [3, 1]


@pytest.mark.parametrize(
    ("shape", "requested", "why"),
    [
        (GANG, 4, "must be from 1 to 3, as the job was submitted"),
        (GANG, 0, "must be from 1 to 3, as the job was submitted"),
        ({"nodes": 2, "gpus_per_node": 2}, 1, "the job has 2 hosts and no other number"),
    ],
)
def test_a_number_that_its_program_may_not_have_is_reported_and_stops_nothing(
    stage: Stage, shape: dict[str, int], requested: int, why: str
) -> None:
    job_id = stage.run("on_demand", shape=shape)
    ask_by_program(stage, job_id, requested)
    (event,) = stage.events("job.resize_refused")
    assert (event.payload["nodes"], why in event.payload["reason"]) == (requested, True)
    assert stage.job(job_id).wanted_nodes is None
    assert not stage.stop_requests()


def test_another_rank_than_the_first_requests_nothing(stage: Stage) -> None:
    job_id = stage.run("on_demand", shape=GANG)
    ask_by_program(stage, job_id, 1, rank=1)
    assert stage.job(job_id).wanted_nodes is None


def test_a_word_of_an_attempt_that_is_over_changes_no_newer_one(stage: Stage) -> None:
    job_id = stage.run("on_demand", shape=GANG)
    first = stage.running[job_id][0]
    resize(stage, job_id, 1)
    stage.beat_all()
    stage.leave(job_id, STOPPED)
    place_again(stage)
    host, item = first
    at_ms = int(stage.clock.now.timestamp() * 1000)
    host.report_words(item.attempt_id, item.fence, {"type": "resize", "num_nodes": 3}, at_ms=at_ms)
    (event,) = stage.events("job.resize_refused")
    assert "a newer attempt has the job" in event.payload["reason"]
    assert stage.job(job_id).wanted_nodes == 1
