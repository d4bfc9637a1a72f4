"""What a history leaves behind, in the simulation's names and milliseconds: of the simulation, and of the rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from control.attempts.mapping import attempt_lifecycle, job_lifecycle, job_request
from muster.db.models import Allocation, AllocationGpu, Attempt, AttemptHost, GpuHold, Job, Reclaim
from muster.domain.ids import AttemptId, GpuUuid, JobId, NodeId
from muster.domain.lifecycle.model import AttemptLifecycle, JobLifecycle, Timers
from muster.domain.policy.document import Policy
from muster.domain.states import AllocationState
from muster.domain.times import to_ms
from simulator.world.recorded_changes import Given
from simulator.world.recording import RecordedWorld

_DURATIONS: Final = frozenset({"stop_grace_ms", "wall_time_ms"})


@dataclass(frozen=True)
class End:
    """What stands in the end, in the simulation's names and milliseconds. ``assigned``: GPU → its attempt.

    ``holds``: GPU → the job it is kept for; ``wanted``: how many hosts a job requests.
    """

    jobs: Mapping[JobId, JobLifecycle]
    attempts: Mapping[AttemptId, AttemptLifecycle]
    allocations: Mapping[AttemptId, AllocationState]
    assigned: Mapping[GpuUuid, AttemptId]
    reclaims: Sequence[Given]
    holds: Mapping[GpuUuid, JobId]
    wanted: Mapping[JobId, int]


@dataclass(frozen=True)
class Names:
    """Id of a row → name in the simulation, which began at ``started_ms``."""

    jobs: Mapping[JobId, JobId]
    attempts: Mapping[AttemptId, AttemptId]
    nodes: Mapping[NodeId, NodeId]
    gpus: Mapping[GpuUuid, GpuUuid]
    started_ms: int


def simulated(world: RecordedWorld) -> End:
    store, changes = world.store, world.recorder.changes
    return End(
        {job_id: _job(life) for job_id, life in store.jobs.items()},
        {attempt_id: _life(life) for attempt_id, life in store.attempts.items()},
        store.allocation_states,
        store.holders,
        sorted(changes.given, key=_order),
        store.hold_of,
        changes.wanted,
    )


@dataclass(frozen=True)
class Rows:
    """``world``: the simulation whose fences and GPUs name the rows."""

    session: Session
    world: RecordedWorld
    names: Names

    def end(self, policy: Policy) -> End:
        rows, names = self.session.scalars, self.names
        jobs = rows(select(Job)).all()
        lives = [self._attempt(attempt, policy) for attempt in rows(select(Attempt))]
        allocations = rows(select(Allocation)).all()
        of_allocation = {one.id: names.attempts[one.attempt_id] for one in allocations}
        taken = rows(select(AllocationGpu).where(AllocationGpu.state != AllocationState.RELEASED))
        return End(
            jobs={names.jobs[job.id]: _job(self._shifted(job_lifecycle(job))) for job in jobs},
            attempts={life.attempt_id: _life(life) for life in lives},
            allocations={names.attempts[one.attempt_id]: one.state for one in allocations},
            assigned={names.gpus[gpu.gpu_uuid]: of_allocation[gpu.allocation_id] for gpu in taken},
            reclaims=sorted((self._given(row) for row in rows(select(Reclaim))), key=_order),
            holds={names.gpus[row.gpu_uuid]: names.jobs[row.job_id] for row in rows(select(GpuHold))},
            wanted={names.jobs[job.id]: job.wanted_nodes for job in jobs if job.wanted_nodes is not None},
        )

    def _attempt(self, attempt: Attempt, policy: Policy) -> AttemptLifecycle:
        parts = select(AttemptHost).where(AttemptHost.attempt_id == attempt.id).order_by(AttemptHost.node_rank)
        spec = job_request(self.session.get_one(Job, attempt.job_id))
        real = attempt_lifecycle(attempt, self.session.scalars(parts).all(), spec, Timers.of(policy))
        name = self.names.attempts[attempt.id]
        hosts = tuple(replace(self._shifted(part), node_id=self.names.nodes[part.node_id]) for part in real.hosts)
        shifted: AttemptLifecycle = self._shifted(real)
        fence = self.world.store.attempts[name].fence
        return replace(shifted, attempt_id=name, job_id=self.names.jobs[attempt.job_id], hosts=hosts, fence=fence)

    def _given(self, row: Reclaim) -> Given:
        """What it gives stands as a number alone, so the GPUs are its attempt's without the kept ones."""
        victim = self.names.attempts[row.victim_attempt_id]
        keeps = tuple(self.names.gpus[GpuUuid(uuid)] for uuid in row.keeps or ())
        own = [gpu for part in self.world.store.allocated[victim].values() for gpu in part]
        given = tuple(gpu for gpu in own if gpu not in keeps)
        assert len(given) == row.num_gpus
        return Given(
            beneficiary=self.names.jobs[row.beneficiary_job_id],
            victim=victim,
            gpus=given,
            keeps=keeps,
            notified_ms=to_ms(row.notified_at) - self.names.started_ms,
            deadline_ms=to_ms(row.deadline_at) - self.names.started_ms,
            delivered_ms=self._ms(row.delivered_at),
            hold_ended_ms=self._ms(row.hold_ended_at),
            settled_ms=self._ms(row.settled_at),
            state=row.state,
        )

    def _ms(self, at: datetime | None) -> int | None:
        return None if at is None else to_ms(at) - self.names.started_ms

    def _shifted(self, life: Any) -> Any:
        """Its moments in milliseconds of the simulation."""
        offset_ms = self.names.started_ms
        moments = {
            name: getattr(life, name) - offset_ms
            for name in life.__dataclass_fields__
            if name.endswith("_ms") and name not in _DURATIONS and getattr(life, name)
        }
        stop = getattr(life, "stop", None)
        if stop is not None:
            moments["stop"] = replace(stop, deadline_ms=stop.deadline_ms - offset_ms)
        return replace(life, **moments)


def _order(one: Given) -> tuple[int, str]:
    return one.notified_ms, one.victim


def _job(life: JobLifecycle) -> JobLifecycle:
    """Without the words that name rows."""
    return replace(life, reason="", job_id=JobId(""), max_oom_doublings=0)


def _life(life: AttemptLifecycle) -> AttemptLifecycle:
    ending = None if life.ending is None else replace(life.ending, proof="")
    return replace(life, ending=ending)
