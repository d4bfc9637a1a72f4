"""A history of the simulation played to the real services over PostgreSQL, and what both have in the end."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import select

from muster.db.models import Allocation, AllocationGpu, Attempt, AttemptHost, GpuHold, Job, Reclaim
from muster.domain.ids import AttemptId, Fence, GpuUuid, JobId, NodeId
from muster.domain.lifecycle.host import Phase
from muster.domain.lifecycle.model import AttemptLife, HostPart, JobLife, Timers
from muster.domain.policy import ElasticPolicy, Policy, ReclaimPolicy, TierPolicy
from muster.domain.principals import system_principal
from muster.domain.states import AllocationState, StopReason
from muster.failpoints import FailpointError, arming
from muster.services import elastic
from muster.services.attempts import lock_attempt, stop_attempt
from muster.services.lives import attempt_life, job_life, spec_of, to_ms
from muster.services.placement import PLACE, place
from muster.services.policies import ACTIVATE, store_policy
from muster.services.reclaims.holds import LAPSE, lapse
from muster.services.reclaims.notices import NOTIFY, notify
from muster.services.reclaims.victims import withdraw_idle
from muster.services.reconcile import TICK_ATTEMPT
from muster.services.unit_of_work import UnitOfWorkFactory
from muster.wire.host import HOST_WORDS, HeldAttempt
from scheduler import model
from scheduler.model import Growth, Lapse, Placement
from simulator.placing import Picks
from simulator.recorded_changes import GROW_GRACE_MS, NOTICE_MS, Given
from simulator.recording import RecordedWorld
from simulator.server import Fact, Held
from simulator.store import JobRow
from tests.fleet_factory import OPERATOR, Fleet, enrol_host, make_fleet
from tests.played_host import PlayedHost
from tests.services.conftest import SetClock

SCHEDULER: Final = system_principal("scheduler")
RECLAIMABLE, SAFE = "spot", "reserved"
POLICY: Final = Policy(
    tiers={
        SAFE: TierPolicy(priority=300),
        RECLAIMABLE: TierPolicy(priority=100, notice_s=NOTICE_MS / 1000, min_run_s=0.0),
    },
    reclaim=ReclaimPolicy(cap_fraction=1.0, window_s=1.0),
    elastic=ElasticPolicy(grace_s=GROW_GRACE_MS / 1000),
)
"""Of the recorded world: its notices, no cap that keeps one back, and the policy's own timers."""
_OLDER_WORDS: Final = tuple(word for word in HOST_WORDS if word != "ready")


