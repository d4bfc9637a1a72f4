"""A small fleet as pages show it: two racks, readings, a tenant's job, and a GPU that breaks under it.

Hosts and agents are played by direct calls of the services, so that a page test waits for no real job.
"""

from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final

from sqlalchemy import select

from muster.db.models import AllocationGpu, Gpu, GpuStandingChange, StoredSignal
from muster.domain.ids import AttemptId, GpuUuid, JobId, NodeId
from muster.domain.principals import Principal, Role, system_principal
from muster.domain.states import AllocationState, Standing
from muster.services import fleet, hosts
from muster.services.judgement.evacuation import evacuate_once
from muster.services.judgement.judge import SIGNALS, judge_once
from muster.services.lives import to_ms
from muster.services.policies import ACTIVATE
from muster.services.telemetry.intake import Intake, IntakeLimits
from muster.services.telemetry.reports import IncomingReport, Outcome
from muster.wire.host import PROTOCOL_VERSION, LogBatch, LogChunk
from tests.browser.control_plane import ControlPlane
from tests.fleet_factory import OPERATOR, Fleet
from tests.played_host import PlayedHost
from tests.telemetry_reports import reading, report
from tests.waiting import wait_until

JUDGE: Final = system_principal("judge")
HOSTS: Final = {"h100-1": "rack-1", "h100-2": "rack-1", "h100-3": "rack-2"}
GPUS_A_HOST: Final = 8
STOPPED: Final[dict[str, object]] = {"launcher_exit_code": 1, "ranks": {}, "stop_reason": "evacuation"}


@dataclass(frozen=True, slots=True)
class Hit:
    """A job, and the GPU that broke under it."""

    job_id: JobId
    gpu: GpuUuid


@dataclass(frozen=True)
class SmallFleet(Fleet):
    """``hosts``: by node id."""

    hosts: dict[str, PlayedHost]

    def run(self, job_id: JobId) -> AttemptId:
        """Placed, claimed and started on whichever hosts it came to."""
        for host in self.hosts.values():
            host.beat()
        self.cycle()
        newest = self.attempts(job_id)[-1]
        for part in newest.hosts:
            host = self.hosts[str(part.part.node_id)]
            assert host.claim(newest.attempt.id, newest.attempt.fence).granted
            host.report(newest.attempt.id, newest.attempt.fence, "started")
        return newest.attempt.id

    def end(self, job_id: JobId, record: dict[str, object]) -> None:
        newest = self.attempts(job_id)[-1]
        for part in newest.hosts:
            host = self.hosts[str(part.part.node_id)]
            host.report(newest.attempt.id, newest.attempt.fence, "exited", "cleaned", record=record)

    def gpus_of(self, job_id: JobId) -> list[GpuUuid]:
        return [gpu for part in self.attempts(job_id)[-1].hosts for gpu in part.gpus]

    def free_gpus(self) -> list[GpuUuid]:
        """HEALTHY, and held by no attempt."""
        taken = select(AllocationGpu.gpu_uuid).where(AllocationGpu.state != AllocationState.RELEASED)
        free = select(Gpu.uuid).where(Gpu.standing == Standing.HEALTHY, Gpu.uuid.not_in(taken)).order_by(Gpu.uuid)
        with self.units.read() as session:
            return list(session.scalars(free))

    def tell(self, gpu: GpuUuid, code: int = 95) -> None:
        """An XID of this GPU arrives, and is judged."""
        with self.units.begin(JUDGE, SIGNALS, quiet=True) as unit:
            node_id = unit.session.get_one(Gpu, gpu).node_id
            told = {"kind": "xid", "source": "nvml", "code": code, "at": unit.now - timedelta(seconds=1)}
            unit.session.add(
                StoredSignal(
                    node_id=node_id,
                    signal_id=f"{gpu}-{code}-{unit.now.isoformat()}",
                    gpu_uuid=gpu,
                    received_at=unit.now,
                    text="",
                    values={},
                    is_open=False,
                    **told,  # type: ignore[arg-type]  # columns by name
                )
            )
        while judge_once(self.units, JUDGE):
            pass
        evacuate_once(self.units, JUDGE)

    def break_under(self, job_id: JobId) -> GpuUuid:
        """One of the job's GPUs is quarantined; the job leaves, and goes on elsewhere. Returns the GPU."""
        gpu = self.gpus_of(job_id)[0]
        self.tell(gpu)
        self.end(job_id, STOPPED)
        self.reconcile()
        self.run(job_id)
        return gpu

    def say(self, job_id: JobId, words: bytes, *, offset: int = 0) -> None:
        """The first rank of the newest attempt writes to its log."""
        newest = self.attempts(job_id)[-1]
        node = Principal(name="node", role=Role.NODE, node_id=newest.hosts[0].part.node_id)
        chunk = LogChunk(stream="0", offset=offset, content=words)
        batch = LogBatch(protocol=PROTOCOL_VERSION, fence=newest.attempt.fence, chunks=(chunk,))
        with self.units.begin(node, hosts.LOGS, quiet=True) as unit:
            hosts.store_logs(unit, newest.attempt.id, batch)

    def report_readings(self, seq: int = 1) -> None:
        """Each host's agent reports: busy GPUs are warm, idle ones are not."""
        intake = Intake(self.units, limits=IntakeLimits(pause_s=0.001, waiting_per_node=1_000))
        heard: dict[str, Outcome] = {}
        at_ms = to_ms(self.units.clock())
        for node_id in self.hosts:
            with self.units.read() as session:
                uuids = session.scalars(select(Gpu.uuid).where(Gpu.node_id == node_id).order_by(Gpu.slot_index)).all()
            gpus = [
                reading(
                    uuid,
                    temperature_c=38.0 + 4 * index,
                    power_w=120.0 + 60 * index,
                    utilisation_percent=12.5 * index,
                    memory_used_mib=9_000.0 * index,
                )
                for index, uuid in enumerate(uuids)
            ]
            incoming = IncomingReport(NodeId(node_id), None, report(seq, at_ms, *gpus), at_ms)
            intake.submit(incoming, partial(heard.__setitem__, node_id))
        wait_until(lambda: len(heard) == len(self.hosts))
        intake.close()


