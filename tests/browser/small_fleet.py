"""A small fleet as pages show it, with the last hours of its life: nine hosts, two tenants, what broke, what was taken
back. Jobs and faults that a test adds are its own; it asks about those alone.
"""

from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Final

from sqlalchemy import select

from control.fleet import cordons, inventory
from control.health.rollups import take_once
from control.policy.policies import ACTIVATE
from control.telemetry.intake import Intake, IntakeLimits
from control.telemetry.reports import IncomingReport, Outcome
from control.tenants import quotas, tenants
from control.watch import line_intake
from muster.db.models import Gpu, GpuStandingChange
from muster.domain.ids import GpuUuid, JobId, NodeId
from muster.domain.principals import Principal, Role
from muster.domain.states import Standing
from muster.domain.times import to_ms
from muster.wire.host import PROTOCOL_VERSION
from muster.wire.telemetry import GpuReport, NodeReport, PortThroughput
from muster.wire.training import FindingsBatch
from scheduler.quota.tenancy import Quota
from tests.browser.control_plane import ControlPlane
from tests.browser.played_fleet import DONE, EVACUATED, FAILED, JUDGE, RECLAIMED, PlayedFleet, ShiftedClock
from tests.fleet_factory import OPERATOR
from tests.played_host import PlayedHost
from tests.telemetry_reports import reading, report
from tests.waiting import wait_until

H100: Final = "NVIDIA H100 80GB HBM3"
A100: Final = "NVIDIA A100-SXM4-40GB"
RACKS: Final = {
    "rack-1": ("h100-1", "h100-2", "h100-3", "h100-4"),
    "rack-2": ("h100-5", "h100-6", "h100-7", "h100-8"),
    "rack-3": ("a100-1",),
}
SIZES: Final = {H100: 8, A100: 16}
"""One host is of its own kind, so that what asks for 16 GPUs in one host is placed there and nowhere else."""
NUM_GPUS: Final = 80
NUM_NODES: Final = 9
SAMPLES: Final = 30
HOUR_S: Final = 3_600
_PEER: Final = "NCCL WARN NET/IB : Got completion from peer 10.7.1.9<40112> with error"
RETRIES: Final = f"h100-1:98:12 [0] {_PEER} 12, opcode 129, len 0, vendor err 129 (Recv)"
FLUSHED: Final = f"h100-2:98:12 [0] {_PEER} 5, opcode 129, len 0, vendor err 244 (Recv)"


@dataclass(frozen=True, slots=True)
class Hit:
    """A job, and the GPU that broke under it."""

    job_id: JobId
    gpu: GpuUuid


@dataclass(frozen=True, kw_only=True)
class SmallFleet(PlayedFleet):
    """``hit``: a job of the demo tenant that continues without its lost GPU. ``victim``: one of the other tenant that
    gave its GPUs back once, and has until a deadline to do so again, for ``beneficiary`` of the demo tenant.
    """

    hit: Hit
    victim: JobId
    beneficiary: JobId


def small_fleet(control_plane: ControlPlane) -> SmallFleet:
    played = _enrolled(control_plane)
    played.minutes_ago(80)
    hit_job = played.submit(
        name="pretrain",
        program={"script": "/srv/pretrain.py", "args": ["--config", "base.yaml"]},
        shape={"nodes": 2, "gpus_per_node": 4},
        restart={"max_restarts": 3},
    )
    victim = played.submit_by(played.other, name="night-sweep", tier="spot", shape={"gpus_per_node": 16})
    evaluation = played.submit_by(played.other, name="evaluation", shape={"gpus_per_node": 2})
    for job_id in (hit_job, victim, evaluation):
        played.run(job_id)
    take_once(played.units)
    _end_two(played)
    _give_back_once(played, victim)
    gpu = _lose_a_gpu(played, hit_job)
    beneficiary = _ask_again(played, victim)
    _keep_out_of_work(played)
    played.minutes_ago(0)
    take_once(played.units)
    _print_lines_about_faults(played, hit_job)
    _report_an_hour(played, busy={*played.gpus_of(hit_job), *played.gpus_of(victim), *played.gpus_of(evaluation)})
    control_plane.report_events()
    given = {name: getattr(played, name) for name in PlayedFleet.__dataclass_fields__}
    return SmallFleet(**given, hit=Hit(hit_job, gpu), victim=victim, beneficiary=beneficiary)


# --- its life, in order


def _end_two(played: PlayedFleet) -> None:
    """One job of each end that a job comes to by itself."""
    for name, record in (("smoke-test", DONE), ("wrong-config", FAILED)):
        job_id = played.submit(name=name)
        played.run(job_id)
        played.end(job_id, record)


