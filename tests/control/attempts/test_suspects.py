"""A program that breaks GPUs wherever it goes is HELD, and what it left behind is held against no GPU meanwhile."""

from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from sqlalchemy import select, text

from control.core.unit_of_work import UnitOfWorkFactory
from control.evidence.rows import change_evidence, evidence_of
from control.health.evacuation import evacuate_once
from control.health.judge import SIGNALS, judge_once
from control.health.suspicion import hold_suspects_once
from control.jobs import jobs
from control.policy.policies import ACTIVATE, store_policy
from health.evidence.suppression import suppressed
from muster.db.models import EvidenceRow, Gpu, Incident
from muster.domain.errors import ConflictError, ForbiddenError, NotFoundError
from muster.domain.evidence.findings import Suppression
from muster.domain.ids import GpuUuid, JobId, TenantId
from muster.domain.policy.document import Policy
from muster.domain.policy.health import BreakerPolicy, HealthPolicy
from muster.domain.principals import Principal, Role, system_principal
from muster.domain.states import Cause, JobState, Standing
from muster.identity import new_id
from tests.control.conftest import SetClock
from tests.filled_once import filled_world
from tests.fleet_factory import OPERATOR, Fleet, make_fleet
from tests.played_host import PlayedHost, played_host
from tests.stored_signals import add_signal

JUDGE = system_principal("judge")
WIDE = Policy(
    health=HealthPolicy(
        breaker=BreakerPolicy(
            fleet_window_floor=100, fleet_floor=100, rack_floor=100, cohort_floor=100, tenant_floor=100
        )
    )
)
"""A breaker that lets everything pass: it is not tested here."""
STOPPED = {"launcher_exit_code": 1, "ranks": {"0": {"exit_code": 1, "signal": 15}}, "stop_reason": "evacuation"}
FAILED = {"launcher_exit_code": 1, "ranks": {"0": {"exit_code": 3, "signal": None}}}
TIMED_OUT = {
    "launcher_exit_code": 1,
    "ranks": {"0": {"exit_code": 1, "signal": None, "error_excerpt": "Watchdog caught collective operation timeout"}},
}


@dataclass(frozen=True)
class World(Fleet):
    clock: SetClock
    hosts: dict[str, PlayedHost] = field(default_factory=dict)

    def run_to_its_gpus(self, job_id: JobId) -> tuple[GpuUuid, ...]:
        """Placed, claimed and started, on whichever host it came to."""
        self.clock.advance(1)
        for host in self.hosts.values():
            host.beat()
        self.reconcile()
        self.cycle()
        newest = self.attempts(job_id)[-1]
        (part,) = newest.hosts
        host = self.hosts[part.part.node_id]
        assert host.claim(newest.attempt.id, newest.attempt.fence).granted
        host.report(newest.attempt.id, newest.attempt.fence, "started")
        self.clock.advance(1)
        return part.gpus

    def end(self, job_id: JobId, record: dict[str, object]) -> None:
        self.clock.advance(1)
        newest = self.attempts(job_id)[-1]
        host = self.hosts[newest.hosts[0].part.node_id]
        host.report(newest.attempt.id, newest.attempt.fence, "exited", "cleaned", record=record)

    def report(self, gpu: GpuUuid, code: int = 95, *, ago_s: float = 0.0) -> None:
        """An XID of this GPU arrives."""
        with self.units.begin(JUDGE, SIGNALS, quiet=True) as unit:
            add_signal(unit, gpu, code=code, at=unit.now - timedelta(seconds=ago_s))

    def break_a_gpu(self, job_id: JobId) -> GpuUuid:
        """The job runs, its GPU reports it, the judge takes the GPU out and the job off it."""
        (gpu,) = self.run_to_its_gpus(job_id)
        self.report(gpu)
        self.judge()
        self.end(job_id, STOPPED)
        return gpu

    def judge(self) -> None:
        while judge_once(self.units, JUDGE):
            pass
        evacuate_once(self.units, JUDGE)

    def evidence(self) -> dict[GpuUuid | None, bool]:
        """About each GPU: whether it is suspended."""
        with self.units.read() as session:
            return {row.gpu_uuid: row.is_suspended for row in session.scalars(select(EvidenceRow))}

    def gpu(self, uuid: GpuUuid) -> Gpu:
        with self.units.read() as session:
            return session.get_one(Gpu, uuid)

    def incidents(self) -> list[Incident]:
        with self.units.read() as session:
            return list(session.scalars(select(Incident).where(Incident.kind == "suspect_program")))

    def release(self, job_id: JobId, principal: Principal = OPERATOR) -> JobState:
        with self.units.begin(principal, jobs.RELEASE) as unit:
            return jobs.release(unit, job_id, reason="their firmware was at fault").state


