"""Reads of the ledger: sums of GPU time by groups, the entries themselves, and the state of each hour.

Sums come from facts where all that is asked for stands in facts: whole days in UTC by days, the rest by hours. Hosts,
jobs, attempts and GPUs stand in entries alone. A tenant reads the entries of its own attempts.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from operator import attrgetter
from typing import Any, Final

import msgspec
from sqlalchemy import ColumnElement, Select, SQLColumnExpression, any_, func, select, text

from control.core.paging import ALWAYS, NEVER, Part, SortKey, Span, TimeOrder, by_time
from control.core.records import records_of
from control.core.unit_of_work import UnitOfWork, declare_action
from control.core.visibility import visible_rows
from control.ledger.entry_orders import ENTRY_SORTS
from ledger.accounts import Account
from muster.db.base import UtcTimestamp
from muster.db.models import Gpu, LedgerEntry, LedgerFact, LedgerHour
from muster.db.queries.ledger_facts import DAY, HOUR, facts_within, next_begin
from muster.domain.errors import ValidationFailedError
from muster.domain.principals import Permission

READ: Final = declare_action("ledger.read")
LONGEST: Final = timedelta(days=31)  # of which entries are summed up; facts have no limit
HOUR_SORTS: Final = by_time(SortKey(LedgerHour.hour, attrgetter("hour"), datetime.fromisoformat))


class LedgerGroup(StrEnum):
    """What the time of one sum has in common."""

    ACCOUNT = "account"
    CAUSE = "cause"
    TENANT = "tenant"
    TIER = "tier"
    CLASS = "class"
    MODEL = "model"
    COHORT = "cohort"
    RACK = "rack"
    SITE = "site"
    HOUR = "hour"
    DAY = "day"
    NODE = "node"
    JOB = "job"
    ATTEMPT = "attempt"


GROUPED_BY: Final[Mapping[LedgerGroup, str]] = {
    LedgerGroup.ACCOUNT: "account",
    LedgerGroup.CAUSE: "cause",
    LedgerGroup.TENANT: "tenant_id",
    LedgerGroup.TIER: "tier",
    LedgerGroup.CLASS: "job_class",
    LedgerGroup.MODEL: "model",
    LedgerGroup.COHORT: "cohort_key",
    LedgerGroup.RACK: "rack",
    LedgerGroup.SITE: "site",
    LedgerGroup.HOUR: "begins_at",
    LedgerGroup.DAY: "begins_at",
    LedgerGroup.NODE: "node_id",
    LedgerGroup.JOB: "job_id",
    LedgerGroup.ATTEMPT: "attempt_id",
}
"""The field of a sum that names each group."""
_OF_ENTRIES: Final = frozenset({LedgerGroup.NODE, LedgerGroup.JOB, LedgerGroup.ATTEMPT})


@dataclass(frozen=True, slots=True)
class LedgerFilter:
    """Conditions on time of GPUs; None sets none. ``accounts``: any of them; empty: all."""

    accounts: Sequence[Account] = ()
    cause: str | None = None
    tenant_id: str | None = None
    tier: str | None = None
    job_class: str | None = None
    model: str | None = None
    cohort_key: str | None = None
    rack: str | None = None
    site: str | None = None
    node_id: str | None = None
    job_id: str | None = None
    attempt_id: str | None = None
    gpu_uuid: str | None = None

    @property
    def needs_entries(self) -> bool:
        return any((self.node_id, self.job_id, self.attempt_id, self.gpu_uuid))

    def conditions(self, rows: type[LedgerEntry] | type[LedgerFact]) -> Iterator[ColumnElement[bool]]:
        """Yield the conditions on rows of the table, but that on the GPU."""
        if self.accounts:
            yield rows.account.in_(self.accounts)
        for name in ("cause", "tenant_id", "tier", "job_class", "model", "cohort_key", "rack", "site"):
            if (wanted := getattr(self, name)) is not None:
                yield getattr(rows, name) == wanted
        if rows is LedgerEntry:
            for name in ("node_id", "job_id", "attempt_id"):
                if (wanted := getattr(self, name)) is not None:
                    yield getattr(rows, name) == wanted
            if self.gpu_uuid is not None:
                yield LedgerEntry.node_id == select(Gpu.node_id).where(Gpu.uuid == self.gpu_uuid).scalar_subquery()
                yield any_(LedgerEntry.gpus) == self.gpu_uuid


@dataclass(frozen=True, slots=True)
class LedgerQuery:
    """Sums of GPU time by ``groups``, over the hours that began in ``span``.

    ``limit``: the largest so many; None: all.
    """

    groups: Sequence[LedgerGroup] = (LedgerGroup.ACCOUNT,)
    span: Span = ALWAYS
    wanted: LedgerFilter = field(default_factory=LedgerFilter)
    limit: int | None = 1000


@dataclass(frozen=True, slots=True)
class LedgerSum:
    """Milliseconds of GPU time, and what they have in common, by the names in ``GROUPED_BY``."""

    values: Mapping[str, Any]
    num_ms: int


@dataclass(frozen=True, slots=True)
class LedgerSums:
    """``since`` to before ``until``: the hours that were summed up. ``num_open_hours``: of them may still change.

    ``num_ms``: of all sums. ``is_whole``: no sum was left out.
    """

    since: datetime
    until: datetime
    num_hours: int
    num_open_hours: int
    num_ms: int
    sums: Sequence[LedgerSum]
    is_whole: bool


class LedgerHourRecord(msgspec.Struct, frozen=True):
    """One hour. Its columns' meanings are in ``muster.db.models.ledger``."""

    hour: datetime
    computed_at: datetime
    closed_at: datetime | None
    revision: int
    num_gpus: int
    capacity_ms: int
    unexplained_ms: int
    awaits: int
    gaps: dict[str, Any]


