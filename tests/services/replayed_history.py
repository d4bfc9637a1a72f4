"""A history of the simulation played to the real services over PostgreSQL, and what both have in the end."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import select

from muster.db.models import Allocation, AllocationGpu, Attempt, AttemptHost, GpuHold, Job
from muster.domain.ids import AttemptId, Fence, GpuUuid, JobId, NodeId
from muster.domain.lifecycle.host import Phase
from muster.domain.lifecycle.model import AttemptLife, HostPart, JobLife, Timers
from muster.domain.policy import DEFAULT_POLICY
from muster.domain.principals import system_principal
from muster.domain.states import AllocationState, StopReason
from muster.services.attempts import lock_attempt, stop_attempt
from muster.services.lives import attempt_life, job_life, spec_of, to_ms
from muster.services.placement import PLACE, place
from muster.services.reclaims.holds import LAPSE, lapse
from muster.services.reconcile import TICK_ATTEMPT
from muster.services.unit_of_work import UnitOfWorkFactory
from muster.wire.host import HOST_WORDS, HeldAttempt
from scheduler.model import Lapse, Placement
from simulator.placing import Picks
from simulator.recording import RecordedWorld
from simulator.server import Fact, Held
from simulator.store import JobRow
from tests.fleet_factory import Fleet, enrol_host, make_fleet
from tests.played_host import PlayedHost
from tests.services.conftest import SetClock

SCHEDULER: Final = system_principal("scheduler")
_OLDER_WORDS: Final = tuple(word for word in HOST_WORDS if word != "ready")


@dataclass(frozen=True)
class End:
    """What stands in the end, in the simulation's names and milliseconds. ``held``: GPU → who holds it."""

    jobs: Mapping[JobId, JobLife]
    attempts: Mapping[AttemptId, AttemptLife]
    allocations: Mapping[AttemptId, AllocationState]
    held: Mapping[GpuUuid, AttemptId]