@pytest.fixture
def world(clock: SetClock, units: UnitOfWorkFactory) -> World:
    return filled_world(units, clock, "three hosts under a wide policy", lambda: _make_world(units, clock))


def _make_world(units: UnitOfWorkFactory, clock: SetClock) -> World:
    fleet = make_fleet(units)
    with units.begin(OPERATOR, ACTIVATE) as unit:
        store_policy(unit, WIDE, reason="test")
    hosts = [PlayedHost(units, fleet.node_id, boot_id="boot-of-alpha"), *(played_host(units, n) for n in ("b", "c"))]
    by_id = {str(host.node_id): host for host in hosts}
    return World(units, fleet.tenant, fleet.tenant_id, fleet.node_id, clock, by_id)


def test_a_program_that_breaks_gpus_on_three_disjoint_sets_is_on_hold(world: World) -> None:
    job_id = world.submit()
    broken = [world.break_a_gpu(job_id) for _ in range(3)]
    assert len(set(broken)) == 3
    assert [view.attempt.cause for view in world.attempts(job_id)] == [Cause.EVACUATED] * 3
    job = world.job(job_id)
    assert job.state is JobState.HELD
    assert job.state_reason.startswith("suspect program: xid:95 on 3 sets of GPUs")
    assert all(uuid in job.state_reason for uuid in broken)
    world.clock.advance(3600)
    for host in world.hosts.values():
        host.beat()
    world.reconcile()
    world.cycle()
    assert len(world.attempts(job_id)) == 3, "no fourth set is risked"
    (incident,) = world.incidents()
    assert incident.payload["job_id"] == job_id
    assert sorted(uuid for each in incident.payload["gpu_sets"] for uuid in each) == sorted(broken)


def test_its_evidence_weighs_nothing_and_brings_nothing_back_by_itself(world: World) -> None:
    job_id = world.submit()
    first, second = (world.break_a_gpu(job_id) for _ in range(2))
    assert world.evidence() == {first: False, second: False}
    assert world.gpu(first).score == 0
    third = world.break_a_gpu(job_id)
    world.judge()
    assert world.evidence() == {first: True, second: True, third: True}
    for uuid in (first, second, third):
        assert (world.gpu(uuid).score, world.gpu(uuid).standing) == (100, Standing.QUARANTINED), "I11: a burn-in first"


def test_two_broken_gpus_make_no_suspect_of_the_job_that_met_them(world: World) -> None:
    job_id = world.submit()
    broken = [world.break_a_gpu(job_id) for _ in range(2)]
    world.run_to_its_gpus(job_id)
    world.end(job_id, {"launcher_exit_code": 0, "ranks": {"0": {"exit_code": 0, "signal": None}}})
    assert world.job(job_id).state is JobState.SUCCEEDED
    assert world.evidence() == dict.fromkeys(broken, False)
    assert world.incidents() == []


def test_other_jobs_on_the_same_gpus_are_not_on_hold(world: World) -> None:
    suspect, bystander = world.submit(), world.submit(name="bystander")
    for _ in range(3):
        world.break_a_gpu(suspect)
    assert world.job(suspect).state is JobState.HELD
    assert world.job(bystander).state is not JobState.HELD


def test_an_operator_alone_releases_it_then_its_evidence_counts_and_its_past_does_not(world: World) -> None:
    job_id = world.submit()
    broken = [world.break_a_gpu(job_id) for _ in range(3)]
    with pytest.raises(ForbiddenError, match="gpu:write"):
        world.release(job_id, world.tenant)
    stranger = Principal(name="stranger", role=Role.TENANT_ADMIN, tenant_id=TenantId(new_id("tenant")))
    with pytest.raises(NotFoundError):
        world.release(job_id, stranger)
    assert world.release(job_id) is JobState.QUEUED
    assert world.evidence() == dict.fromkeys(broken, False)
    (incident,) = world.incidents()
    assert incident.closed_by == OPERATOR.name
    with pytest.raises(ConflictError):
        world.release(job_id)
    broken.append(world.break_a_gpu(job_id))
    assert len(set(broken)) == 4
    assert world.job(job_id).state is JobState.RECOVERING, "three new sets make a new suspicion, not the old ones"


