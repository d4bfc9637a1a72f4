"""Maintenance windows: a person works on a node for a time, so findings about it in that time have no weight.

A window is a cordon that stands from its start to its end: no new work comes to the node. Running jobs stay, or leave
before it starts where the window has an evacuation. Then no job is placed there that would still run at that time
(``maintenance_starts``), and jobs that run there by then get a notice (``control.hosts.maintenance_evacuation``).
Unlike a drain's cordon, it suspends every rule about the node and its GPUs (``health.evidence.merge``). Releasing
the cordon ends it.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from control.core.records import record_of, records_of
from control.core.unit_of_work import UnitOfWork, declare_action
from control.fleet import cordons
from control.fleet.node_names import find_node
from control.fleet.types import CordonRecord
from control.policy.policies import active_policy
from control.policy.spent_budgets import require_budget
from muster.db.models import Cordon, Gpu
from muster.domain.errors import ValidationFailedError
from muster.domain.ids import NodeId
from muster.domain.principals import Permission
from muster.domain.times import to_ms
from scheduler.fleet.maintenance_end import maintenance_ends_of

DECLARE: Final = declare_action("node.maintenance")
REASON_CODE: Final = "maintenance"
LONGEST: Final = timedelta(days=30)
"""Longer work is no window: retire the GPUs, or drain the node."""
LOOKBACK: Final = timedelta(days=30)
"""Longest time since the end of a window for which a late report may still arrive."""


@dataclass(frozen=True, slots=True)
class Window:
    """The time from ``from_ms`` up to, and without, ``until_ms``."""

    from_ms: int
    until_ms: int

    def holds(self, at_ms: int) -> bool:
        return self.from_ms <= at_ms < self.until_ms


def declare(
    unit: UnitOfWork,
    text: str,
    *,
    reason: str,
    until: datetime,
    starts_at: datetime | None = None,
    evacuate_lead_s: float | None = None,
    despite_budget: str | None = None,
) -> CordonRecord:
    """Declare a window on the node whose id or name is ``text``, from ``starts_at`` (None: now) until ``until``.

    ``evacuate_lead_s``: how long before its start running jobs get a stop request to save and leave; None: they stay.
    ``despite_budget``: why, although an error budget of a class that runs there is spent.

    Raises:
        NotFoundError: there is no such node.
        ValidationFailedError: it begins in the past, ends before it begins, lasts longer than ``LONGEST``, or programs
            would have less time to leave than the policy gives an evacuated job.
        ConflictError: a spent error budget forbids it.
    """
    unit.principal.require(Permission.NODE_WRITE)
    node = find_node(unit, text)
    if starts_at is not None and starts_at < unit.now:
        raise ValidationFailedError.at("/starts_at", "past", "must not lie in the past; leave it out for now")
    begins = starts_at or unit.now
    if until <= begins:
        raise ValidationFailedError.at("/until", "before_start", "must lie in the future and after starts_at")
    if until - begins > LONGEST:
        raise ValidationFailedError.at("/until", "too_long", f"at most {LONGEST.days} days after it starts")
    _require_lead(unit, evacuate_lead_s)
    require_budget(unit, "maintenance", despite=despite_budget, node_id=node.id)
    cordon = cordons.stand(unit, REASON_CODE, reason, node_id=node.id, until=until, starts_at=begins)
    if evacuate_lead_s is not None:
        cordon.evacuate_at = max(begins - timedelta(seconds=evacuate_lead_s), min(unit.now, begins))
    unit.audit("node.maintenance", "node", node.id, reason=reason, detail={"cordon_id": cordon.id})
    unit.session.flush()
    return record_of(cordon, CordonRecord)


def declared(unit: UnitOfWork, node_id: NodeId) -> Sequence[CordonRecord]:
    """Return the cordons of its windows that stand or are to come, the next first."""
    unit.principal.require(Permission.NODE_READ)
    is_ahead = (Cordon.released_at.is_(None), Cordon.until > unit.now)
    query = select(Cordon).where(Cordon.node_id == node_id, Cordon.reason_code == REASON_CODE, *is_ahead)
    rows = unit.session.scalars(query.order_by(func.coalesce(Cordon.starts_at, Cordon.created_at), Cordon.id))
    return records_of(rows, CordonRecord)


def _require_lead(unit: UnitOfWork, lead_s: float | None) -> None:
    least_s = active_policy(unit.session).evacuation.grace_s
    if lead_s is not None and lead_s < least_s:
        detail = f"must be at least {least_s:g}: the policy gives a job that long to save and leave"
        raise ValidationFailedError.at("/evacuate_lead_s", "less_than_policy", detail)


def maintenance_starts(session: Session, now: datetime) -> dict[NodeId, int]:
    """Return the time, in ms, at which jobs get their stop request, of each node with a window that is to be empty."""
    query = (
        select(Cordon.node_id, func.min(Cordon.evacuate_at))
        .where(Cordon.evacuate_at.is_not(None), Cordon.released_at.is_(None), Cordon.until > now)
        .group_by(Cordon.node_id)
    )
    return {NodeId(node_id): to_ms(at) for node_id, at in session.execute(query) if node_id is not None}


def maintenance_ends(session: Session, now: datetime) -> dict[NodeId, int]:
    """Return the time, in ms, at which work on a node is over, where each of its cordons ends by itself."""
    is_ahead = (Cordon.node_id.is_not(None), Cordon.released_at.is_(None), Cordon.until > now)
    query = select(Cordon.node_id, func.coalesce(Cordon.starts_at, Cordon.created_at), Cordon.until)
    timed = session.execute(query.where(*is_ahead)).all()
    if not timed:
        return {}
    stands = (Cordon.until.is_(None), Cordon.released_at.is_(None))
    of_nodes = select(Cordon.node_id).where(Cordon.node_id.is_not(None), *stands)
    of_gpus = select(Gpu.node_id).join(Cordon, Cordon.gpu_uuid == Gpu.uuid).where(*stands)
    endless = {*session.scalars(of_nodes), *session.scalars(of_gpus)}
    return maintenance_ends_of(
        (NodeId(node_id), to_ms(from_at), to_ms(until))
        for node_id, from_at, until in timed
        if node_id is not None and node_id not in endless
    )


def windows_of(unit: UnitOfWork, node_ids: Collection[NodeId]) -> dict[NodeId, tuple[Window, ...]]:
    """Return windows that stand or stood within ``LOOKBACK``, by node; a released one ended at its release."""
    query = select(Cordon.node_id, Cordon.starts_at, Cordon.created_at, Cordon.until, Cordon.released_at).where(
        Cordon.node_id.in_(list(node_ids)), Cordon.reason_code == REASON_CODE, Cordon.until > unit.now - LOOKBACK
    )
    found: defaultdict[NodeId, list[Window]] = defaultdict(list)
    for node_id, starts_at, created_at, until, released_at in unit.session.execute(query):
        ends = [to_ms(end) for end in (until, released_at) if end is not None]
        if node_id is not None:
            found[node_id].append(Window(to_ms(starts_at or created_at), min(ends)))
    return {node_id: tuple(windows) for node_id, windows in found.items()}
