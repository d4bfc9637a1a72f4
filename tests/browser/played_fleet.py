"""Hosts, agents and ranks that a test plays by direct calls of the services, in a time that it moves as it likes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import select

from control.attempts.reconcile import reconcile
from control.attempts.types import SubmittedJob
from control.core.unit_of_work import utc_now
from control.health.evacuation import evacuate_once
from control.health.judge import SIGNALS, judge_once
from control.hosts import protocol as hosts
from control.jobs import jobs
from control.jobs import read as job_reads
from control.jobs.read import AttemptView
from control.training import training
from muster.db.models import AllocationGpu, Attempt, AttemptHost, Gpu
from muster.domain.ids import AttemptId, GpuUuid, JobId, NodeId
from muster.domain.job.spec import JobSpec
from muster.domain.principals import Principal, Role, system_principal
from muster.domain.states import AllocationState, HostPartState, Standing
from muster.domain.times import to_ms
from muster.wire.host import PROTOCOL_VERSION, HostAttempt, LogBatch, LogChunk
from muster.wire.training import TrainBatch, TrainLine
from tests.fleet_factory import ENDS_AT_ITS_FAULT, OPERATOR, Fleet
from tests.played_host import PlayedHost
from tests.stored_signals import add_signal

JUDGE: Final = system_principal("judge")
DONE: Final[dict[str, object]] = {"launcher_exit_code": 0, "ranks": {"0": {"exit_code": 0, "signal": None}}}
FAILED: Final[dict[str, object]] = {"launcher_exit_code": 1, "ranks": {"0": {"exit_code": 1, "signal": None}}}
EVACUATED: Final[dict[str, object]] = {"launcher_exit_code": 1, "ranks": {}, "stop_reason": "evacuation"}
RECLAIMED: Final[dict[str, object]] = {**DONE, "stop_reason": "reclaim"}
_LINE_BYTES: Final = 100


@dataclass
class ShiftedClock:
    """The time as it is, or was: pages show a past that has taken place."""

    back: timedelta = timedelta()

    def __call__(self) -> datetime:
        return utc_now() - self.back


@dataclass(frozen=True)
class PlayedFleet(Fleet):
    """``hosts``: by node id. ``other``: a member of another tenant. The API says itself that it is alive."""

    hosts: dict[str, PlayedHost]
    other: Principal
    clock: ShiftedClock
    offsets: dict[tuple[str, str], int] = field(default_factory=dict)

    # --- time

    def minutes_ago(self, minutes: float) -> None:
        """From here on it is then. Every host is in contact, with its running parts."""
        self.clock.back = timedelta(minutes=minutes)
        self.beat_all()

    def beat_all(self) -> None:
        for node_id, host in self.hosts.items():
            host.beat(*self._assigned_by(NodeId(node_id)))

    def _assigned_by(self, node_id: NodeId) -> list[HostAttempt]:
        running = (HostPartState.CLAIMED, HostPartState.STARTED)
        with self.units.read() as session:
            query = select(Attempt.id, Attempt.fence).join(AttemptHost, AttemptHost.attempt_id == Attempt.id)
            held = session.execute(query.where(AttemptHost.node_id == node_id, AttemptHost.state.in_(running)))
            return [HostAttempt(attempt_id=one, fence=fence, phase="started") for one, fence in held]

    def reconcile(self) -> None:
        reconcile(self.units, system_principal("reconciler"))

    # --- jobs

    def submit_by(self, member: Principal, **spec: object) -> JobId:
        document = {"name": "job", "program": {"script": "/srv/train.py"}, **ENDS_AT_ITS_FAULT, **spec}
        with self.units.begin(member, jobs.SUBMIT) as unit:
            return jobs.submit(unit, JobSpec.model_validate(document, strict=False)).id

    def attempts(self, job_id: JobId) -> list[AttemptView]:
        with self.units.begin(OPERATOR, jobs.READ) as unit:
            return job_reads.attempts_of(unit, job_id)

    def job(self, job_id: JobId) -> SubmittedJob:
        with self.units.begin(OPERATOR, jobs.READ) as unit:
            return job_reads.submitted(unit, job_id)

    def run(self, job_id: JobId) -> AttemptId:
        """Placed, claimed and started on whichever hosts it came to."""
        self.beat_all()
        self.cycle()
        newest = self.attempts(job_id)[-1]
        for part in newest.hosts:
            host = self.hosts[str(part.part.node_id)]
            assert host.claim(newest.attempt.id, newest.attempt.fence).granted
            host.report(newest.attempt.id, newest.attempt.fence, "started")
        return newest.attempt.id

    def end(self, job_id: JobId, record: dict[str, object]) -> None:
        """Its programs end so, its hosts are proved clean, and the reconciler has seen it."""
        self.beat_all()  # looking at pages may have taken longer than hosts may be silent
        newest = self.attempts(job_id)[-1]
        for part in newest.hosts:
            host = self.hosts[str(part.part.node_id)]
            host.report(newest.attempt.id, newest.attempt.fence, "exited", "cleaned", record=record)
        self.reconcile()

    def gpus_of(self, job_id: JobId) -> list[GpuUuid]:
        return [gpu for part in self.attempts(job_id)[-1].hosts for gpu in part.gpus]

    # --- GPUs

    def free_gpus(self) -> list[GpuUuid]:
        """HEALTHY, and held by no attempt."""
        taken = select(AllocationGpu.gpu_uuid).where(AllocationGpu.state != AllocationState.RELEASED)
        free = select(Gpu.uuid).where(Gpu.standing == Standing.HEALTHY, Gpu.uuid.not_in(taken)).order_by(Gpu.uuid)
        with self.units.read() as session:
            return list(session.scalars(free))

    def report(self, gpu: GpuUuid, code: int = 95, *, ago_s: float = 1.0) -> None:
        """An XID of this GPU arrives, and is judged."""
        with self.units.begin(JUDGE, SIGNALS, quiet=True) as unit:
            add_signal(unit, gpu, code=code, at=unit.now - timedelta(seconds=ago_s))
        while judge_once(self.units, JUDGE):
            pass
        evacuate_once(self.units, JUDGE)

    # --- what ranks say

    def train(self, job_id: JobId, first: int, last: int) -> None:
        """Each rank reports its steps, the losses a little apart."""
        for part in self.attempts(job_id)[-1].hosts:
            lines: list[tuple[int, dict[str, Any]]] = []
            for place in range(len(part.gpus)):
                rank = part.part.node_rank * len(part.gpus) + place
                lines += [(rank, _step(rank, number)) for number in range(first, last + 1)]
                lines += [(rank, _pace(rank, number)) for number in range(first, last + 1, 2)]
            self._take(job_id, part.part.node_id, lines)

    def save(self, job_id: JobId, step: int) -> None:
        """Rank 0 has committed a checkpoint now, and read it back equal."""
        newest = self.attempts(job_id)[-1]
        told = {
            "type": "checkpoint",
            "step": step,
            "generation": f"step-{step:08d}/gen-{newest.attempt.fence}",
            "status": "verified",
            "bytes": 14 << 30,
            "seconds": 6.4,
            "at_unix_ms": to_ms(self.clock()),
        }
        self._take(job_id, newest.hosts[0].part.node_id, [(0, told)])

    def resume(self, job_id: JobId, step: int) -> None:
        """Rank 0 has loaded the newest clean checkpoint of that step."""
        attempts = self.attempts(job_id)
        generation = f"step-{step:08d}/gen-{attempts[-2].attempt.fence}"
        told = {"type": "resumed", "step": step, "generation": generation}
        self._take(job_id, attempts[-1].hosts[0].part.node_id, [(0, told)])

    def write_log(self, job_id: JobId, words: str, *, rank: int = 0) -> None:
        """A rank of the newest attempt's first host writes to its log."""
        newest = self.attempts(job_id)[-1]
        node_id, fence = newest.hosts[0].part.node_id, newest.attempt.fence
        content, key = words.encode(), (newest.attempt.id, str(rank))
        offset = self.offsets.get(key, 0)
        self.offsets[key] = offset + len(content)
        chunk = LogChunk(stream=str(rank), offset=offset, content=content)
        with self.units.begin(_node(node_id), hosts.LOGS, quiet=True) as unit:
            batch = LogBatch(protocol=PROTOCOL_VERSION, fence=fence, chunks=(chunk,))
            hosts.store_logs(unit, newest.attempt.id, batch)

    def _take(self, job_id: JobId, node_id: NodeId, reported: Sequence[tuple[int, dict[str, Any]]]) -> None:
        attempt = self.attempts(job_id)[-1].attempt
        key, at_ms = (attempt.id, f"train-{node_id}"), to_ms(self.clock())
        offset = self.offsets.get(key, 0)
        self.offsets[key] = offset + _LINE_BYTES
        lines = tuple(TrainLine(at_ms=at_ms, rank=rank, message=message) for rank, message in reported)
        batch = TrainBatch(
            protocol=PROTOCOL_VERSION,
            fence=attempt.fence,
            offset=offset,
            next_offset=offset + _LINE_BYTES,
            lines=lines,
        )
        with self.units.begin(_node(node_id), training.RECORD, quiet=True) as unit:
            assert training.take(unit, attempt.id, batch).taken == len(lines)


