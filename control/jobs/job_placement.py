"""Placement of an attempt's ranks: its GPUs by rank on their hosts, compared with the attempts before and after."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import func, select

from control.attempts.mapping import job_request
from control.core.unit_of_work import UnitOfWork
from control.jobs.read import row_of
from muster.db.models import Allocation, AllocationGpu, Attempt, AttemptHost, Event, Gpu, Node
from muster.db.queries.effective_standing import effective_standing
from muster.domain.ids import AttemptId, GpuUuid, JobId, NodeId
from muster.domain.states import AllocationState, HostPartState, Standing

HOSTS_DRAWN: Final = 96
"""A larger gang is drawn up to this host, and the others are counted."""


@dataclass(frozen=True, slots=True)
class AssignedGpu:
    """One GPU. ``standing``: the effective one now.

    ``rank``: the global rank that the launcher gives it by its place; None where the host has fewer ranks.

    ``is_new``: the attempt before did not hold it. ``is_left``: the attempt after does not. ``is_blamed``: the attempt
    was taken off because of it.
    """

    uuid: GpuUuid
    slot_index: int
    standing: Standing
    rank: int | None
    state: AllocationState
    is_new: bool
    is_left: bool
    is_blamed: bool


@dataclass(frozen=True, slots=True)
class PlacedHost:
    """One host. ``num_slots``: GPUs that the whole host has."""

    node_id: NodeId
    name: str
    rack: str | None
    node_rank: int
    state: HostPartState
    num_slots: int
    ranks: tuple[int, int]
    gpus: Sequence[AssignedGpu]


@dataclass(frozen=True, slots=True)
class Placement:
    """The placement of attempt ``number``.

    ``num_hosts``: of the whole gang; ``hosts`` may have only the first of them.
    """

    number: int
    num_hosts: int
    hosts: Sequence[PlacedHost]

    @property
    def by_rack(self) -> list[tuple[str | None, list[PlacedHost]]]:
        """Racks in the order in which the ranks reach them."""
        racks: dict[str | None, list[PlacedHost]] = {}
        for host in self.hosts:
            racks.setdefault(host.rack, []).append(host)
        return list(racks.items())


def placement_of(unit: UnitOfWork, job_id: JobId, *, number: int | None = None) -> Placement | None:
    """Return the placement of attempt ``number`` of a visible job, or of its newest. None: there is no such attempt."""
    job = row_of(unit, job_id)
    query = select(Attempt).where(Attempt.job_id == job.id).order_by(Attempt.number.desc()).limit(1)
    attempt = unit.session.scalar(query if number is None else query.where(Attempt.number == number))
    if attempt is None:
        return None
    per_host = job_request(job).shape.num_ranks_per_node
    blamed, drawn = _blamed(unit, attempt.id), _gpus(unit, attempt.id)
    uuids = [gpu.uuid for _, gpu, _ in drawn]
    before, after = (_assigned_to(unit, job_id, attempt.number + step, uuids) for step in (-1, 1))
    gpus: dict[NodeId, list[AssignedGpu]] = {}
    for held, gpu, standing in drawn:
        local = held.local_index
        gpus.setdefault(held.node_id, []).append(
            AssignedGpu(
                uuid=gpu.uuid,
                slot_index=gpu.slot_index,
                standing=standing,
                rank=held.node_rank * per_host + local if local < per_host else None,
                state=held.state,
                is_new=before is not None and gpu.uuid not in before,
                is_left=after is not None and gpu.uuid not in after,
                is_blamed=gpu.uuid in blamed,
            )
        )
    hosts = _hosts(unit, attempt.id, gpus, per_host)
    return Placement(attempt.number, _num_hosts(unit, attempt.id), hosts)


def _hosts(
    unit: UnitOfWork, attempt_id: AttemptId, gpus: dict[NodeId, list[AssignedGpu]], per_host: int
) -> list[PlacedHost]:
    query = (
        select(AttemptHost, Node)
        .join(Node, Node.id == AttemptHost.node_id)
        .where(AttemptHost.attempt_id == attempt_id, AttemptHost.node_rank < HOSTS_DRAWN)
        .order_by(AttemptHost.node_rank)
    )
    return [
        PlacedHost(
            node_id=node.id,
            name=node.name,
            rack=node.rack,
            node_rank=part.node_rank,
            state=part.state,
            num_slots=node.num_gpus,
            ranks=(part.node_rank * per_host, (part.node_rank + 1) * per_host - 1),
            gpus=sorted(gpus.get(node.id, ()), key=lambda gpu: gpu.slot_index),
        )
        for part, node in unit.session.execute(query)
    ]


def _gpus(unit: UnitOfWork, attempt_id: AttemptId) -> Sequence[tuple[AllocationGpu, Gpu, Standing]]:
    query = (
        select(AllocationGpu, Gpu, effective_standing(unit.now))
        .join(Allocation, Allocation.id == AllocationGpu.allocation_id)
        .join(Gpu, Gpu.uuid == AllocationGpu.gpu_uuid)
        .where(Allocation.attempt_id == attempt_id, AllocationGpu.node_rank < HOSTS_DRAWN)
        .order_by(AllocationGpu.node_rank, AllocationGpu.local_index)
    )
    return [(held, gpu, standing) for held, gpu, standing in unit.session.execute(query)]


def _assigned_to(unit: UnitOfWork, job_id: JobId, number: int, among: Sequence[GpuUuid]) -> frozenset[GpuUuid] | None:
    """Return which GPUs of ``among`` attempt ``number`` has; None: there is no such attempt with GPUs."""
    placed = select(Allocation.id).join(Attempt, Attempt.id == Allocation.attempt_id)
    allocation_id = unit.session.scalar(placed.where(Attempt.job_id == job_id, Attempt.number == number))
    if allocation_id is None:
        return None
    query = select(AllocationGpu.gpu_uuid).where(AllocationGpu.allocation_id == allocation_id)
    return frozenset(unit.session.scalars(query.where(AllocationGpu.gpu_uuid.in_(among))))


def _blamed(unit: UnitOfWork, attempt_id: AttemptId) -> frozenset[str]:
    query = select(Event.payload).where(
        Event.subject_type == "attempt", Event.subject_id == attempt_id, Event.kind == "attempt.evacuating"
    )
    return frozenset(uuid for payload in unit.session.scalars(query) for uuid in payload.get("gpus", ()))


def _num_hosts(unit: UnitOfWork, attempt_id: AttemptId) -> int:
    query = select(func.count()).select_from(AttemptHost).where(AttemptHost.attempt_id == attempt_id)
    return unit.session.scalar(query) or 0
