"""A tenant, one host with two GPUs, and what a test does with them: built on the services themselves."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from typing import Final

from sqlalchemy import select

from control.attempts.reconcile import HEARTBEAT, beat, reconcile
from control.attempts.types import SubmittedJob
from control.core.unit_of_work import UnitOfWorkFactory
from control.fleet import inventory
from control.hosts import protocol
from control.jobs import jobs
from control.jobs import read as job_reads
from control.jobs.read import AttemptView
from muster.db.models import AllocationGpu, Tenant
from muster.domain.ids import GpuUuid, JobId, NodeId, TenantId
from muster.domain.job.spec import JobSpec
from muster.domain.principals import Principal, Role, system_principal
from muster.domain.residency import StorePlace
from muster.domain.states import AllocationState, Standing
from muster.identity import new_id
from muster.wire.host import PROTOCOL_VERSION, HeartbeatRequest
from tests.filled_once import filled
from workers.control.scheduler_loop import run_cycle

ENDS_AT_ITS_FAULT: Final = {"restart": {"max_restarts": 0}}
"""Of a job's specification: what its program does wrong is not tried again."""
OPERATOR = Principal(name="operator:test", role=Role.OPERATOR)


@dataclass(frozen=True)
class Fleet:
    units: UnitOfWorkFactory
    tenant: Principal
    tenant_id: TenantId
    node_id: NodeId
    beats: Iterator[int] = field(default_factory=lambda: count(100), kw_only=True)

    @property
    def node_principal(self) -> Principal:
        return Principal(name=f"node:{self.node_id}", role=Role.NODE, node_id=self.node_id)

    def submit(self, **spec: object) -> JobId:
        document = {"name": "job", "program": {"script": "/srv/train.py"}, **ENDS_AT_ITS_FAULT, **spec}
        given = JobSpec.model_validate(document, strict=False)
        store = None if given.program.git is None else StorePlace("main")
        with self.units.begin(self.tenant, jobs.SUBMIT) as unit:
            return jobs.submit(unit, given, store=store).id

    def job(self, job_id: JobId) -> SubmittedJob:
        with self.units.begin(self.tenant, jobs.READ) as unit:
            return job_reads.submitted(unit, job_id)

    def attempts(self, job_id: JobId) -> list[AttemptView]:
        with self.units.begin(self.tenant, jobs.READ) as unit:
            return job_reads.attempts_of(unit, job_id)

    def cancel(self, job_id: JobId) -> SubmittedJob:
        with self.units.begin(self.tenant, jobs.CANCEL) as unit:
            return jobs.cancel(unit, job_id, reason="enough")

    def beat(self) -> None:
        """The host's heartbeat, so that it is LIVE."""
        request = HeartbeatRequest(protocol=PROTOCOL_VERSION, boot_id="boot-1", seq=next(self.beats))
        with self.units.begin(self.node_principal, protocol.HEARTBEAT, quiet=True) as unit:
            protocol.heartbeat(unit, request)

    def cycle(self) -> None:
        run_cycle(self.units, system_principal("scheduler"))

    def reconcile(self) -> None:
        with self.units.begin(system_principal("api"), HEARTBEAT, quiet=True) as unit:
            beat(unit)
        reconcile(self.units, system_principal("reconciler"))

    def num_taken_gpus(self) -> int:
        with self.units.read() as session:
            open_states = [AllocationState.ASSIGNED, AllocationState.CLEANING]
            return len(session.scalars(select(AllocationGpu).where(AllocationGpu.state.in_(open_states))).all())


def enrol_host(units: UnitOfWorkFactory, name: str, *, num_gpus: int = 2, rack: str | None = None) -> NodeId:
    """A host whose simulated GPUs an operator has declared healthy."""
    gpus = [
        inventory.GpuInventory(
            uuid=GpuUuid(f"GPU-{name}-{index}"),
            slot_index=index,
            model="Simulated H100",
            memory_bytes=80 << 30,
            compute_capability="9.0",
            driver_version="0",
            is_simulated=True,
        )
        for index in range(num_gpus)
    ]
    with units.begin(OPERATOR, inventory.ENROL) as unit:
        node_id = inventory.enrol_node(unit, name, gpus, address="127.0.0.1", rack=rack, is_simulated=True)
    with units.begin(OPERATOR, inventory.OVERRIDE) as unit:
        until = unit.now + timedelta(days=1)
        inventory.override_standing(unit, [gpu.uuid for gpu in gpus], Standing.HEALTHY, until=until, reason="test")
    return node_id


def make_fleet(units: UnitOfWorkFactory, node_id: NodeId | None = None) -> Fleet:
    """``node_id``: a host that is enrolled already."""
    if node_id is None:
        tenant_id, node_id = filled(units, "fleet", lambda: (_make_tenant(units), enrol_host(units, "alpha")))
    else:
        tenant_id = _make_tenant(units)
    return fleet_of(units, tenant_id, node_id)


def fleet_of(units: UnitOfWorkFactory, tenant_id: TenantId, node_id: NodeId) -> Fleet:
    """Return the fleet of a tenant and a host that the database holds."""
    tenant = Principal(name="member", role=Role.TENANT_MEMBER, tenant_id=tenant_id)
    return Fleet(units, tenant, tenant_id, node_id)


def _make_tenant(units: UnitOfWorkFactory) -> TenantId:
    tenant_id = TenantId(new_id("tenant"))
    with units.begin(OPERATOR, inventory.ENROL) as unit:
        unit.session.add(Tenant(id=tenant_id, name="acme", created_at=unit.now))
        unit.audit("tenant.create", "tenant", tenant_id)
    return tenant_id