def _give_back_once(played: PlayedFleet, victim: JobId) -> None:
    """For a reserved job that has ended since: the work was saved, and continues."""
    played.minutes_ago(60)
    played.train(victim, 1, 120)
    played.minutes_ago(52)
    reserved = played.submit(name="quarter-close", tier="reserved", shape={"gpus_per_node": 16})
    played.cycle()
    played.beat_all()
    played.minutes_ago(51)
    played.save(victim, 130)
    played.end(victim, RECLAIMED)
    played.run(reserved)
    take_once(played.units)
    played.minutes_ago(35)
    played.end(reserved, DONE)
    played.run(victim)
    played.resume(victim, 130)
    take_once(played.units)


def _print_lines_about_faults(played: PlayedFleet, job_id: JobId) -> None:
    """A root on one host and what followed on the other, with sockets as the transport."""
    newest = played.attempts(job_id)[-1]
    lines = (("nccl.ib_retry_exceeded", RETRIES, 1), ("nccl.ib_flushed", FLUSHED, 8))
    for part, (name, text, times) in zip(newest.hosts, lines, strict=False):
        at_ms, rank = to_ms(played.units.clock()), part.part.node_rank * len(part.gpus)
        found = {"name": name, "at_ms": at_ms, "rank": rank, "text": text, "peer": "10.7.1.9"}
        chosen = {"name": "nccl.transport", "at_ms": at_ms, "transport": "socket", "cards": ["eth0"]}
        batch = FindingsBatch(
            protocol=PROTOCOL_VERSION,
            fence=newest.attempt.fence,
            offset=0,
            next_offset=1,
            findings=(chosen, *([found] * times)),
        )
        host = played.hosts[str(part.part.node_id)]
        with played.units.begin(host.principal, line_intake.RECORD, quiet=True) as unit:
            line_intake.take(unit, newest.attempt.id, batch)


def _lose_a_gpu(played: PlayedFleet, job_id: JobId) -> GpuUuid:
    """Between two checkpoints: the newer one is TAINTED, the job continues from the older one."""
    played.minutes_ago(32)
    played.write_log(job_id, "step 1 loss 10.42\nstep 40 loss 7.61\nstep 80 loss 5.55\n")
    played.train(job_id, 1, 120)
    played.save(job_id, 120)
    played.minutes_ago(16)
    played.train(job_id, 121, 180)
    take_once(played.units)
    played.minutes_ago(6)
    played.train(job_id, 181, 215)
    played.save(job_id, 210)
    played.write_log(job_id, "step 210 loss 2.91\nsaved step-00000210\n")
    gpu = played.gpus_of(job_id)[2]
    played.report(gpu)
    played.end(job_id, EVACUATED)
    played.minutes_ago(5)
    played.run(job_id)
    played.resume(job_id, 120)
    played.write_log(job_id, "resumed from step 120\n")
    played.minutes_ago(1)
    played.train(job_id, 121, 160)
    played.write_log(job_id, "step 160 loss 3.52\n")
    return gpu


def _ask_again(played: PlayedFleet, victim: JobId) -> JobId:
    """A notice that stands, and an incident: the victim's tenant holds more than it now may."""
    job_id = played.submit(name="incident-replay", tier="reserved", shape={"gpus_per_node": 16})
    played.cycle()
    played.beat_all()
    tenant_id = played.job(victim).tenant_id
    with played.units.begin(OPERATOR, quotas.SET) as unit:
        quotas.set_quota(unit, tenant_id, "spot", Quota(ceiling=8), reason="their contract ended")
    return job_id


def _keep_out_of_work(played: PlayedFleet) -> None:
    free = played.free_gpus()[-1]
    with played.units.begin(OPERATOR, cordons.CREATE) as unit:
        cordons.create(unit, gpu_uuid=free, reason="a new cable is measured")


# --- what it is made of


def _enrolled(control_plane: ControlPlane) -> PlayedFleet:
    """All GPUs HEALTHY since twelve days, in contact just now."""
    clock = ShiftedClock()
    units = replace(control_plane.units, clock=clock)
    tenant_id = control_plane.identities.tenant_id
    tenant = Principal(name="member", role=Role.TENANT_MEMBER, tenant_id=tenant_id)
    with units.begin(OPERATOR, tenants.CREATE) as unit:
        other_id = tenants.create(unit, name="acme").id
    other = Principal(name="member of acme", role=Role.TENANT_MEMBER, tenant_id=other_id)
    hosts: dict[str, PlayedHost] = {}
    played = PlayedFleet(units, tenant, tenant_id, NodeId(""), hosts, other, clock)
    clock.back = timedelta(days=41)
    for rack, names in RACKS.items():
        for name in names:
            node_id = _enrol(played, name, rack)
            hosts[str(node_id)] = PlayedHost(units, node_id, boot_id=f"boot-of-{name}")
    for days, standing in ((40, Standing.PROBATION), (12, Standing.HEALTHY)):
        clock.back = timedelta(days=days)
        _move_all(played, standing)
    clock.back = timedelta()
    return played