def small_fleet(control_plane: ControlPlane) -> SmallFleet:
    """Three hosts of eight healthy GPUs each, of which the newest readings are known. Nothing runs yet."""
    units = control_plane.units
    node_ids = [_enrol(control_plane, name, rack) for name, rack in HOSTS.items()]
    hosts_by_id = {
        str(node_id): PlayedHost(units, node_id, boot_id=f"boot-of-{name}")
        for name, node_id in zip(HOSTS, node_ids, strict=True)
    }
    for host in hosts_by_id.values():
        host.beat()
    with units.begin(JUDGE, ACTIVATE, quiet=True) as unit:
        for days, standing in ((40, Standing.PROBATION), (12, Standing.HEALTHY)):
            for gpu in unit.session.scalars(select(Gpu)):
                gpu.standing = standing
                at = unit.now - timedelta(days=days)
                change = GpuStandingChange(
                    gpu_uuid=gpu.uuid, target=standing, at=at, reason="burn-in", actor="system:judge"
                )
                unit.session.add(change)
            unit.session.flush()
    tenant_id = control_plane.identities.tenant_id
    tenant = Principal(name="member", role=Role.TENANT_MEMBER, tenant_id=tenant_id)
    made = SmallFleet(units, tenant, tenant_id, node_ids[0], hosts_by_id)
    made.report_readings()
    return made


def _enrol(control_plane: ControlPlane, name: str, rack: str) -> NodeId:
    gpus = [
        fleet.GpuInventory(
            uuid=GpuUuid(f"GPU-{name}-{index}"),
            slot_index=index,
            model="NVIDIA H100 80GB HBM3",
            memory_bytes=80 << 30,
            compute_capability="9.0",
            driver_version="580.95",
            is_simulated=True,
        )
        for index in range(GPUS_A_HOST)
    ]
    with control_plane.units.begin(OPERATOR, fleet.ENROL) as unit:
        return fleet.enrol_node(unit, name, gpus, address="127.0.0.1", rack=rack, is_simulated=True)