def _step(rank: int, number: int) -> dict[str, Any]:
    """A loss that falls as losses do, and one rank that is slower than the others."""
    loss = 2.1 + 8.4 * math.exp(-number / 90) + (rank * 37 + number * 17) % 10 / 90
    step_s = 0.42 + (0.03 if rank == 5 else 0.0) + (number * 13 + rank * 7) % 9 / 900
    return {"type": "step", "step": number, "loss": round(loss, 4), "step_s": round(step_s, 4)}


def _pace(rank: int, number: int) -> dict[str, Any]:
    """The slow rank computes for longer, and the others wait for it."""
    late_s, jitter = (0.03 if rank == 5 else 0.0), (number * 7 + rank) % 11 / 1000
    parts = {"data_s": 0.004 + jitter, "forward_s": 0.11 + late_s, "backward_s": 0.21, "collective_s": 0.06 - late_s}
    parts |= {"optimizer_s": 0.03, "other_s": 0.002, "checkpoint_s": 0.012}
    told = {
        "tokens_per_s": 4810.0 - 90 * rank,
        "grad_norm": 0.7 + jitter,
        "memory_mib": 61_230.0,
        "mfu": 0.412,
        "hfu": 0.412,
    }
    return {"type": "pace", "step": number, "num_steps": 2, **parts, **told}


def _node(node_id: NodeId) -> Principal:
    return Principal(name="node", role=Role.NODE, node_id=node_id)