def reported_after_the_end_of_three(world: World) -> tuple[JobId, list[GpuUuid]]:
    """A job whose three attempts ended on three GPUs, each of which reports a fault afterwards."""
    job_id = world.submit(restart={"max_restarts": 5})
    gpus = []
    for _ in range(3):
        (gpu,) = world.run_to_its_gpus(job_id)
        world.end(job_id, FAILED)
        gpus.append(gpu)
        with world.units.begin(OPERATOR, ACTIVATE) as unit:  # the next attempt goes elsewhere
            unit.session.get_one(Gpu, gpu).is_mig_enabled = True
            unit.audit("test", "gpu", gpu)
        world.clock.advance(60)
    assert hold_suspects_once(world.units, JUDGE) == 0
    for gpu, ago_s in zip(gpus, (188, 125, 62), strict=True):
        world.report(gpu, ago_s=ago_s)
    world.judge()
    return job_id, gpus


def test_evidence_that_arrives_after_the_end_holds_what_waits_to_run_again(world: World) -> None:
    job_id, gpus = reported_after_the_end_of_three(world)
    assert world.job(job_id).state is JobState.RECOVERING
    assert hold_suspects_once(world.units, JUDGE) == 1
    assert world.job(job_id).state is JobState.HELD
    assert world.evidence() == dict.fromkeys(gpus, True)
    assert hold_suspects_once(world.units, JUDGE) == 0


@pytest.mark.parametrize("why", [*Suppression, None])
def test_evidence_that_is_suppressed_or_pending_makes_no_suspect(world: World, why: Suppression | None) -> None:
    job_id, gpus = reported_after_the_end_of_three(world)
    with world.units.begin(OPERATOR, ACTIVATE) as unit:
        for row in unit.session.scalars(select(EvidenceRow)).all():
            if why is None:  # by no edge: only the query is tried
                unit.session.execute(text("SET LOCAL session_replication_role = replica"))
                row.weighs_from_at = unit.now
            else:
                change_evidence(row, suppressed(evidence_of(row), why))
        unit.audit("test", "gpu", gpus[0])
    assert hold_suspects_once(world.units, JUDGE) == 0
    assert world.job(job_id).state is JobState.RECOVERING


def test_what_is_reported_after_the_hold_is_suspended_too(world: World) -> None:
    job_id = world.submit()
    broken = [world.break_a_gpu(job_id) for _ in range(3)]
    world.report(broken[0], 79, ago_s=6)
    world.judge()
    hold_suspects_once(world.units, JUDGE)
    with world.units.read() as session:
        rows = session.scalars(select(EvidenceRow).where(EvidenceRow.gpu_uuid == broken[0])).all()
        assert {row.fault_key: row.is_suspended for row in rows} == {"xid:95": True, "xid:79": True}
    world.release(job_id)
    assert not any(world.evidence().values())


def test_a_job_that_is_cancelled_while_suspected_lifts_nothing(world: World) -> None:
    job_id = world.submit()
    for _ in range(3):
        world.break_a_gpu(job_id)
    assert world.cancel(job_id).state is JobState.CANCELLED
    assert all(world.evidence().values())
    assert world.release(job_id) is JobState.CANCELLED, "the operator clears the program; the job stays ended"
    assert not any(world.evidence().values())


def test_collectives_that_time_out_on_three_disjoint_gangs_are_the_programs(world: World) -> None:
    job_id = world.submit(shape={"gpus_per_node": 2})
    for _ in range(3):
        gpus = world.run_to_its_gpus(job_id)
        world.end(job_id, TIMED_OUT)
        with world.units.begin(OPERATOR, ACTIVATE) as unit:
            for gpu in gpus:
                unit.session.get_one(Gpu, gpu).is_mig_enabled = True
            unit.audit("test", "gpu", gpus[0])
        world.clock.advance(600)
    assert [view.attempt.cause for view in world.attempts(job_id)] == [Cause.NCCL_TIMEOUT] * 3
    assert world.job(job_id).state is JobState.HELD


def test_a_job_kept_after_failed_launches_is_released_by_its_tenant(world: World) -> None:
    job_id = world.submit()
    for _ in range(Policy().dispatch.launch_failures_before_hold):
        world.run_to_its_gpus(job_id)
        world.end(job_id, {"spawn_error": "cannot fork", "spawn_fault": "host"})
        world.clock.advance(3600)
    assert world.job(job_id).state is JobState.HELD
    assert world.release(job_id, world.tenant) is JobState.QUEUED