@dataclass
class Replay:
    """``node_ids`` … : name in the simulation → that of the row."""

    units: UnitOfWorkFactory
    clock: SetClock
    world: RecordedWorld
    job_ids: dict[JobId, JobId] = field(default_factory=dict)
    attempt_ids: dict[AttemptId, AttemptId] = field(default_factory=dict)
    fences: dict[AttemptId, Fence] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = list(self.world.store.gpus)
        num_gpus = self.world.settings.gpus_per_host
        node_ids = {name: enrol_host(self.units, name, num_gpus=num_gpus) for name in names}
        self.hosts = {name: PlayedHost(self.units, node_id) for name, node_id in node_ids.items()}
        self.names: dict[NodeId, NodeId] = {node_id: name for name, node_id in node_ids.items()}
        self.gpus = {
            gpu: GpuUuid(f"GPU-{name}-{index}")
            for name in names
            for index, gpu in enumerate(self.world.store.gpus[name])
        }
        self.fleet: Fleet = make_fleet(self.units, next(iter(node_ids.values())))
        self.started = self.clock.now
        self.fleet.reconcile()

    def play(self) -> None:
        for call in self.world.calls:
            self.clock.now = self.started + timedelta(milliseconds=call.at_ms)
            deed: Callable[..., None] = getattr(self, call.name)
            deed(**call.said)

    def submit(self, row: JobRow, max_restarts: int) -> None:
        self.job_ids[row.job_id] = self.fleet.submit(
            tier="on_demand",
            shape={"nodes": row.nodes, "gpus_per_node": row.gpus_per_node, "min_nodes": row.min_nodes},
            restart={"max_restarts": max_restarts},
            wall_time_s=row.wall_time_ms / 1000,
            stop_grace_s=row.stop_grace_ms / 1000,
            on_node_loss=row.rule,
        )

    def place(self, job_id: JobId, attempt_id: AttemptId, picks: Picks) -> None:
        parts = tuple((self.hosts[node].node_id, tuple(self.gpus[gpu] for gpu in part)) for node, part in picks.items())
        self._let_go(gpu for _, part in parts for gpu in part)
        version = self.fleet.job(self.job_ids[job_id]).version
        with self.units.begin(SCHEDULER, PLACE) as unit:
            real_id = place(unit, Placement(self.job_ids[job_id], version, parts), DEFAULT_POLICY)
        with self.units.read() as session:
            self.attempt_ids[attempt_id], self.fences[attempt_id] = real_id, session.get_one(Attempt, real_id).fence

    def _let_go(self, gpus: Iterable[GpuUuid]) -> None:
        """The simulation chooses hosts at random: it never finds, as the planner does, who goes on without its own."""
        with self.units.read() as session:
            query = select(GpuHold.job_id).where(GpuHold.gpu_uuid.in_(list(gpus))).distinct().order_by(GpuHold.job_id)
            holders = session.scalars(query).all()
        for holder in holders:
            with self.units.begin(SCHEDULER, LAPSE) as unit:
                lapse(unit, Lapse(holder, "chosen for another"))

    def cancel(self, job_id: JobId) -> None:
        self.fleet.cancel(self.job_ids[job_id])

    def stop(self, attempt_id: AttemptId, reason: StopReason, grace_ms: int) -> None:
        with self.units.begin(SCHEDULER, TICK_ATTEMPT) as unit:
            loaded = lock_attempt(unit, self.attempt_ids[attempt_id])
            stop_attempt(unit, loaded, reason, DEFAULT_POLICY, grace=timedelta(milliseconds=grace_ms))

    def heartbeat(self, node_id: NodeId, boot_id: str, seq: int, held: Held) -> None:
        host = self.hosts[node_id]
        host.boot_id, host.seq = boot_id, seq - 1
        host.beat(*(self._held(attempt_id, phase) for attempt_id, _, phase in held))

    def _held(self, attempt_id: AttemptId, phase: Phase) -> HeldAttempt:
        """As a launcher says it: what it is claiming it may hold."""
        said = Phase.CLAIMED if phase is Phase.CLAIMING else phase
        return HeldAttempt(
            attempt_id=self.attempt_ids[attempt_id],
            fence=self.fences[attempt_id],
            phase=said.value,  # type: ignore[arg-type]  # one of the literals
        )

    def claim(self, node_id: NodeId, attempt_id: AttemptId, boot_id: str, *, can_wait: bool) -> None:
        host = self.hosts[node_id]
        host.boot_id = boot_id
        nonce, words = f"{node_id}/{attempt_id}", HOST_WORDS if can_wait else _OLDER_WORDS
        host.claim(self.attempt_ids[attempt_id], self.fences[attempt_id], nonce, words)

    def report(self, node_id: NodeId, attempt_id: AttemptId, boot_id: str, facts: tuple[Fact, ...]) -> None:
        host = self.hosts[node_id]
        host.boot_id = boot_id
        records = [record for _, record in facts if record is not None]
        record = {name: value for name, value in asdict(records[0]).items() if value is not None} if records else {}
        host.say(self.attempt_ids[attempt_id], self.fences[attempt_id], *(kind for kind, _ in facts), record=record)

    def reconcile(self) -> None:
        self.fleet.reconcile()

    def simulated(self) -> End:
        store = self.world.store
        return End(
            {job_id: _job(life) for job_id, life in store.jobs.items()},
            {attempt_id: _life(life) for attempt_id, life in store.attempts.items()},
            store.allocation_states,
            store.holders,
        )

    def stored(self) -> End:
        """The rows, with the simulation's names and times."""
        offset_ms = to_ms(self.started)
        jobs_by_id = {real_id: job_id for job_id, real_id in self.job_ids.items()}
        by_id = {real_id: attempt_id for attempt_id, real_id in self.attempt_ids.items()}
        gpus = {uuid: gpu for gpu, uuid in self.gpus.items()}
        order = {attempt_id: life.fence for attempt_id, life in self.world.store.attempts.items()}
        with self.units.read() as session:
            jobs_now = {
                jobs_by_id[job.id]: _job(_shifted(job_life(job), offset_ms)) for job in session.scalars(select(Job))
            }
            lives = {}
            for attempt in session.scalars(select(Attempt).order_by(Attempt.fence)):
                parts = select(AttemptHost).where(AttemptHost.attempt_id == attempt.id).order_by(AttemptHost.node_rank)
                spec = spec_of(session.get_one(Job, attempt.job_id))
                real = attempt_life(attempt, session.scalars(parts).all(), spec, Timers.of(DEFAULT_POLICY))
                name = by_id[attempt.id]
                hosts = tuple(
                    replace(_shifted(part, offset_ms), node_id=self.names[part.node_id]) for part in real.hosts
                )
                job_id = jobs_by_id[attempt.job_id]
                shifted = replace(_shifted(real, offset_ms), attempt_id=name, job_id=job_id, hosts=hosts)
                lives[name] = _life(replace(shifted, fence=order[name]))
            allocations = {by_id[one.attempt_id]: one.state for one in session.scalars(select(Allocation))}
            held = {
                gpus[gpu.gpu_uuid]: by_id[session.get_one(Allocation, gpu.allocation_id).attempt_id]
                for gpu in session.scalars(select(AllocationGpu))
                if gpu.state is not AllocationState.RELEASED
            }
        return End(jobs_now, lives, allocations, held)


def _shifted(life: Any, offset_ms: int) -> Any:
    """Its moments in milliseconds of the simulation."""
    moments = {
        name: getattr(life, name) - offset_ms
        for name in life.__dataclass_fields__
        if name.endswith("_ms") and name not in _DURATIONS and getattr(life, name)
    }
    stop = getattr(life, "stop", None)
    if stop is not None:
        moments["stop"] = replace(stop, deadline_ms=stop.deadline_ms - offset_ms)
    return replace(life, **moments)


_DURATIONS: Final = frozenset({"stop_grace_ms", "wall_time_ms"})


def _job(life: JobLife) -> JobLife:
    """Without the words that name rows."""
    return replace(life, reason="", job_id=JobId(""), max_oom_doublings=0)


def _life(life: AttemptLife) -> AttemptLife:
    ending = None if life.ending is None else replace(life.ending, proof="")
    hosts = tuple(_part(part) for part in life.hosts)
    return replace(life, ending=ending, hosts=hosts)


def _part(part: HostPart) -> HostPart:
    return part
