"""From an XID and an exit record to the cause: the fault is sought in an attempt's GPUs before its program."""

from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from sqlalchemy import select

from control.core.unit_of_work import UnitOfWorkFactory
from control.evidence.inbox import Reported, sample_row
from control.health.judge import SIGNALS, judge_once
from control.placement.pending_jobs import nodes_at_fault
from health.detectors.detector import Closing
from health.detectors.gpu import gpu_lost
from muster.db.models import AttemptHost, Event, EvidenceRow, Gpu
from muster.db.queries.telemetry import add_signals
from muster.domain.evidence.findings import Finding, Severity, Source, Trust
from muster.domain.ids import GpuUuid, JobId
from muster.domain.principals import system_principal
from muster.domain.states import Cause, JobState
from muster.domain.times import to_ms
from tests.control.conftest import SetClock
from tests.fleet_factory import Fleet, make_fleet
from tests.played_host import PlayedHost, played_host
from tests.stored_signals import add_signal

JUDGE = system_principal("judge")
LAUNCH_FAILURE = "RuntimeError: CUDA error: unspecified launch failure"
PEER = "RuntimeError: Connection closed by peer [127.0.0.1]:4242"


@dataclass(frozen=True)
class World(Fleet):
    clock: SetClock
    hosts: dict[str, PlayedHost] = field(default_factory=dict)

    def run(self, job_id: JobId) -> list[GpuUuid]:
        """Placed, claimed and started. Its GPUs by rank."""
        self.clock.advance(1)
        for host in self.hosts.values():
            host.beat()
        self.reconcile()
        self.cycle()
        newest = self.attempts(job_id)[-1]
        for part in newest.hosts:
            host = self.hosts[part.part.node_id]
            assert host.claim(newest.attempt.id, newest.attempt.fence).granted
            host.report(newest.attempt.id, newest.attempt.fence, "started")
        self.clock.advance(5)
        return [gpu for part in newest.hosts for gpu in part.gpus]

    def report(self, gpu: GpuUuid, code: int = 79, *, ago_s: float = 0.0) -> None:
        with self.units.begin(JUDGE, SIGNALS, quiet=True) as unit:
            add_signal(unit, gpu, code=code, at=unit.now - timedelta(seconds=ago_s), source="kernel_log")

    def judge(self) -> None:
        while judge_once(self.units, JUDGE):
            pass

    def end(self, job_id: JobId, words: str, *, rank: int = 0, **record: object) -> None:
        """The host of rank ``rank`` says how that one ended."""
        newest = self.attempts(job_id)[-1]
        host = self.hosts[newest.hosts[rank].part.node_id if len(newest.hosts) > 1 else newest.hosts[0].part.node_id]
        ended = {"exit_code": 1, "signal": None, "ended_at_ms": self.now_ms, "error_excerpt": words}
        document = {"launcher_exit_code": 1, "ranks": {str(rank): ended}, **record}
        host.report(newest.attempt.id, newest.attempt.fence, "exited", "cleaned", record=document)

    @property
    def now_ms(self) -> int:
        return round(self.clock.now.timestamp() * 1000)

    def cause(self, job_id: JobId) -> tuple[Cause | None, str]:
        newest = self.attempts(job_id)[-1].attempt
        return newest.cause, newest.proof or ""


@pytest.fixture
def world(clock: SetClock, units: UnitOfWorkFactory) -> World:
    fleet = make_fleet(units)
    hosts = [
        PlayedHost(units, fleet.node_id, boot_id="boot-of-alpha"),
        played_host(units, "b"),
        played_host(units, "c"),
    ]
    return World(
        units, fleet.tenant, fleet.tenant_id, fleet.node_id, clock, {str(host.node_id): host for host in hosts}
    )


@pytest.mark.parametrize("is_judged", [False, True])
def test_an_xid_on_the_gpu_of_the_rank_that_failed_is_the_cause_and_costs_no_restart(
    world: World, *, is_judged: bool
) -> None:
    job_id = world.submit(restart={"max_restarts": 0})
    (gpu,) = world.run(job_id)
    world.report(gpu, ago_s=2)
    if is_judged:
        world.judge()
        with world.units.read() as session:
            assert session.scalars(select(EvidenceRow)).one().gpu_uuid == gpu
    world.end(job_id, LAUNCH_FAILURE)
    cause, proof = world.cause(job_id)
    assert cause is Cause.GPU_FAULT
    assert proof.startswith("XID 79: ")
    assert f"on {gpu}; rank 0 ended with code 1: {LAUNCH_FAILURE}" in proof
    assert (world.job(job_id).state, world.job(job_id).restarts_used) == (JobState.RECOVERING, 0)
    with world.units.read() as session:
        at_fault = session.scalars(select(AttemptHost).where(AttemptHost.is_at_fault)).one().node_id
        assert nodes_at_fault(session, [job_id]) == {job_id: frozenset({at_fault})}
    assert gpu not in world.run(job_id), "elsewhere than on that GPU"


