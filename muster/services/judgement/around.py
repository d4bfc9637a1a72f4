"""What there is around a GPU whose remedy a rule would start: what runs, who holds it back, what else is mended."""

from datetime import timedelta
from typing import Final

import msgspec
from sqlalchemy import ColumnElement, and_, func, or_, select

from health.breaker import BreakerState, GpuPlace
from health.remedy import Remedy
from health.remedy_start import Around
from muster.db.models import (
    Allocation,
    AllocationGpu,
    Breaker,
    BurnIn,
    Cordon,
    Gpu,
    GpuHold,
    GpuOverride,
    Node,
    Repair,
)
from muster.domain.health_policy import HealthPolicy
from muster.domain.states import AllocationState, BurnInState, Standing
from muster.services.cordons import those_that_stand, those_to_come
from muster.services.fleet import in_force
from muster.services.judgement.moves import BREAKER
from muster.services.judgement.node_holds import REASON_CODE as NODE_FAULT
from muster.services.unit_of_work import UnitOfWork

_OPEN_BURN_INS: Final = (BurnInState.ORDERED, BurnInState.RUNNING, BurnInState.MEASURED)


def around_of(unit: UnitOfWork, gpu: Gpu, remedy: Remedy, policy: HealthPolicy) -> Around:
    """The caller holds all GPUs of its host. From here on this unit alone starts repairs by rule: see ``take_turn``."""
    state = take_turn(unit)
    rack = unit.session.scalars(select(Node.rack).where(Node.id == gpu.node_id)).one()
    scopes = (scope for scope in GpuPlace(rack, gpu.cohort_key).scopes() if scope in state.open_since_ms)
    num_fleet, num_rack = _num_open(unit, rack)
    return Around(
        holder=_holder(unit, AllocationGpu.gpu_uuid == gpu.uuid),
        host_holder=_holder(unit, Gpu.node_id == gpu.node_id) or _promised(unit, gpu),
        burn_in=_burn_in(unit, and_(BurnIn.gpu_uuid == gpu.uuid, BurnIn.state.in_(_OPEN_BURN_INS))),
        host_burn_in=_burn_in(unit, and_(BurnIn.node_id == gpu.node_id, BurnIn.state == BurnInState.RUNNING)),
        open_repair=_open_repair(unit, gpu),
        held_back=_held_back(unit, gpu, timedelta(seconds=policy.repair.limit_s(remedy.action))),
        open_scope=next(scopes, None),
        num_fleet=num_fleet,
        num_rack=num_rack,
    )


def take_turn(unit: UnitOfWork) -> BreakerState:
    """Under the breaker's row, as every start of a repair is: of two processes one counts what the other did."""
    row = unit.session.get_one(Breaker, BREAKER, with_for_update=True, populate_existing=True)
    return msgspec.convert(row.state, BreakerState)


def _num_open(unit: UnitOfWork, rack: str | None) -> tuple[int, int]:
    """Repairs by agents that are open: in the fleet, and in ``rack``."""
    in_rack = func.count().filter(Node.rack == rack)
    query = (
        select(func.count(), in_rack)
        .select_from(Repair)
        .join(Gpu, Gpu.uuid == Repair.gpu_uuid)
        .join(Node, Node.id == Gpu.node_id)
        .where(Repair.ended_at.is_(None), Repair.verb.is_not(None))
    )
    num_fleet, num_rack = unit.session.execute(query).one()
    return num_fleet, 0 if rack is None else num_rack


def _holder(unit: UnitOfWork, where: ColumnElement[bool]) -> str | None:
    taken = AllocationGpu.state.in_([AllocationState.HELD, AllocationState.CLEANING])
    query = (
        select(Allocation.job_id, AllocationGpu.gpu_uuid)
        .join(AllocationGpu, AllocationGpu.allocation_id == Allocation.id)
        .join(Gpu, Gpu.uuid == AllocationGpu.gpu_uuid)
        .where(where, taken)
        .order_by(AllocationGpu.gpu_uuid)
    )
    found = unit.session.execute(query).first()
    return None if found is None else f"{found.job_id} holds {found.gpu_uuid}"


def _promised(unit: UnitOfWork, gpu: Gpu) -> str | None:
    query = select(GpuHold.job_id, GpuHold.gpu_uuid).join(Gpu, Gpu.uuid == GpuHold.gpu_uuid)
    found = unit.session.execute(query.where(Gpu.node_id == gpu.node_id).order_by(GpuHold.gpu_uuid)).first()
    return None if found is None else f"{found.gpu_uuid} is promised to {found.job_id}"


def _burn_in(unit: UnitOfWork, where: ColumnElement[bool]) -> str | None:
    found = unit.session.scalars(select(BurnIn).where(where).order_by(BurnIn.id)).first()
    return None if found is None else f"{found.id} of {found.gpu_uuid} is {found.state}"


def _open_repair(unit: UnitOfWork, gpu: Gpu) -> str | None:
    """A person's too: somebody may have hands on the host."""
    query = select(Repair).join(Gpu, Gpu.uuid == Repair.gpu_uuid)
    query = query.where(Gpu.node_id == gpu.node_id, Repair.ended_at.is_(None)).order_by(Repair.began_at, Repair.id)
    found = unit.session.scalars(query).first()
    return None if found is None else f"{found.id} of {found.gpu_uuid} is open on its host"


def _held_back(unit: UnitOfWork, gpu: Gpu, takes: timedelta) -> str | None:
    """By a person who has taken the GPU out, or a cordon on it or its node that stands, or begins within ``takes``.

    That the node itself is at fault holds nothing back: its GPUs are judged apart from it. Nor does an override that
    would admit the GPU.
    """
    is_out = GpuOverride.standing == Standing.QUARANTINED
    set_over = select(GpuOverride).where(GpuOverride.gpu_uuid == gpu.uuid, is_out, in_force(unit.now))
    override = unit.session.scalars(set_over.order_by(GpuOverride.id)).first()
    if override is not None:
        return f"{override.actor} has taken it out: {override.reason}"
    comes = and_(those_to_come(unit.now), Cordon.starts_at < unit.now + takes)
    query = select(Cordon).where(
        or_(Cordon.gpu_uuid == gpu.uuid, Cordon.node_id == gpu.node_id),
        or_(those_that_stand(unit.now), comes),
        Cordon.reason_code != NODE_FAULT,
    )
    cordon = unit.session.scalars(query.order_by(Cordon.id)).first()
    return None if cordon is None else f"the cordon {cordon.id} by {cordon.owner}: {cordon.reason}"
