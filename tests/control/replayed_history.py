"""A history of the simulation played to the real services over PostgreSQL."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import select

from control.attempts.attempts import lock_attempt, stop_attempt
from control.attempts.reconcile import TICK_ATTEMPT
from control.core.unit_of_work import UnitOfWorkFactory
from control.placement import elastic, resizing
from control.placement.holds import LAPSE, lapse
from control.placement.placement import PLACE, place
from control.policy.policies import ACTIVATE, store_policy
from control.reclaim.notices import NOTIFY, notify
from control.reclaim.victims import withdraw_idle
from control.tenants.guarantees import guarantees_now
from muster.db.models import Attempt, Job
from muster.domain.ids import AttemptId, Fence, GpuUuid, JobId, NodeId
from muster.domain.lifecycle.host import Phase
from muster.domain.policy.document import ElasticPolicy, Policy
from muster.domain.policy.tiers import ReclaimPolicy, TierPolicy
from muster.domain.principals import system_principal
from muster.domain.states import StopReason
from muster.domain.times import to_ms
from muster.failpoints import FailpointError, arming
from muster.wire.host import HOST_CAPABILITIES, HostAttempt
from scheduler import model
from scheduler.model import Growth, Lapse, Placement
from simulator.world.placing import Picks
from simulator.world.recorded_changes import GROW_GRACE_MS, NOTICE_MS
from simulator.world.recording import RecordedWorld
from simulator.world.server import Fact, HostAttempts
from simulator.world.store import JobRow
from tests.control.conftest import SetClock
from tests.control.history_rows import End, Names, Rows, simulated
from tests.fleet_factory import OPERATOR, Fleet, enrol_host, make_fleet
from tests.played_host import PlayedHost

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
_OLDER_CAPABILITIES: Final = tuple(word for word in HOST_CAPABILITIES if word != "ready")


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
                deed(**call.arguments)
            else:
                self._dies(call.died_at, deed, call.arguments)

    def _dies(self, point: str, action: Callable[..., None], reported: Mapping[str, Any]) -> None:
        """Call an action that dies: its uncommitted changes are lost, as with its process, and no answer arrives."""
        try:
            with arming(f"{point}=raise@1"):
                action(**reported)
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
                place(
                    unit,
                    Placement(self.job_ids[job_id], version, parts),
                    POLICY,
                    planned_under=guarantees_now(unit.session),
                )
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
        assigned: Sequence[GpuUuid],
    ) -> None:
        reclaims = [
            model.Reclaim(
                victim=self.attempt_ids[victim],
                beneficiary=self.job_ids[beneficiary],
                notice_s=NOTICE_MS / 1000,
                gpus=self._named(gpus),
                hold=self._named(assigned),
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
            lapse(unit, Lapse(self.job_ids[job_id], "it waits without a result, or is no longer pending"))

    def withdraw(self) -> None:
        withdraw_idle(self.units, SCHEDULER)

    def let_go(self) -> None:
        elastic.let_go_of_idle(self.units, SCHEDULER)

    def grow(self, attempt_id: AttemptId, job_id: JobId, parts: Picks, was: int) -> None:
        wanted = tuple((self.hosts[node].node_id, self._named(part)) for node, part in parts.items())
        with self.units.begin(SCHEDULER, elastic.GROW) as unit:
            elastic.grow(
                unit,
                Growth(self.attempt_ids[attempt_id], self.job_ids[job_id], was, wanted),
                POLICY,
                planned_under=guarantees_now(unit.session),
            )

    def resize(self, job_id: JobId, nodes: int) -> None:
        with self.units.begin(self.fleet.tenant, resizing.RESIZE) as unit:
            resizing.resize(unit, self.job_ids[job_id], nodes)

    def cancel(self, job_id: JobId) -> None:
        self.fleet.cancel(self.job_ids[job_id])

    def stop(self, attempt_id: AttemptId, reason: StopReason, grace_ms: int) -> None:
        with self.units.begin(SCHEDULER, TICK_ATTEMPT) as unit:
            loaded = lock_attempt(unit, self.attempt_ids[attempt_id])
            stop_attempt(unit, loaded, reason, POLICY, grace=timedelta(milliseconds=grace_ms))

    def heartbeat(self, node_id: NodeId, boot_id: str, seq: int, assigned: HostAttempts) -> None:
        host = self.hosts[node_id]
        host.boot_id, host.seq = boot_id, seq - 1
        host.beat(*(self._assigned(attempt_id, phase) for attempt_id, _, phase in assigned))

    def _assigned(self, attempt_id: AttemptId, phase: Phase) -> HostAttempt:
        """As a launcher says it: what it is claiming it may hold."""
        said = Phase.CLAIMED if phase is Phase.CLAIMING else phase
        return HostAttempt(
            attempt_id=self.attempt_ids[attempt_id],
            fence=self.fences[attempt_id],
            phase=said.value,  # type: ignore[arg-type]  # one of the literals
        )

    def claim(self, node_id: NodeId, attempt_id: AttemptId, boot_id: str, *, can_wait: bool) -> None:
        host = self.hosts[node_id]
        host.boot_id = boot_id
        nonce, words = f"{node_id}/{attempt_id}", HOST_CAPABILITIES if can_wait else _OLDER_CAPABILITIES
        host.claim(self.attempt_ids[attempt_id], self.fences[attempt_id], nonce, words)

    def report(self, node_id: NodeId, attempt_id: AttemptId, boot_id: str, facts: tuple[Fact, ...]) -> None:
        host = self.hosts[node_id]
        host.boot_id = boot_id
        records = [record for _, record in facts if record is not None]
        record = {name: value for name, value in asdict(records[0]).items() if value is not None} if records else {}
        host.send_report(
            self.attempt_ids[attempt_id], self.fences[attempt_id], *(kind for kind, _ in facts), record=record
        )

    def reconcile(self) -> None:
        self.fleet.reconcile()

    def simulated(self) -> End:
        return simulated(self.world)

    def stored(self) -> End:
        """The rows, with the simulation's names and times."""
        names = Names(
            jobs={real_id: job_id for job_id, real_id in self.job_ids.items()},
            attempts={real_id: attempt_id for attempt_id, real_id in self.attempt_ids.items()},
            nodes=self.names,
            gpus={uuid: gpu for gpu, uuid in self.gpus.items()},
            started_ms=to_ms(self.started),
        )
        with self.units.read() as session:
            return Rows(session, self.world, names).end(POLICY)