@pytest.mark.parametrize("trust", list(Trust))
def test_a_finding_that_waits_for_the_judge_counts_if_it_was_measured(world: World, trust: Trust) -> None:
    """Samples and verdicts are stored as findings and their ends, next to the events of agents."""
    job_id = world.submit(restart={"max_restarts": 0})
    (gpu,) = world.run(job_id)
    with world.units.begin(JUDGE, SIGNALS, quiet=True) as unit:
        node_id, at_ms = unit.session.get_one(Gpu, gpu).node_id, to_ms(unit.now)
        lost = Finding(
            detector=gpu_lost.NAME,
            version=1,
            fault_key="gpu_lost",
            gpu_uuid=gpu,
            node_id=node_id,
            severity=Severity.CONDEMNING,
            trust=trust,
            source=Source.NVML,
            onset_ms=at_ms,
            counts_for_ms=1_000,
            summary="the GPU does not answer",
        )
        over = Closing(fault_key="throttle", gpu_uuid=gpu, node_id=node_id, at_ms=at_ms)
        said: tuple[Reported, ...] = (lost, over)
        rows = [sample_row(each, node_id, f"sample-{number}", unit.now) for number, each in enumerate(said)]
        add_signals(unit.session.connection(), rows)
    world.end(job_id, LAUNCH_FAILURE)
    assert world.cause(job_id)[0] is (Cause.GPU_FAULT if trust is Trust.MEASURED else Cause.USER_ERROR)


def test_an_xid_that_a_program_brings_about_or_of_long_ago_or_of_another_gpu_is_none(world: World) -> None:
    for code, ago_s, is_own in ((31, 2, True), (79, 0, False)):
        job_id = world.submit(restart={"max_restarts": 0})
        (gpu,) = world.run(job_id)
        world.report(
            gpu if is_own else GpuUuid("GPU-alpha-1" if gpu == "GPU-alpha-0" else "GPU-alpha-0"), code, ago_s=ago_s
        )
        world.end(job_id, LAUNCH_FAILURE)
        assert world.cause(job_id)[0] is Cause.USER_ERROR
    job_id = world.submit(restart={"max_restarts": 0})
    (gpu,) = world.run(job_id)
    world.report(gpu, 94)
    for _ in range(7):
        world.clock.advance(10)
        for host in world.hosts.values():
            host.beat()
    world.end(job_id, LAUNCH_FAILURE)
    assert world.cause(job_id)[0] is Cause.USER_ERROR


def test_an_xid_on_one_host_is_the_root_of_what_the_other_missed(world: World) -> None:
    job_id = world.submit(shape={"nodes": 2, "gpus_per_node": 1})
    gpus = world.run(job_id)
    world.end(job_id, PEER, rank=0)
    world.report(gpus[1])
    world.end(job_id, "", rank=1, stop_reason="nccl_timeout")
    cause, proof = world.cause(job_id)
    assert cause is Cause.GPU_FAULT
    assert gpus[1] in proof
    with world.units.read() as session:
        blamed = session.scalars(select(AttemptHost).where(AttemptHost.is_at_fault)).one()
        assert blamed.node_rank == 1


def test_an_xid_that_comes_after_the_exit_record_gives_the_restart_back(world: World) -> None:
    job_id = world.submit(restart={"max_restarts": 1})
    (gpu,) = world.run(job_id)
    world.end(job_id, LAUNCH_FAILURE)
    assert (world.cause(job_id)[0], world.job(job_id).restarts_used) == (Cause.USER_ERROR, 1)
    world.report(gpu, ago_s=1)
    world.clock.advance(31)
    for host in world.hosts.values():
        host.beat()
    world.reconcile()
    assert (world.job(job_id).state, world.job(job_id).restarts_used) == (JobState.QUEUED, 0)
    assert world.cause(job_id)[0] is Cause.USER_ERROR, "what has ended stays as it is"
    with world.units.read() as session:
        told = session.scalars(select(Event).where(Event.kind == "job.restart_given_back")).one()
    assert "XID 79" in str(told.payload["reason"])


def test_code_93_ends_the_job_whatever_restarts_are_left(world: World) -> None:
    job_id = world.submit(restart={"max_restarts": 3})
    world.run(job_id)
    never = {"exit_code": 93, "signal": None, "ended_at_ms": world.now_ms, "error_excerpt": "the data was deleted"}
    world.end(job_id, "", ranks={"0": never})
    job = world.job(job_id)
    assert (job.state, job.restarts_used) == (JobState.FAILED, 0)
    assert "not to be started again: the data was deleted" in job.state_reason