class LedgerEntryRecord(msgspec.Struct, frozen=True):
    """One entry. Its columns' meanings are in ``muster.db.models.ledger``."""

    id: int
    hour: datetime
    revision: int
    node_id: str
    account: str
    cause: str
    num_ms: int
    gpus: list[str]
    gpu_ms: list[int]
    evidence: list[str]
    model: str
    cohort_key: str
    rack: str | None
    site: str | None
    attempt_id: str | None
    job_id: str | None
    tenant_id: str | None
    tier: str | None
    job_class: str | None


def list_hours(unit: UnitOfWork, span: Span, part: Part) -> Sequence[LedgerHourRecord]:
    """Return the hours that began in ``span``, the newest first unless ``part`` says otherwise."""
    unit.principal.require(Permission.METRICS_READ)
    query = select(LedgerHour).where(LedgerHour.num_gpus > 0, *span.conditions(LedgerHour.hour))
    return records_of(unit.session.scalars(part.of(query, HOUR_SORTS[TimeOrder.NEWEST])), LedgerHourRecord)


def list_entries(unit: UnitOfWork, wanted: LedgerFilter, span: Span, part: Part) -> Sequence[LedgerEntryRecord]:
    """Return entries of the hours that began in ``span``, with the evidence of each loss; a tenant sees its own."""
    unit.principal.require(Permission.JOB_READ)
    is_visible = visible_rows(unit.principal, LedgerEntry.tenant_id)
    query = select(LedgerEntry).where(is_visible, *wanted.conditions(LedgerEntry), *span.conditions(LedgerEntry.hour))
    return records_of(unit.session.scalars(part.of(query, ENTRY_SORTS[TimeOrder.NEWEST])), LedgerEntryRecord)


def sums(unit: UnitOfWork, query: LedgerQuery) -> LedgerSums:
    """Return the sums, the largest first, or in the order of time if they are by time; a tenant sees its own.

    Raises:
        ValidationFailedError: the time ends before it begins, or is too long for what only entries have.
    """
    unit.principal.require(Permission.JOB_READ)
    since, until = hours_in(query.span, unit.now)
    is_by_entry = query.wanted.needs_entries or not _OF_ENTRIES.isdisjoint(query.groups)
    if is_by_entry and until - since > LONGEST:
        words = f"sums by host, job, attempt or GPU are of {LONGEST.days} days at most"
        raise ValidationFailedError.at("since", "too_long", words)
    made = _by_entries if is_by_entry else _by_facts
    most = None if query.limit is None else query.limit + 1
    rows = unit.session.execute(made(unit, query, since, until).limit(most)).all()
    names = [GROUPED_BY[group] for group in query.groups]
    found = [LedgerSum(dict(zip(names, values, strict=True)), int(num_ms)) for *values, num_ms, _ in rows]
    num_hours, num_open = unit.session.execute(
        select(func.count(), func.count().filter(LedgerHour.closed_at.is_(None))).where(
            LedgerHour.hour >= since, LedgerHour.hour < until, LedgerHour.num_gpus > 0
        )
    ).one()
    total_ms = int(rows[0][-1]) if rows else 0
    return LedgerSums(
        since, until, num_hours, num_open, total_ms, found[: query.limit], most is None or len(found) < most
    )


