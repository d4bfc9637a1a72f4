"""A fleet in the store for placements that are committed: hosts, their GPUs, a tenant and its jobs."""

import random
from typing import Final
from uuid import UUID

from sqlalchemy import update

from control.core.unit_of_work import UnitOfWorkFactory
from control.fleet import inventory
from control.fleet.inventory import GpuInventory
from control.jobs import jobs
from muster.db.models import Gpu, Node, Tenant
from muster.domain.ids import GpuUuid, JobId, TenantId
from muster.domain.job.spec import JobSpec
from muster.domain.principals import Principal, Role
from muster.domain.states import Contact, Standing
from muster.identity import new_id

GPUS: Final = 8
_OPERATOR: Final = Principal(name="operator:bench", role=Role.OPERATOR)


def fill(units: UnitOfWorkFactory, num_nodes: int) -> TenantId:
    """Enrol hosts whose GPUs are all HEALTHY, and make the one tenant, which is returned."""
    chance = random.Random(1)  # noqa: S311  # a seeded fleet must repeat
    for number in range(num_nodes):
        gpus = [_gpu(slot, chance) for slot in range(GPUS)]
        with units.begin(_OPERATOR, inventory.ENROL) as unit:
            inventory.enrol_node(unit, f"host-{number}", gpus, address="127.0.0.1", rack=f"rack-{number // 16}")
    tenant_id = TenantId(new_id("tenant"))
    with units.begin(_OPERATOR, inventory.ENROL) as unit:
        for standing in (Standing.PROBATION, Standing.HEALTHY):
            unit.session.execute(update(Gpu).values(standing=standing))
        unit.session.execute(update(Node).values(contact=Contact.LIVE))
        unit.session.add(Tenant(id=tenant_id, name="bench", created_at=unit.now))
        unit.audit("tenant.create", "tenant", tenant_id)
    return tenant_id


def submit(units: UnitOfWorkFactory, tenant_id: TenantId, num_jobs: int, shape: dict[str, int]) -> list[JobId]:
    tenant = Principal(name="member", role=Role.TENANT_MEMBER, tenant_id=tenant_id)
    spec = JobSpec.model_validate(
        {"name": "bench", "program": {"script": "/srv/train.py"}, "shape": shape}, strict=False
    )
    ids = []
    for _ in range(num_jobs):
        with units.begin(tenant, jobs.SUBMIT) as unit:
            ids.append(jobs.submit(unit, spec).id)
    return ids


def _gpu(slot: int, rng: random.Random) -> GpuInventory:
    """Return a GPU under a UUID as long and as scattered as NVIDIA's."""
    return GpuInventory(
        uuid=GpuUuid(f"GPU-{UUID(int=rng.getrandbits(128))}"),
        slot_index=slot,
        model="H100",
        memory_bytes=80 << 30,
        compute_capability="9.0",
        driver_version="580",
    )
