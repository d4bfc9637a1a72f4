"""Cordons: owned, reasoned, expiring records that keep a node or a GPU out of new placements. Running jobs stay."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Final

from sqlalchemy import ColumnElement, and_, func, or_, select

from control.core.paging import ALWAYS, Part, SortKey, Span, TimeOrder, by_time
from control.core.records import record_of, records_of
from control.core.unit_of_work import SCHEDULER_CHANNEL, UnitOfWork, declare_action
from control.fleet.node_names import is_node
from control.fleet.place_conditions import ANYWHERE, PlaceFilter
from control.fleet.types import CordonRecord
from muster.db.models import Cordon, Gpu, Node
from muster.db.queries.effective_standing import cordon_stands
from muster.domain.errors import NotFoundError, ValidationFailedError
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.principals import Permission
from muster.identity import new_id

CREATE: Final = declare_action("cordon.create")
RELEASE: Final = declare_action("cordon.release")
READ: Final = declare_action("cordon.read")
BY_PERSON: Final = "by_person"
ALL: Final = Part(None)
SORTS: Final = by_time(
    SortKey(Cordon.created_at, attrgetter("created_at"), datetime.fromisoformat), SortKey(Cordon.id, attrgetter("id"))
)


def create(
    unit: UnitOfWork,
    *,
    reason: str,
    node_id: NodeId | None = None,
    gpu_uuid: GpuUuid | None = None,
    until: datetime | None = None,
) -> CordonRecord:
    """Set one on exactly one of node and GPU. Several can stand; the place is schedulable when none is left.

    Raises:
        ValidationFailedError: no place or two, no such place, or an end that has passed.
    """
    unit.principal.require(Permission.NODE_WRITE)
    if (node_id is None) == (gpu_uuid is None):
        raise ValidationFailedError.at("/node_id", "one_place", "name either node_id or gpu_uuid")
    if node_id is not None and unit.session.get(Node, node_id) is None:
        raise ValidationFailedError.at("/node_id", "unknown_node", "there is no such node")
    if gpu_uuid is not None and unit.session.get(Gpu, gpu_uuid) is None:
        raise ValidationFailedError.at("/gpu_uuid", "unknown_gpu", "there is no such GPU")
    if until is not None and until <= unit.now:
        raise ValidationFailedError.at("/until", "past", "must lie in the future")
    cordon = stand(unit, BY_PERSON, reason, node_id=node_id, gpu_uuid=gpu_uuid, until=until)
    unit.audit("cordon.create", "cordon", cordon.id, reason=reason)
    unit.session.flush()
    return record_of(cordon, CordonRecord)


def stand(
    unit: UnitOfWork,
    reason_code: str,
    reason: str,
    *,
    node_id: NodeId | None = None,
    gpu_uuid: GpuUuid | None = None,
    until: datetime | None = None,
    starts_at: datetime | None = None,
) -> Cordon:
    """Add a cordon in the name of the unit's principal. The caller has found the place."""
    cordon = Cordon(
        id=new_id("cordon"),
        node_id=node_id,
        gpu_uuid=gpu_uuid,
        reason_code=reason_code,
        reason=reason,
        owner=unit.principal.name,
        starts_at=starts_at,
        until=until,
        created_at=unit.now,
    )
    unit.session.add(cordon)
    _report(unit, cordon, "cordoned", reason)
    return cordon


def end(unit: UnitOfWork, cordon: Cordon, reason: str | None, *, at: datetime | None = None) -> None:
    """End one that stands, at ``at`` where it ended before now. The caller holds it."""
    cordon.released_at, cordon.released_by = at or unit.now, unit.principal.name
    _report(unit, cordon, "uncordoned", reason)


def release(unit: UnitOfWork, cordon_id: str, *, reason: str | None = None) -> CordonRecord:
    """End it now. Releasing twice is the same as once.

    Raises:
        NotFoundError: there is no such cordon.
    """
    unit.principal.require(Permission.NODE_WRITE)
    cordon = unit.session.get(Cordon, cordon_id, with_for_update={"key_share": True})
    if cordon is None:
        raise NotFoundError
    if cordon.released_at is None:
        end(unit, cordon, reason)
        unit.audit("cordon.release", "cordon", cordon.id, reason=reason)
        unit.session.flush()
    return record_of(cordon, CordonRecord)


@dataclass(frozen=True, slots=True)
class CordonFilter:
    """Conditions on a cordon; None sets no condition.

    ``node``: the id or name of the node that it is on, or whose GPU. ``place``: of that node. ``owner``: a person, or
    the rule that set it. ``span``: in which it was created.
    """

    node: str | None = None
    place: PlaceFilter = ANYWHERE
    owner: str | None = None
    reason_code: str | None = None
    span: Span = ALWAYS


ANY_CORDON: Final = CordonFilter()


def list_open(unit: UnitOfWork, wanted: CordonFilter = ANY_CORDON, part: Part = ALL) -> Sequence[CordonRecord]:
    """Return the cordons that stand now or will, the newest first unless ``part`` says otherwise."""
    unit.principal.require(Permission.NODE_READ)
    of_node = func.coalesce(
        Cordon.node_id, select(Gpu.node_id).where(Gpu.uuid == Cordon.gpu_uuid).correlate(Cordon).scalar_subquery()
    )
    query = select(Cordon).where(
        or_(those_that_stand(unit.now), those_to_come(unit.now)),
        *wanted.span.conditions(Cordon.created_at),
        *wanted.place.on(of_node),
    )
    if wanted.node is not None:
        query = query.where(is_node(of_node, wanted.node))
    if wanted.owner is not None:
        query = query.where(Cordon.owner == wanted.owner)
    if wanted.reason_code is not None:
        query = query.where(Cordon.reason_code == wanted.reason_code)
    return records_of(unit.session.scalars(part.of(query, SORTS[TimeOrder.NEWEST])), CordonRecord)


def those_that_stand(now: datetime) -> ColumnElement[bool]:
    """Return the condition on a cordon that stands."""
    return and_(*cordon_stands(now))


def those_to_come(now: datetime) -> ColumnElement[bool]:
    """Return the condition on a cordon that stands from a later time on."""
    return and_(Cordon.released_at.is_(None), Cordon.starts_at > now)


def _report(unit: UnitOfWork, cordon: Cordon, what: str, reason: str | None) -> None:
    subject, subject_id = ("node", cordon.node_id) if cordon.node_id is not None else ("gpu", cordon.gpu_uuid)
    payload = {
        "cordon_id": cordon.id,
        "reason_code": cordon.reason_code,
        "reason": reason,
        "until": None if cordon.until is None else cordon.until.isoformat(),
    }
    if cordon.starts_at is not None:
        payload["starts_at"] = cordon.starts_at.isoformat()
    unit.emit(f"{subject}.{what}", subject, str(subject_id), payload=payload)
    unit.wake(SCHEDULER_CHANNEL)
