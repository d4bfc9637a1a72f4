"""A job that a test runs through its life: placed, trained, struck by a fault, evacuated, resumed; hosts are played."""

import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from sqlalchemy import select

from control.health.evacuation import evacuate_once
from control.health.judge import SIGNALS, judge_once
from control.hosts import protocol as hosts
from control.jobs.read import AttemptView
from control.policy.policies import ACTIVATE
from control.training import training
from control.watch.stalls import judge_stalls_once
from muster.db.models import Gpu, GpuStandingChange
from muster.domain.ids import AttemptId, GpuUuid, JobId, NodeId
from muster.domain.principals import system_principal
from muster.domain.states import Standing
from muster.wire.host import PROTOCOL_VERSION, LogBatch, LogChunk
from muster.wire.training import TrainBatch, TrainLine
from tests.console.conftest import Console
from tests.played_host import PlayedHost, played_host
from tests.stored_signals import add_signal
from watch.forensics.documents import to_document
from watch.phases import Phase
from watch.reports import Frame, HostReport, ProcessState, RankReport

JUDGE = system_principal("judge")
SUCCESS: dict[str, object] = {"launcher_exit_code": 0, "ranks": {"0": {"exit_code": 0, "signal": None}}}
EVACUATED: dict[str, object] = {**SUCCESS, "stop_reason": "evacuation"}


@dataclass
class PlayedJob:
    """Two hosts of two GPUs each, truly HEALTHY, and one job with two ranks on one of them."""

    seen: Console
    job_id: JobId
    hosts: dict[NodeId, PlayedHost]
    offsets: dict[tuple[str, str], int] = field(default_factory=dict)

    @property
    def newest(self) -> AttemptView:
        return self.seen.fleet.attempts(self.job_id)[-1]

    @property
    def host(self) -> PlayedHost:
        return self.hosts[self.newest.hosts[0].part.node_id]

    def start(self) -> None:
        for host in self.hosts.values():
            host.beat()
        self.seen.fleet.reconcile()
        self.seen.fleet.cycle()
        attempt = self.newest.attempt
        assert self.host.claim(attempt.id, attempt.fence).granted
        self.host.report(attempt.id, attempt.fence, "started")

    def stalls(self) -> None:
        """Its host reports that rank 1 is stopped, and the watch judges it."""
        process = {0: ProcessState.SLEEPING, 1: ProcessState.STOPPED}
        frame = Frame("forward", "/srv/train.py", 7)
        ranks = tuple(
            RankReport(rank, Phase.STEP, 12, still_s=31.0, process=process[rank], stack=(frame,)) for rank in process
        )
        report = HostReport("host", time.time_ns() // 1_000_000, ranks)
        self.states({"type": "stalled", "node": "host", "report": to_document(report)}, rank=None)
        assert judge_stalls_once(self.seen.units, system_principal("watch")) == 1

    def states(self, *messages: dict[str, Any], rank: int | None = 0) -> None:
        """Lines of a rank, or of its host with None, as its host relays them."""
        attempt = self.newest.attempt
        offset = self.offsets.get((attempt.id, "train"), 0)
        self.offsets[attempt.id, "train"] = offset + 10
        now_ms = time.time_ns() // 1_000_000
        lines = tuple(TrainLine(at_ms=now_ms, rank=rank, message=message) for message in messages)
        batch = TrainBatch(
            protocol=PROTOCOL_VERSION, fence=attempt.fence, offset=offset, next_offset=offset + 10, lines=lines
        )
        with self.seen.units.begin(self.host.principal, training.RECORD, quiet=True) as unit:
            assert training.take(unit, AttemptId(attempt.id), batch).taken == len(lines)

    def trains(self, first: int, last: int, *, rank: int = 0) -> None:
        self.states(
            *({"type": "step", "step": n, "loss": 4 / n, "step_s": 0.25} for n in range(first, last + 1)), rank=rank
        )

    def paces(self, *steps: int, rank: int = 0, **fields: float) -> None:
        parts = dict.fromkeys(("data_s", "backward_s", "collective_s", "optimizer_s", "other_s", "checkpoint_s"), 0.0)
        told = {"type": "pace", "num_steps": 10, **parts, "forward_s": 0.125, **fields}
        self.states(*({**told, "step": step} for step in steps), rank=rank)

    def saves(self, step: int) -> None:
        """Committed and verified just now."""
        generation = f"step-{step:08d}/gen-{self.newest.attempt.fence}"
        told = {"type": "checkpoint", "step": step, "generation": generation, "bytes": 2048, "seconds": 0.5}
        self.states({**told, "status": "verified", "at_unix_ms": time.time_ns() // 1_000_000})

    def prints(self, text: str | bytes, *, stream: str = "0") -> None:
        attempt = self.newest.attempt
        content = text.encode() if isinstance(text, str) else text
        offset = self.offsets.get((attempt.id, stream), 0)
        self.offsets[attempt.id, stream] = offset + len(content)
        batch = LogBatch(
            protocol=PROTOCOL_VERSION,
            fence=attempt.fence,
            chunks=(LogChunk(stream=stream, offset=offset, content=content),),
        )
        with self.seen.units.begin(self.host.principal, hosts.LOGS, quiet=True) as unit:
            hosts.store_logs(unit, AttemptId(attempt.id), batch)

    def breaks(self) -> GpuUuid:
        """Its first GPU reports XID 95; the judge takes it out and the job off it."""
        gpu = self.newest.hosts[0].gpus[0]
        with self.seen.units.begin(JUDGE, SIGNALS, quiet=True) as unit:
            add_signal(unit, gpu)
        while judge_once(self.seen.units, JUDGE):
            pass
        assert evacuate_once(self.seen.units, JUDGE) == 1
        return gpu

    def ends(self, record: dict[str, object]) -> None:
        attempt = self.newest.attempt
        self.host.report(attempt.id, attempt.fence, "exited", "cleaned", record=record)
        self.seen.fleet.reconcile()


def played_job(seen: Console, **spec: object) -> PlayedJob:
    fleet = seen.fleet
    alpha = PlayedHost(seen.units, fleet.node_id, boot_id="boot-of-alpha")
    known = {host.node_id: host for host in (alpha, played_host(seen.units, "beta"))}
    with seen.units.begin(JUDGE, ACTIVATE, quiet=True) as unit:
        for standing in (Standing.PROBATION, Standing.HEALTHY):
            for gpu in unit.session.scalars(select(Gpu)):
                gpu.standing = standing
                at = unit.now - timedelta(days=1)
                unit.session.add(GpuStandingChange(gpu_uuid=gpu.uuid, target=standing, at=at, reason="x", actor="test"))
            unit.session.flush()
    job_id = fleet.submit(**{"name": "long-run", "shape": {"gpus_per_node": 2}, **spec})
    return PlayedJob(seen, job_id, known)


def struck(seen: Console) -> PlayedJob:
    """Trained, struck at step 30, evacuated, resumed from step 10 on other GPUs, and ended well."""
    job = played_job(seen)
    job.start()
    job.states({"type": "resumed", "step": 0, "generation": ""})
    job.trains(1, 30)
    job.trains(1, 30, rank=1)
    job.saves(30)
    job.breaks()
    job.ends(EVACUATED)
    job.start()
    job.states({"type": "resumed", "step": 10, "generation": "step-00000010/gen-1"})
    job.trains(11, 20)
    return job
