"""Queries of burn-ins."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any, Final

import msgspec
from sqlalchemy import select

from control.core.paging import ALWAYS, Part, SortKey, Span, TimeOrder, by_time
from control.core.records import record_of, records_of
from control.core.unit_of_work import UnitOfWork, declare_action
from control.fleet.node_names import is_node
from muster.db.models import BurnIn
from muster.domain.errors import NotFoundError
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.principals import Permission
from muster.domain.states import BurnInOutcome, BurnInState

READ: Final = declare_action("burn_in.read")
SORTS: Final = by_time(
    SortKey(BurnIn.ordered_at, attrgetter("ordered_at"), datetime.fromisoformat), SortKey(BurnIn.id, attrgetter("id"))
)


class BurnInRecord(msgspec.Struct, frozen=True):
    """A burn-in. Its columns' meanings are in ``muster.db.models.burn_ins``."""

    id: str
    gpu_uuid: GpuUuid
    node_id: NodeId
    state: BurnInState
    reason: str
    ordered_by: str
    ordered_at: datetime
    tries: int
    began_at: datetime | None
    ended_at: datetime | None
    last_fault: str | None
    figures: dict[str, Any] | None
    outcome: BurnInOutcome | None
    reasons: list[str]
    open_bands: list[str]
    num_peers: int
    judged_at: datetime | None
    policy_version: int | None


@dataclass(frozen=True, slots=True)
class BurnInFilter:
    """Conditions on a burn-in; None and empty set no condition.

    ``node``: its id or name. ``span``: in which it was ordered.
    """

    gpu_uuid: GpuUuid | None = None
    node: str | None = None
    states: Sequence[BurnInState] = ()
    outcomes: Sequence[BurnInOutcome] = ()
    span: Span = ALWAYS


def list_burn_ins(unit: UnitOfWork, wanted: BurnInFilter, part: Part) -> Sequence[BurnInRecord]:
    """Return burn-ins, the newest order first unless ``part`` says otherwise."""
    unit.principal.require(Permission.GPU_READ)
    query = select(BurnIn).where(*wanted.span.conditions(BurnIn.ordered_at))
    if wanted.gpu_uuid is not None:
        query = query.where(BurnIn.gpu_uuid == wanted.gpu_uuid)
    if wanted.node is not None:
        query = query.where(is_node(BurnIn.node_id, wanted.node))
    if wanted.states:
        query = query.where(BurnIn.state.in_(wanted.states))
    if wanted.outcomes:
        query = query.where(BurnIn.outcome.in_(wanted.outcomes))
    return records_of(unit.session.scalars(part.of(query, SORTS[TimeOrder.NEWEST])), BurnInRecord)


def get(unit: UnitOfWork, burn_in_id: str) -> BurnInRecord:
    """Return the burn-in. Raises NotFoundError where there is none."""
    unit.principal.require(Permission.GPU_READ)
    found = unit.session.get(BurnIn, burn_in_id)
    if found is None:
        raise NotFoundError
    return record_of(found, BurnInRecord)
