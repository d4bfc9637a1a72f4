"""GPUs by the page: a fleet has 100,000 of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, or_, select, tuple_

from control.core.unit_of_work import UnitOfWork
from control.fleet.node_names import is_node
from muster.db.models import Gpu, GpuOverride
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.principals import Permission
from muster.domain.states import Standing

LEFT_OUT = ".."
"""Text between the beginning and the end of a UUID that a person shortens."""


@dataclass(frozen=True, slots=True)
class GpuFilter:
    """Conditions on a GPU; None and empty set no condition.

    ``node``: the id or the name of its node. ``model``: a part of its name, in any case. ``below``: its stored score is
    under that. ``uuid``: its beginning, its end, or both with ``..`` between.
    """

    standings: Sequence[Standing] = ()
    node: str | None = None
    model: str | None = None
    below: float | None = None
    uuid: str | None = None


@dataclass(frozen=True, slots=True)
class ListedGpu:
    """One GPU. ``override``: the newest standing in force that a person has set."""

    gpu: Gpu
    override: Standing | None


def list_gpus(
    unit: UnitOfWork, wanted: GpuFilter, *, after: tuple[NodeId, int] | None = None, limit: int
) -> Sequence[ListedGpu]:
    """Return GPUs by node and slot. ``after``: node and slot at which the last page ended."""
    unit.principal.require(Permission.GPU_READ)
    query = select(Gpu).where(*_conditions(wanted))
    if after is not None:
        query = query.where(tuple_(Gpu.node_id, Gpu.slot_index) > after)
    found = unit.session.scalars(query.order_by(Gpu.node_id, Gpu.slot_index).limit(limit)).all()
    overrides = _overrides_of(unit, [gpu.uuid for gpu in found])
    return [ListedGpu(gpu, overrides.get(gpu.uuid)) for gpu in found]


def _conditions(wanted: GpuFilter) -> Iterator[ColumnElement[bool]]:
    if wanted.standings:
        yield Gpu.standing.in_(wanted.standings)
    if wanted.node is not None:
        yield is_node(Gpu.node_id, wanted.node)
    if wanted.model is not None:
        yield Gpu.model.icontains(wanted.model, autoescape=True)
    if wanted.below is not None:
        yield Gpu.score < wanted.below
    if wanted.uuid is not None:
        yield _is_named(wanted.uuid)


def _is_named(text: str) -> ColumnElement[bool]:
    head, left_out, tail = text.partition(LEFT_OUT)
    begins = Gpu.uuid.startswith(head, autoescape=True)
    if left_out:
        return begins & Gpu.uuid.endswith(tail, autoescape=True)
    return or_(begins, Gpu.uuid.endswith(text, autoescape=True))


def _overrides_of(unit: UnitOfWork, uuids: Sequence[GpuUuid]) -> dict[GpuUuid, Standing]:
    query = (
        select(GpuOverride.gpu_uuid, GpuOverride.standing)
        .where(GpuOverride.gpu_uuid.in_(uuids), GpuOverride.ended_at.is_(None), GpuOverride.until > unit.now)
        .order_by(GpuOverride.created_at)
    )
    return dict(unit.session.execute(query).all())
