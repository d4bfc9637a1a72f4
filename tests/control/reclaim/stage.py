"""Hosts, tenants and jobs of several tiers on which reclaims play: hosts are played, a test moves the time."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlalchemy import select

from control.core.unit_of_work import UnitOfWorkFactory
from control.jobs import jobs
from control.placement.workload import workload
from control.policy.policies import ACTIVATE, active_policy, store_policy
from muster.db.models import Attempt, Event, GpuHold, Job, Node, Reclaim, StopRequest, Tenant
from muster.domain.ids import GpuUuid, JobId, NodeId, ReclaimId, TenantId
from muster.domain.job.spec import JobSpec
from muster.domain.policy.document import Policy
from muster.domain.principals import Principal, Role, system_principal
from muster.identity import new_id
from muster.wire.host import HostAttempt, StopOrder
from scheduler.model import Plan, Workload
from tests.control.conftest import SetClock
from tests.filled_once import filled
from tests.fleet_factory import ENDS_AT_ITS_FAULT, OPERATOR, Fleet, enrol_host, fleet_of, make_fleet
from tests.played_host import PlayedHost
from workers.control.scheduler_loop import run_cycle

SCHEDULER = system_principal("scheduler")
AFTER_MIN_RUN_S = 1801
AT_ONCE_S = 20.0
WITHIN_LEASE_S = 600.0
LEFT = {"launcher_exit_code": 0, "ranks": {"0": {"exit_code": 0, "signal": None}}, "stop_reason": "reclaim"}
KILLED = {"launcher_signal": 9, "ranks": {"0": {"exit_code": None, "signal": 9}}, "stop_reason": "reclaim"}
DONE = {"launcher_exit_code": 0, "ranks": {"0": {"exit_code": 0, "signal": None}}}


@dataclass
class Stage:
    units: UnitOfWorkFactory
    clock: SetClock
    fleet: Fleet
    hosts: list[PlayedHost] = field(default_factory=list)
    running: dict[JobId, list[tuple[PlayedHost, HostAttempt]]] = field(default_factory=dict)
    offsets: dict[str, int] = field(default_factory=dict)

    def add_host(self, name: str, *, num_gpus: int = 2, rack: str | None = None) -> PlayedHost:
        node_id = enrol_host(self.units, name, num_gpus=num_gpus, rack=rack)
        host = PlayedHost(self.units, node_id, boot_id=f"boot-of-{name}")
        host.beat()
        self.hosts.append(host)
        return host

    def add_tenant(self, name: str) -> Principal:
        tenant_id = TenantId(new_id("tenant"))
        with self.units.begin(OPERATOR, ACTIVATE) as unit:
            unit.session.add(Tenant(id=tenant_id, name=name, created_at=unit.now))
            unit.audit("tenant.create", "tenant", tenant_id)
        return Principal(name=name, role=Role.TENANT_MEMBER, tenant_id=tenant_id)

    def set_policy(self, policy: Policy) -> None:
        with self.units.begin(OPERATOR, ACTIVATE) as unit:
            store_policy(unit, policy, reason="test")

    def submit(self, tier: str, *, by: Principal | None = None, **spec: object) -> JobId:
        document = {"name": "job", "program": {"script": "/srv/train.py"}, "tier": tier, **ENDS_AT_ITS_FAULT, **spec}
        with self.units.begin(by or self.fleet.tenant, jobs.SUBMIT) as unit:
            return jobs.submit(unit, JobSpec.model_validate(document, strict=False)).id

    def cycle(self) -> Plan:
        return run_cycle(self.units, SCHEDULER)

    def beat_all(self) -> list[StopOrder]:
        """Each host's heartbeat with all that it holds; new attempts are claimed and started."""
        stops: list[StopOrder] = []
        for host in self.hosts:
            held = [item for parts in self.running.values() for where, item in parts if where is host]
            answer = host.beat(*held)
            stops += answer.stops
            for unclaimed in answer.unclaimed:
                assert host.claim(unclaimed.attempt_id, unclaimed.fence).granted
                host.report(unclaimed.attempt_id, unclaimed.fence, "started")
                item = HostAttempt(attempt_id=unclaimed.attempt_id, fence=unclaimed.fence, phase="started")
                self.running.setdefault(self.job_of(unclaimed.attempt_id), []).append((host, item))
        return stops

    def run(self, tier: str, *, by: Principal | None = None, **spec: object) -> JobId:
        """Submitted, placed and started."""
        job_id = self.submit(tier, by=by, **spec)
        self.cycle()
        self.beat_all()
        assert job_id in self.running
        return job_id

    def leave(self, job_id: JobId, record: dict[str, object]) -> list[tuple[PlayedHost, HostAttempt]]:
        """Its programs end and its hosts are proved clean."""
        parts = self.running.pop(job_id)
        for host, item in parts:
            host.report(item.attempt_id, item.fence, "exited", "cleaned", record=record)
        return parts

    def pass_time(self, seconds: float) -> None:
        """Each host beats soon, within its lease, and before the end, when the reconciler runs: none is silent.

        In a beat between there is nothing to be seen, and each costs some 20 ms: this was half of what these tests did.
        """
        step = AT_ONCE_S
        while seconds > 0:
            self.clock.advance(min(seconds, step))
            seconds -= step
            step = WITHIN_LEASE_S
            for host in self.hosts:
                held = [item for parts in self.running.values() for where, item in parts if where is host]
                host.beat(*held)
        self.reconcile()

    def cancel(self, job_id: JobId, *, by: Principal | None = None) -> None:
        with self.units.begin(by or self.fleet.tenant, jobs.CANCEL) as unit:
            jobs.cancel(unit, job_id)

    def reconcile(self) -> None:
        self.fleet.reconcile()

    def saves(self, job_id: JobId, step: int) -> None:
        """Rank 0 has just committed and verified a checkpoint."""
        ((host, item),) = self.running[job_id]
        self.report_saved(host, item, step)

    def report_saved(self, host: PlayedHost, item: HostAttempt, step: int) -> None:
        at_ms = int(self.clock.now.timestamp() * 1000)
        offset = self.offsets.get(item.attempt_id, 0)
        self.offsets[item.attempt_id] = host.report_saved(item.attempt_id, item.fence, step, at_ms=at_ms, offset=offset)

    def job_of(self, attempt_id: str) -> JobId:
        with self.units.read() as session:
            return session.scalars(select(Attempt.job_id).where(Attempt.id == attempt_id)).one()

    def job(self, job_id: JobId) -> Job:
        with self.units.read() as session:
            return session.get_one(Job, job_id)

    def nodes_of(self, job_id: JobId) -> set[NodeId]:
        return {host.node_id for host, _ in self.running[job_id]}

    def rack_of(self, host: PlayedHost) -> str | None:
        with self.units.read() as session:
            return session.get_one(Node, host.node_id).rack

    def reclaims(self) -> Sequence[Reclaim]:
        with self.units.read() as session:
            return session.scalars(select(Reclaim).order_by(Reclaim.notified_at, Reclaim.id)).all()

    def reclaim(self) -> Reclaim:
        (only,) = self.reclaims()
        return only

    def refreshed(self, reclaim_id: ReclaimId) -> Reclaim:
        with self.units.read() as session:
            return session.get_one(Reclaim, reclaim_id)

    def assigned_for(self, job_id: JobId) -> set[GpuUuid]:
        with self.units.read() as session:
            return set(session.scalars(select(GpuHold.gpu_uuid).where(GpuHold.job_id == job_id)))

    def stop_requests(self) -> Sequence[StopRequest]:
        with self.units.read() as session:
            return session.scalars(select(StopRequest).order_by(StopRequest.created_at)).all()

    def events(self, kind: str) -> Sequence[Event]:
        with self.units.read() as session:
            return session.scalars(select(Event).where(Event.kind == kind).order_by(Event.at, Event.id)).all()

    def workload(self) -> Workload:
        with self.units.read() as session:
            return workload(session, self.clock.now, active_policy(session))


def make_stage(units: UnitOfWorkFactory, clock: SetClock, *, num_hosts: int = 1) -> Stage:
    """Hosts ``alpha``, ``beta``… of two GPUs each."""
    tenant_id, node_ids = filled(units, f"stage of {num_hosts}", lambda: _fill(units, clock, num_hosts))
    fleet = fleet_of(units, tenant_id, node_ids["alpha"])
    hosts = [PlayedHost(units, node_id, boot_id=f"boot-of-{name}", seq=1) for name, node_id in node_ids.items()]
    return Stage(units, clock, fleet, hosts)


def _fill(units: UnitOfWorkFactory, clock: SetClock, num_hosts: int) -> tuple[TenantId, dict[str, NodeId]]:
    fleet = make_fleet(units)
    first = PlayedHost(units, fleet.node_id, boot_id="boot-of-alpha")
    first.beat()
    stage = Stage(units, clock, fleet, [first])
    names = ("alpha", "beta", "gamma", "delta")[:num_hosts]
    for name in names[1:]:
        stage.add_host(name)
    stage.reconcile()
    return fleet.tenant_id, {name: host.node_id for name, host in zip(names, stage.hosts, strict=True)}