def hours_in(span: Span, now: datetime) -> tuple[datetime, datetime]:
    """Return the whole hours that begin in the span; by default the hours of the last day that are over."""
    until = now.replace(minute=0, second=0, microsecond=0) if span.until is None else next_begin(span.until, HOUR)
    since = max(until, NEVER) - DAY if span.since is None else next_begin(span.since, HOUR)
    if until < since:
        raise ValidationFailedError.at("until", "before_since", "must not be before `since`")
    return since, until


def _by_facts(unit: UnitOfWork, query: LedgerQuery, since: datetime, until: datetime) -> Select[*tuple[Any, ...]]:
    columns = [_fact_column(group) for group in query.groups]
    is_within = facts_within(since, until, by_hour=LedgerGroup.HOUR in query.groups)
    num_ms = func.sum(LedgerFact.num_ms)
    is_visible = visible_rows(unit.principal, LedgerFact.tenant_id)
    wanted = is_within, is_visible, *query.wanted.conditions(LedgerFact)
    made = select(*columns, num_ms, func.sum(num_ms).over()).where(*wanted)
    return _ordered(made.group_by(*columns).having(num_ms != 0), query.groups, columns, num_ms)


def _by_entries(unit: UnitOfWork, query: LedgerQuery, since: datetime, until: datetime) -> Select[*tuple[Any, ...]]:
    columns = [_entry_column(group) for group in query.groups]
    own_ms: SQLColumnExpression[Any] = LedgerEntry.num_ms
    if query.wanted.gpu_uuid is not None:
        own_ms = LedgerEntry.gpu_ms[func.array_position(LedgerEntry.gpus, query.wanted.gpu_uuid)]
    num_ms = func.sum(own_ms)
    is_visible = visible_rows(unit.principal, LedgerEntry.tenant_id)
    within = LedgerEntry.hour >= since, LedgerEntry.hour < until
    wanted = *within, is_visible, *query.wanted.conditions(LedgerEntry)
    made = select(*columns, num_ms, func.sum(num_ms).over()).where(*wanted)
    return _ordered(made.group_by(*columns).having(num_ms != 0), query.groups, columns, num_ms)


def _ordered(
    made: Select[*tuple[Any, ...]],
    groups: Sequence[LedgerGroup],
    columns: Sequence[SQLColumnExpression[Any]],
    num_ms: SQLColumnExpression[Any],
) -> Select[*tuple[Any, ...]]:
    by_moment = [
        column for group, column in zip(groups, columns, strict=True) if group in {LedgerGroup.HOUR, LedgerGroup.DAY}
    ]
    return made.order_by(*by_moment, num_ms.desc(), *columns)


def _fact_column(group: LedgerGroup) -> SQLColumnExpression[Any]:
    if group is LedgerGroup.DAY:
        return func.date_trunc(text("'day'"), LedgerFact.begins_at, text("'UTC'"), type_=UtcTimestamp())
    column: SQLColumnExpression[Any] = getattr(LedgerFact, GROUPED_BY[group])
    return column


def _entry_column(group: LedgerGroup) -> SQLColumnExpression[Any]:
    if group in {LedgerGroup.DAY, LedgerGroup.HOUR}:
        return func.date_trunc(text(f"'{group}'"), LedgerEntry.hour, text("'UTC'"), type_=UtcTimestamp())
    column: SQLColumnExpression[Any] = getattr(LedgerEntry, GROUPED_BY[group])
    return column if group in {LedgerGroup.ACCOUNT, LedgerGroup.CAUSE} else func.coalesce(column, text("''"))
