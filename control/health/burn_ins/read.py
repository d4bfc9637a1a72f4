"""Queries of burn-ins."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from sqlalchemy import select, tuple_

from control.core.records import record_of, records_of
from control.core.unit_of_work import UnitOfWork, declare_action
from control.fleet.node_names import is_node
from muster.db.models import BurnIn
from muster.domain.errors import NotFoundError
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.principals import Permission
from muster.domain.states import BurnInOutcome, BurnInState

READ: Final = declare_action("burn_in.read")


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


def list_burn_ins(
    unit: UnitOfWork,
    *,
    gpu_uuid: GpuUuid | None = None,
    node: str | None = None,
    states: Sequence[BurnInState] = (),
    outcomes: Sequence[BurnInOutcome] = (),
    before: tuple[datetime, str] | None = None,
    limit: int,
) -> Sequence[BurnInRecord]:
    """Return burn-ins, the newest order first.

    ``node``: its id or name. ``before``: time and id at which the last page ended.
    """
    unit.principal.require(Permission.GPU_READ)
    query = select(BurnIn)
    if gpu_uuid is not None:
        query = query.where(BurnIn.gpu_uuid == gpu_uuid)
    if node is not None:
        query = query.where(is_node(BurnIn.node_id, node))
    if states:
        query = query.where(BurnIn.state.in_(states))
    if outcomes:
        query = query.where(BurnIn.outcome.in_(outcomes))
    if before is not None:
        query = query.where(tuple_(BurnIn.ordered_at, BurnIn.id) < before)
    rows = unit.session.scalars(query.order_by(BurnIn.ordered_at.desc(), BurnIn.id.desc()).limit(limit))
    return records_of(rows, BurnInRecord)


def get(unit: UnitOfWork, burn_in_id: str) -> BurnInRecord:
    """Return the burn-in. Raises NotFoundError where there is none."""
    unit.principal.require(Permission.GPU_READ)
    found = unit.session.get(BurnIn, burn_in_id)
    if found is None:
        raise NotFoundError
    return record_of(found, BurnInRecord)