@dataclass(frozen=True)
class End:
    """What stands in the end, in the simulation's names and milliseconds. ``held``: GPU → who has it.

    ``holds``: for whom it is kept; ``wanted``: how many hosts a job wishes for.
    """

    jobs: Mapping[JobId, JobLife]
    attempts: Mapping[AttemptId, AttemptLife]
    allocations: Mapping[AttemptId, AllocationState]
    held: Mapping[GpuUuid, AttemptId]
    reclaims: Sequence[Given]
    holds: Mapping[GpuUuid, JobId]
    wanted: Mapping[JobId, int]


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
        with self.units.begin(OPERATOR, ACTIVATE) as unit:
            store_policy(unit, POLICY, reason="of the recorded world")
        self.started = self.clock.now
        self.num_deaths = 0
        self.fleet.reconcile()

    def play(self) -> None:
        for call in self.world.calls:
            self.clock.now = self.started + timedelta(milliseconds=call.at_ms)
            deed: Callable[..., None] = getattr(self, call.name)
            if call.died_at is None:
                deed(**call.said)
            else:
                self._dies(call.died_at, deed, call.said)

    def _dies(self, point: str, deed: Callable[..., None], said: Mapping[str, Any]) -> None:
        """What it had not committed is gone, as with its process; nobody hears an answer."""
        try:
            with arming(f"{point}=raise@1"):
                deed(**said)
        except FailpointError:
            self.num_deaths += 1
        else:
            raise AssertionError(f"nothing died at {point}")

    def submit(self, row: JobRow, max_restarts: int) -> None:
        try:
            self._submit(row, max_restarts)
        finally:
            with self.units.read() as session:
                job_id = session.scalar(select(Job.id).where(Job.name == row.key))
            if job_id is not None:
                self.job_ids[row.job_id] = job_id

    def _submit(self, row: JobRow, max_restarts: int) -> None:
        self.fleet.submit(
            name=row.key,
            tier=SAFE if row.notice_ms is None else RECLAIMABLE,
            shape={"nodes": row.nodes, "gpus_per_node": row.gpus_per_node, "min_nodes": row.min_nodes},
            restart={"max_restarts": max_restarts},
            wall_time_s=row.wall_time_ms / 1000,
            stop_grace_s=row.stop_grace_ms / 1000,
            on_node_loss=row.rule,
        )

    def place(self, job_id: JobId, attempt_id: AttemptId, picks: Picks) -> None:
        parts = tuple((self.hosts[node].node_id, tuple(self.gpus[gpu] for gpu in part)) for node, part in picks.items())
        version = self.fleet.job(self.job_ids[job_id]).version
        try:
            with self.units.begin(SCHEDULER, PLACE) as unit:
                place(unit, Placement(self.job_ids[job_id], version, parts), POLICY)
        finally:
            newest = select(Attempt).where(Attempt.job_id == self.job_ids[job_id]).order_by(Attempt.fence.desc())
            with self.units.read() as session:
                attempt = session.scalar(newest.limit(1))
            if attempt is not None and attempt.id not in self.attempt_ids.values():
                self.attempt_ids[attempt_id], self.fences[attempt_id] = attempt.id, attempt.fence

    def notify(
        self,
        beneficiary: JobId,
        chosen: Sequence[tuple[AttemptId, Sequence[GpuUuid], Sequence[GpuUuid]]],
        held: Sequence[GpuUuid],
    ) -> None:
        reclaims = [
            model.Reclaim(
                victim=self.attempt_ids[victim],
                beneficiary=self.job_ids[beneficiary],
                notice_s=NOTICE_MS / 1000,
                gpus=self._named(gpus),
                held=self._named(held),
                cost_gpu_s=0.0,
                keeps=self._named(keeps),
            )
            for victim, gpus, keeps in chosen
        ]
        with self.units.begin(SCHEDULER, NOTIFY) as unit:
            notify(unit, reclaims, POLICY)

    def _named(self, gpus: Sequence[GpuUuid]) -> tuple[GpuUuid, ...]:
        return tuple(self.gpus[gpu] for gpu in gpus)

    def lapse(self, job_id: JobId) -> None:
        with self.units.begin(SCHEDULER, LAPSE) as unit:
            lapse(unit, Lapse(self.job_ids[job_id], "it waits in vain, or no more"))

    def withdraw(self) -> None:
        withdraw_idle(self.units, SCHEDULER)

    def let_go(self) -> None:
        elastic.let_go_of_idle(self.units, SCHEDULER)

    def grow(self, attempt_id: AttemptId, job_id: JobId, parts: Picks, was: int) -> None:
        wanted = tuple((self.hosts[node].node_id, self._named(part)) for node, part in parts.items())
        with self.units.begin(SCHEDULER, elastic.GROW) as unit:
            elastic.grow(unit, Growth(self.attempt_ids[attempt_id], self.job_ids[job_id], was, wanted), POLICY)

    def resize(self, job_id: JobId, nodes: int) -> None:
        with self.units.begin(self.fleet.tenant, elastic.RESIZE) as unit:
            elastic.resize(unit, self.job_ids[job_id], nodes)

    def cancel(self, job_id: JobId) -> None:
        self.fleet.cancel(self.job_ids[job_id])

    def stop(self, attempt_id: AttemptId, reason: StopReason, grace_ms: int) -> None:
        with self.units.begin(SCHEDULER, TICK_ATTEMPT) as unit:
            loaded = lock_attempt(unit, self.attempt_ids[attempt_id])
            stop_attempt(unit, loaded, reason, POLICY, grace=timedelta(milliseconds=grace_ms))

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
            sorted(self.world.recorder.changes.given, key=_order),
            store.held_for,
            self.world.recorder.changes.wanted,
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
                real = attempt_life(attempt, session.scalars(parts).all(), spec, Timers.of(POLICY))
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
            reclaims = [self._given(row, by_id, jobs_by_id, gpus) for row in session.scalars(select(Reclaim))]
            holds = {gpus[row.gpu_uuid]: jobs_by_id[row.job_id] for row in session.scalars(select(GpuHold))}
            wanted = {
                jobs_by_id[job.id]: job.wanted_nodes
                for job in session.scalars(select(Job))
                if job.wanted_nodes is not None
            }
        return End(jobs_now, lives, allocations, held, sorted(reclaims, key=_order), holds, wanted)

    def _given(
        self,
        row: Reclaim,
        attempts: Mapping[AttemptId, AttemptId],
        jobs: Mapping[JobId, JobId],
        gpus: Mapping[GpuUuid, GpuUuid],
    ) -> Given:
        """What it gives stands as a number alone, so the GPUs are those of its attempt without what it keeps."""
        victim, keeps = attempts[row.victim_attempt_id], tuple(gpus[GpuUuid(uuid)] for uuid in row.keeps or ())
        own = [gpu for part in self.world.store.allocated[victim].values() for gpu in part]
        given = tuple(gpu for gpu in own if gpu not in keeps)
        assert len(given) == row.num_gpus
        return Given(
            jobs[row.beneficiary_job_id],
            victim,
            given,
            keeps,
            self._ms(row.notified_at),
            self._ms(row.deadline_at),
            None if row.told_at is None else self._ms(row.told_at),
            None if row.hold_ended_at is None else self._ms(row.hold_ended_at),
            None if row.settled_at is None else self._ms(row.settled_at),
            row.state,
        )

    def _ms(self, at: datetime) -> int:
        return to_ms(at) - to_ms(self.started)


def _order(one: Given) -> tuple[int, str]:
    return one.notified_ms, one.victim


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