def _enrol(played: PlayedFleet, name: str, rack: str) -> NodeId:
    model = A100 if name.startswith("a100") else H100
    gpus = [
        inventory.GpuInventory(
            uuid=GpuUuid(f"GPU-{name}-{index}"),
            slot_index=index,
            model=model,
            memory_bytes=(40 if model == A100 else 80) << 30,
            compute_capability="8.0" if model == A100 else "9.0",
            driver_version="580.95",
            is_simulated=True,
        )
        for index in range(SIZES[model])
    ]
    with played.units.begin(OPERATOR, inventory.ENROL) as unit:
        return inventory.enrol_node(unit, name, gpus, address="127.0.0.1", rack=rack, is_simulated=True)


def _move_all(played: PlayedFleet, standing: Standing) -> None:
    reason = "burn-in passed" if standing is Standing.PROBATION else "probation is over"
    with played.units.begin(JUDGE, ACTIVATE, quiet=True) as unit:
        for gpu in unit.session.scalars(select(Gpu)):
            change = GpuStandingChange(
                gpu_uuid=gpu.uuid,
                origin=gpu.standing,
                target=standing,
                at=unit.now,
                reason=reason,
                actor="system:judge",
            )
            gpu.standing = standing
            unit.session.add(change)


def _report_an_hour(played: PlayedFleet, busy: set[GpuUuid]) -> None:
    """Each agent's samples of the last hour, the newest one current. Busy GPUs are warm, idle ones are not."""
    intake = Intake(played.units, limits=IntakeLimits(pause_s=0.001, waiting_per_node=1_000))
    heard: list[Outcome] = []
    now_ms = to_ms(played.clock())
    for node_id in played.hosts:
        with played.units.read() as session:
            uuids = session.scalars(select(Gpu.uuid).where(Gpu.node_id == node_id).order_by(Gpu.slot_index)).all()
        for number in range(SAMPLES):
            is_last = number == SAMPLES - 1
            at_ms = now_ms - (SAMPLES - 1 - number) * HOUR_S * 1_000 // SAMPLES
            gpus = [_reading(uuid, number, index, is_busy=uuid in busy) for index, uuid in enumerate(uuids)]
            node = NodeReport(num_gpus=len(gpus), port_throughput=_ports(number, len(gpus)))
            told = report(number + 1, at_ms, *gpus, is_history=not is_last, node=node)
            intake.submit(IncomingReport(NodeId(node_id), None, told, now_ms), partial(_received, heard))
    wait_until(lambda: len(heard) == len(played.hosts) * SAMPLES)
    intake.close()


def _ports(number: int, num_ports: int) -> tuple[PortThroughput, ...]:
    """Return the rates of an InfiniBand port a GPU, and of an interface whose speed nothing states."""
    rates = [5e9 * ((number + index) % 9) for index in range(num_ports)]
    ports = [PortThroughput(f"mlx5_{index}/1", rate, rate / 2, 400.0) for index, rate in enumerate(rates)]
    return (*ports, PortThroughput("eth0", 1_250_000.0, 48_000.0, None))


def _received(received: list[Outcome], outcome: Outcome) -> None:
    received.append(outcome)


def _reading(uuid: GpuUuid, number: int, index: int, *, is_busy: bool) -> GpuReport:
    wave = (number * 7 + index * 5) % 11
    return reading(
        uuid,
        temperature_c=(61.0 if is_busy else 34.0) + wave / 2 + index / 2,
        memory_temperature_c=(70.0 if is_busy else 38.0) + wave / 2,
        power_w=(560.0 if is_busy else 78.0) + 4 * wave,
        utilisation_percent=88.0 + wave if is_busy else 0.0,
        sm_clock_mhz=1_755.0 if is_busy else 345.0,
        memory_used_mib=71_200.0 if is_busy else 3.0,
        ecc_uncorrected_aggregate=0.0,
        remapped_rows_uncorrected=0.0,
        pcie_replays=float(index % 3),
        nvlink_sent_bytes_per_s=2e10 * wave if is_busy else 0.0,
        nvlink_received_bytes_per_s=1.8e10 * wave if is_busy else 0.0,
    )
