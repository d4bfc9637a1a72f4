"""A running job of two hosts whose second rank is stopped, and what a test does with it."""

from typing import Any

from control.core.paging import Part
from control.core.unit_of_work import UnitOfWorkFactory
from control.placement.pending_jobs import nodes_at_fault
from control.training import training
from control.watch import read
from control.watch.stalls import judge_stalls_once
from control.watch.types import VerdictRecord
from muster.db.models import StallReport
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.principals import system_principal
from muster.domain.states import JobState
from muster.domain.times import to_ms
from muster.wire.host import PROTOCOL_VERSION
from muster.wire.training import TrainBatch, TrainLine
from tests.control.conftest import SetClock
from tests.fleet_factory import enrol_host, make_fleet
from tests.played_host import PlayedHost
from watch.forensics.documents import to_document
from watch.phases import Phase
from watch.reports import Frame, HostReport, ProcessState, RankReport, StackSource

WATCH = system_principal("watch")


class StalledJob:
    """A running job of two hosts with one rank each; rank 1 of the second host is stopped."""

    def __init__(
        self, units: UnitOfWorkFactory, clock: SetClock, *, min_nodes: int | None = None, **spec: object
    ) -> None:
        self.units, self.clock = units, clock
        self.fleet = make_fleet(units)
        self.hosts = [PlayedHost(units, self.fleet.node_id), PlayedHost(units, enrol_host(units, "beta"))]
        shape = {"nodes": 2, "gpus_per_node": 1, "ranks_per_node": 1, "min_nodes": min_nodes}
        self.job_id = self.fleet.submit(shape=shape, restart={"max_restarts": 9}, **spec)
        self.offsets = dict.fromkeys((host.node_id for host in self.hosts), 0)
        self.run()

    def run(self) -> None:
        """Start the job's next attempt."""
        self.clock.advance(3600)
        for host in self.hosts:
            host.beat()
        self.fleet.reconcile()
        self.fleet.cycle()
        self.attempt = self.fleet.attempts(self.job_id)[-1].attempt
        self.offsets = dict.fromkeys(self.offsets, 0)
        for host in self.by_rank():
            assert host.claim(self.attempt.id, self.attempt.fence).granted
            host.report(self.attempt.id, self.attempt.fence, "started")

    def by_rank(self) -> list[PlayedHost]:
        parts = sorted(self.fleet.attempts(self.job_id)[-1].hosts, key=lambda each: each.part.node_rank)
        known = {host.node_id: host for host in self.hosts}
        return [known[part.part.node_id] for part in parts]

    def stall(
        self,
        node_rank: int,
        *,
        step: int = 12,
        line_rank: int | None = None,
        rank: int | None = None,
        process: ProcessState = ProcessState.STOPPED,
    ) -> int:
        """Send a host's report. Return how many lines of it were refused."""
        report = report_of(rank or node_rank, step, process)
        return self.send(node_rank, {"type": "stalled", "node": "liar", "report": report}, line_rank)

    def send(self, node_rank: int, message: dict[str, Any], line_rank: int | None = None) -> int:
        host = self.by_rank()[node_rank]
        offset = self.offsets[host.node_id]
        line = TrainLine(at_ms=to_ms(self.clock.now), rank=line_rank, message=message)
        batch = TrainBatch(
            protocol=PROTOCOL_VERSION, fence=self.attempt.fence, offset=offset, next_offset=offset + 9, lines=(line,)
        )
        self.offsets[host.node_id] = offset + 9
        with self.units.begin(host.principal, training.RECORD, quiet=True) as unit:
            training.take(unit, self.attempt.id, batch)
        with self.units.read() as session:
            return 0 if session.get(StallReport, (self.attempt.id, host.node_id)) is not None else 1

    def judge(self) -> int:
        return judge_stalls_once(self.units, WATCH)

    def stall_all(self, *, step: int = 12, process: ProcessState = ProcessState.STOPPED) -> None:
        for node_rank in range(2):
            self.stall(node_rank, step=step, process=process)
        assert self.judge() == 1

    def end(self) -> None:
        """Let both hosts carry out the stop."""
        for host in self.by_rank():
            record = {"stop_reason": "hang", "launcher_signal": 9}
            host.report(self.attempt.id, self.attempt.fence, "exited", "clean", record=record)

    def verdicts(self) -> list[VerdictRecord]:
        with self.units.begin(self.fleet.tenant, read.READ, quiet=True) as unit:
            return list(read.list_verdicts(unit, read.VerdictFilter(job_id=self.job_id), Part(10)))

    def state(self) -> JobState:
        return self.fleet.job(self.job_id).state

    def avoided(self) -> frozenset[NodeId]:
        with self.units.read() as session:
            return nodes_at_fault(session, [self.job_id]).get(self.job_id, frozenset())


def report_of(rank: int, step: int, of_one: ProcessState = ProcessState.STOPPED) -> dict[str, Any]:
    """Return the report of a host with one rank. ``of_one``: the state of rank 1."""
    process = of_one if rank == 1 else ProcessState.SLEEPING
    frame = Frame("forward", "/srv/train.py", 7)
    report = RankReport(
        rank, Phase.STEP, step, still_s=31.0, process=process, stack=(frame,), stack_source=StackSource.KERNEL
    )
    return to_document(HostReport(f"liar-{rank}", 1_000, (report,)))


def place_of(job: StalledJob) -> tuple[NodeId, GpuUuid]:
    """Return the host of rank 1 and its GPU."""
    node_id = job.by_rank()[1].node_id
    (gpu,) = next(host.gpus for host in job.fleet.attempts(job.job_id)[-1].hosts if host.part.node_id == node_id)
    return node_id, gpu
