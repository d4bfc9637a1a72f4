"""Facts around a GPU whose remedy a rule would start: running programs, holders and open repairs."""

from dataclasses import replace
from datetime import timedelta

from sqlalchemy import ColumnElement, Row, and_, func, or_, select

from control.core.unit_of_work import UnitOfWork
from control.fleet.cordons import those_that_stand, those_to_come
from control.fleet.inventory import in_force
from control.health.burn_ins.orders import OPEN_BURN_INS
from control.health.capacity import full_scopes, gpus_of, locked_breaker
from control.health.rule_cordons import REASON_CODE as NODE_FAULT
from health.remedy.remedy import Remedy
from health.remedy.remedy_start import Around
from health.standing.breaker import GpuPlace, Taking, Way
from muster.db.models import (
    Allocation,
    AllocationGpu,
    BurnIn,
    Cordon,
    Gpu,
    GpuHold,
    GpuOverride,
    Node,
    Repair,
)
from muster.db.queries.assignments import IS_ASSIGNED
from muster.domain.evidence.repairs import HOST_SCOPE
from muster.domain.ids import GpuUuid, JobId, NodeId
from muster.domain.policy.health import HealthPolicy
from muster.domain.states import BurnInState, Standing


def around_of(unit: UnitOfWork, gpu: Gpu, remedy: Remedy, policy: HealthPolicy) -> Around:
    """Return everything on the GPU and its host that could prevent a repair by rule.

    The caller holds all GPUs of its host. From the read of the breaker's row on, this unit alone starts repairs by
    rule. That row comes last: the answers before it cannot change while the host's GPUs are held.
    """
    rack = unit.session.scalars(select(Node.rack).where(Node.id == gpu.node_id)).one()
    found = Around(
        holder=_holder(unit, AllocationGpu.gpu_uuid == gpu.uuid),
        host_holder=_holder(unit, Gpu.node_id == gpu.node_id) or _hold(unit, gpu),
        burn_in=_burn_in(unit, and_(BurnIn.gpu_uuid == gpu.uuid, BurnIn.state.in_(OPEN_BURN_INS))),
        host_burn_in=_burn_in(unit, running_on(gpu.node_id)),
        open_repair=_open_repair(unit, gpu),
        blocked_by=_breaker_block(unit, gpu, timedelta(seconds=policy.repair.limit_s(remedy.action))),
    )
    _, state = locked_breaker(unit)
    scopes = (scope for scope in GpuPlace(rack, gpu.cohort_key).scopes() if scope in state.open_since_ms)
    num_fleet, num_rack = _num_open(unit, rack)
    return replace(
        found,
        open_scope=next(scopes, None),
        full_scopes=full_scopes(unit, state, node_repair(unit, gpu), policy) if remedy.verb in HOST_SCOPE else None,
        num_fleet=num_fleet,
        num_rack=num_rack,
    )


def node_repair(unit: UnitOfWork, gpu: Gpu) -> Taking:
    """Return what a repair of ``gpu`` that its whole host feels takes from new work."""
    return Taking(gpu.node_id, gpus_of(unit.session, [gpu.node_id])[gpu.node_id], Way.NODE_REPAIR)


def _num_open(unit: UnitOfWork, rack: str | None) -> tuple[int, int]:
    """Return how many repairs by agents are open in the fleet, and how many in ``rack``."""
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


def holder(unit: UnitOfWork, where: ColumnElement[bool]) -> Row[JobId, GpuUuid] | None:
    """Return job and UUID of the first such GPU that an allocation has."""
    query = (
        select(Allocation.job_id, AllocationGpu.gpu_uuid)
        .join(AllocationGpu, AllocationGpu.allocation_id == Allocation.id)
        .join(Gpu, Gpu.uuid == AllocationGpu.gpu_uuid)
        .where(where, IS_ASSIGNED)
        .order_by(AllocationGpu.gpu_uuid)
    )
    return unit.session.execute(query).first()


def burn_in(unit: UnitOfWork, where: ColumnElement[bool]) -> BurnIn | None:
    return unit.session.scalars(select(BurnIn).where(where).order_by(BurnIn.id)).first()


def running_on(node_id: NodeId) -> ColumnElement[bool]:
    """Return the condition on a burn-in that computes on a GPU of this node."""
    return and_(BurnIn.node_id == node_id, BurnIn.state == BurnInState.RUNNING)


def _holder(unit: UnitOfWork, where: ColumnElement[bool]) -> str | None:
    found = holder(unit, where)
    return None if found is None else f"{found.job_id} holds {found.gpu_uuid}"


def _hold(unit: UnitOfWork, gpu: Gpu) -> str | None:
    query = select(GpuHold.job_id, GpuHold.gpu_uuid).join(Gpu, Gpu.uuid == GpuHold.gpu_uuid)
    found = unit.session.execute(query.where(Gpu.node_id == gpu.node_id).order_by(GpuHold.gpu_uuid)).first()
    return None if found is None else f"{found.gpu_uuid} is held for {found.job_id}"


def _burn_in(unit: UnitOfWork, where: ColumnElement[bool]) -> str | None:
    found = burn_in(unit, where)
    return None if found is None else f"{found.id} of {found.gpu_uuid} is {found.state}"


def _open_repair(unit: UnitOfWork, gpu: Gpu) -> str | None:
    """Return the text of a repair that is open on the host, a person's too: a person may have hands on the host."""
    query = select(Repair).join(Gpu, Gpu.uuid == Repair.gpu_uuid)
    query = query.where(Gpu.node_id == gpu.node_id, Repair.ended_at.is_(None)).order_by(Repair.began_at, Repair.id)
    found = unit.session.scalars(query).first()
    return None if found is None else f"{found.id} of {found.gpu_uuid} is open on its host"


def _breaker_block(unit: UnitOfWork, gpu: Gpu, takes: timedelta) -> str | None:
    """Return why the GPU must not be repaired now: a person took it out, or a cordon exists or begins within ``takes``.

    A fault of the node itself prevents nothing: its GPUs are judged apart from it. Nor does an override that would
    admit the GPU.
    """
    is_out = GpuOverride.standing == Standing.QUARANTINED
    set_over = select(GpuOverride).where(GpuOverride.gpu_uuid == gpu.uuid, is_out, in_force(unit.now))
    override = unit.session.scalars(set_over.order_by(GpuOverride.id)).first()
    if override is not None:
        return f"{override.actor} has taken it out: {override.reason}"
    return _cordon(unit, gpu, takes)


def _cordon(unit: UnitOfWork, gpu: Gpu, takes: timedelta) -> str | None:
    """Return the text of a cordon on the GPU or its node that exists or begins within ``takes``."""
    comes = and_(those_to_come(unit.now), Cordon.starts_at < unit.now + takes)
    query = select(Cordon).where(
        or_(Cordon.gpu_uuid == gpu.uuid, Cordon.node_id == gpu.node_id),
        or_(those_that_stand(unit.now), comes),
        Cordon.reason_code != NODE_FAULT,
    )
    cordon = unit.session.scalars(query.order_by(Cordon.id)).first()
    return None if cordon is None else f"the cordon {cordon.id} by {cordon.owner}: {cordon.reason}"
