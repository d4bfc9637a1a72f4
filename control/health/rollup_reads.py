"""Roll-ups to read: all groups of a kind as of a time, and the past of groups."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec
from sqlalchemy import ColumnElement, Select, func, null, or_, select

from control.core.paging import Part, Span
from control.core.records import record_of
from control.core.unit_of_work import UnitOfWork, declare_action
from control.core.visibility import only_tenant_of
from control.health.rollup_orders import rollup_sort
from muster.db.models import HealthRollup, Node, RollupRound, Tenant
from muster.domain.errors import ForbiddenError, InvalidCursorError
from muster.domain.gpu.rollup_groups import GroupKind, RoundStep
from muster.domain.principals import Permission

READ: Final = declare_action("rollups.read")
_LONGER: Final = {
    RoundStep.FIVE_MINUTES: tuple(RoundStep),
    RoundStep.HOUR: (RoundStep.HOUR, RoundStep.DAY),
    RoundStep.DAY: (RoundStep.DAY,),
}


class HealthRollupRecord(msgspec.Struct, frozen=True):
    """One group in one round, as it is stored."""

    at: datetime
    kind: GroupKind
    key: str
    score_tenths: int
    mean_tenths: int
    worst: int
    p10: int
    num_nodes: int
    num_gpus: int
    num_healthy: int
    num_admitted: int
    num_in_use: int
    num_reserved: int
    num_free: int
    standings: dict[str, int]

    @property
    def num_out(self) -> int:
        """GPUs that are not in use and that no tier admits."""
        return self.num_gpus - self.num_in_use - self.num_reserved - self.num_free


@dataclass(frozen=True, slots=True)
class GroupRollup:
    """One group in one round. ``taken_at``: the instant that it is of. ``name``: of a node or a tenant, else its key.

    ``name`` None: the fleet, or GPUs without a rack or a site.
    """

    rollup: HealthRollupRecord
    taken_at: datetime
    name: str | None


@dataclass(frozen=True, slots=True)
class RollupFilter:
    """The groups that are wanted. ``keys``, a node's and a tenant's name too; empty: all of the kind.

    ``at``: as of this time; None: the newest. ``span``: instead, the rounds that began in it. ``step``: of these, the
    first of each such period alone.
    """

    kind: GroupKind
    keys: Sequence[str] = ()
    at: datetime | None = None
    span: Span | None = None
    step: RoundStep = RoundStep.FIVE_MINUTES


SORT: Final = rollup_sort(GroupKind.FLEET, "score", is_descending=False)
"""By time, and in a round the worst first."""


def list_rollups(unit: UnitOfWork, wanted: RollupFilter, part: Part) -> Sequence[GroupRollup]:
    """Return groups, the worst first unless ``part`` says otherwise; of several rounds the oldest round first.

    A tenant reads itself alone.

    Raises:
        ForbiddenError: a tenant asks for other groups than tenants.
        InvalidCursorError: the round of the page before is not kept any more.
    """
    conditions = _conditions(unit, wanted, part)
    found = unit.session.execute(part.of(_query(wanted.kind).where(*conditions), SORT))
    return [GroupRollup(record_of(row, HealthRollupRecord), taken_at, name) for row, taken_at, name in found]


def past_scores(
    unit: UnitOfWork, kind: GroupKind, keys: Sequence[str], span: Span, step: RoundStep
) -> dict[str, list[tuple[datetime, int]]]:
    """Return the instants and scores, in tenths, of each group by its key, the oldest round first."""
    past: dict[str, list[tuple[datetime, int]]] = {key: [] for key in keys}
    if keys:
        wanted = RollupFilter(kind, keys, span=span, step=step)
        columns = select(HealthRollup.key, RollupRound.taken_at, HealthRollup.score_tenths)
        query = columns.join(RollupRound, RollupRound.at == HealthRollup.at).order_by(HealthRollup.at)
        for key, taken_at, score in unit.session.execute(query.where(*_conditions(unit, wanted, Part(None)))):
            if key in past:  # a host may have the name of another one's id
                past[key].append((taken_at, score))
    return past


def _conditions(unit: UnitOfWork, wanted: RollupFilter, part: Part) -> list[ColumnElement[bool]]:
    unit.principal.require(Permission.JOB_READ)
    own = only_tenant_of(unit.principal)
    if own is not None and wanted.kind is not GroupKind.TENANT:
        raise ForbiddenError(f"a tenant reads roll-ups by {GroupKind.TENANT} alone, and there its own")
    conditions = [HealthRollup.kind == wanted.kind]
    if own is not None:
        conditions.append(HealthRollup.key == own)
    if wanted.keys:
        conditions.append(_is_named(wanted.kind, wanted.keys))
    if wanted.span is None:
        return [*conditions, HealthRollup.at == _round(unit, wanted, part)]
    return [*conditions, *wanted.span.conditions(HealthRollup.at), RollupRound.step.in_(_LONGER[wanted.step])]


def _query(kind: GroupKind) -> Select[*tuple[Any, ...]]:
    columns = HealthRollup, RollupRound.taken_at
    joined = RollupRound, RollupRound.at == HealthRollup.at
    if kind is GroupKind.NODE:
        return select(*columns, Node.name).join(*joined).outerjoin(Node, Node.id == HealthRollup.key)
    if kind is GroupKind.TENANT:
        return select(*columns, Tenant.name).join(*joined).outerjoin(Tenant, Tenant.id == HealthRollup.key)
    return select(*columns, func.nullif(HealthRollup.key, "")).join(*joined)


def _is_named(kind: GroupKind, keys: Sequence[str]) -> ColumnElement[bool]:
    by_key = HealthRollup.key.in_(keys)
    if kind is GroupKind.NODE:
        return or_(by_key, HealthRollup.key.in_(select(Node.id).where(Node.name.in_(keys))))
    if kind is GroupKind.TENANT:
        return or_(by_key, HealthRollup.key.in_(select(Tenant.id).where(Tenant.name.in_(keys))))
    return by_key


def _round(unit: UnitOfWork, wanted: RollupFilter, part: Part) -> datetime | ColumnElement[Any]:
    """Return the round of the page before, or the newest one as of the wanted time; NULL: there is none."""
    has_rows: list[ColumnElement[bool]] = [RollupRound.has_nodes.is_(True)] if wanted.kind is GroupKind.NODE else []
    if part.behind is not None:
        begun: datetime = (part.sort or SORT).values_in(part.behind)[0]
        if unit.session.scalar(select(RollupRound.at).where(RollupRound.at == begun, *has_rows)) is None:
            raise InvalidCursorError
        return begun
    if wanted.at is not None:
        has_rows.append(RollupRound.taken_at <= wanted.at)
    newest = unit.session.scalar(select(func.max(RollupRound.at)).where(*has_rows))
    return null() if newest is None else newest
