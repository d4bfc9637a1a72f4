"""What a new local stack needs once: keys, a tenant, this machine as a host with simulated GPUs."""

import os
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from sqlalchemy import select

from muster.db.models import Gpu, GpuOverride, Tenant
from muster.domain.errors import UnauthenticatedError
from muster.domain.ids import GpuUuid, NodeId, TenantId
from muster.domain.principals import Principal, Role
from muster.domain.states import Standing
from muster.services import fleet, keys, tenants
from muster.services.fleet import GpuInventory
from muster.services.unit_of_work import UnitOfWorkFactory

TENANT_NAME: Final = "demo"
NODE_NAME: Final = "local"
SIMULATED_MODEL: Final = "Simulated H100 80GB HBM3"
OVERRIDE_REASON: Final = (
    "local stack: these GPUs are simulated and have no burn-in to pass yet; programs run on this machine's CPU"
)
OVERRIDE_FOR: Final = timedelta(days=365)


@dataclass(frozen=True, slots=True)
class LocalIdentities:
    tenant_id: TenantId
    node_id: NodeId
    operator_key_file: Path
    tenant_key_file: Path
    node_key_file: Path


def bootstrap(units: UnitOfWorkFactory, folder: Path, *, num_gpus: int) -> LocalIdentities:
    """Make what is missing; a second start changes nothing. Keys lie in ``folder``, mode 0600."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    operator = Principal(name="operator:local-stack", role=Role.OPERATOR)
    tenant_id = _tenant(units, operator)
    node_id = _node(units, operator, num_gpus)
    return LocalIdentities(
        tenant_id=tenant_id,
        node_id=node_id,
        operator_key_file=_key(units, operator, folder / "operator.key", Role.OPERATOR, None, None),
        tenant_key_file=_key(units, operator, folder / "tenant.key", Role.TENANT_ADMIN, tenant_id, None),
        node_key_file=_key(units, operator, folder / "node.key", Role.NODE, None, node_id),
    )


def _tenant(units: UnitOfWorkFactory, operator: Principal) -> TenantId:
    with units.begin(operator, tenants.CREATE) as unit:
        existing = unit.session.scalar(select(Tenant.id).where(Tenant.name == TENANT_NAME))
        return existing or tenants.create(unit, name=TENANT_NAME).id


def _node(units: UnitOfWorkFactory, operator: Principal, num_gpus: int) -> NodeId:
    gpus = [
        GpuInventory(
            uuid=GpuUuid(f"GPU-51300000-0000-4000-8000-{index:012d}"),
            slot_index=index,
            model=SIMULATED_MODEL,
            memory_bytes=80 << 30,
            compute_capability="9.0",
            driver_version="simulated",
            is_simulated=True,
        )
        for index in range(num_gpus)
    ]
    with units.begin(operator, fleet.ENROL) as unit:
        node_id = fleet.enrol_node(unit, NODE_NAME, gpus, address="127.0.0.1", is_simulated=True)
    with units.begin(operator, fleet.OVERRIDE) as unit:
        in_force = select(GpuOverride.gpu_uuid).where(GpuOverride.ended_at.is_(None), GpuOverride.until > unit.now)
        query = select(Gpu.uuid).where(Gpu.node_id == node_id, Gpu.uuid.not_in(in_force))
        missing = unit.session.scalars(query).all()
        until = unit.now + OVERRIDE_FOR
        fleet.override_standing(unit, missing, Standing.HEALTHY, until=until, reason=OVERRIDE_REASON)
    return node_id


def _key(
    units: UnitOfWorkFactory,
    operator: Principal,
    path: Path,
    role: Role,
    tenant_id: TenantId | None,
    node_id: NodeId | None,
) -> Path:
    """The key in ``path``, if it still opens; else a new one."""
    try:
        keys.authenticate(units, path.read_text(encoding="ascii").strip(), address=None, request_id=None)
    except (FileNotFoundError, UnauthenticatedError, UnicodeDecodeError):
        with units.begin(operator, keys.CREATE) as unit:
            name = f"local-{role.replace('_', '-')}"
            made = keys.create(unit, name=name, role=role, tenant_id=tenant_id, node_id=node_id)
        draft = path.with_suffix(".draft")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as file:
            file.write(made.token.text + "\n")
        draft.replace(path)
    return path
