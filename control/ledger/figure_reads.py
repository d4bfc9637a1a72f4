"""Reading of facts: from the figure store, whose sketches are merged, and from the ledger."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, Row, TextClause, func, select, text
from sqlalchemy.orm import Session

from ledger.accounts import OF_ATTEMPTS, Account
from ledger.figures.definitions import Figure, Sum
from ledger.figures.faults import Fault, causes_of
from ledger.figures.sketch import Sketch
from muster.db.models import LedgerFact
from muster.domain.amounts import MS_PER_HOUR
from muster.domain.ids import TenantId

_HOUR_S: Final = 3_600
_COLUMN_OF_GROUP: Final = {
    "none": "''",
    "tenant": "f.tenant_id",
    "tier": "f.tier",
    "class": "f.job_class",
    "site": "f.site",
}
_CHOSEN: Final = """
    WITH days AS (
        SELECT DISTINCT begins_at FROM figure_facts
        WHERE span_s = 86400 AND figure = :figure AND begins_at >= :since AND begins_at < :until
    ),
    facts AS (
        SELECT {group} AS grouped, part, {begins} AS begins, num, total, least, most, buckets, counts
        FROM figure_facts f
        WHERE figure = :figure AND begins_at >= :since AND begins_at < :until AND {conditions}
    )
"""
_BY_DAY: Final = "(span_s = 86400 OR date_trunc('day', begins_at, 'UTC') NOT IN (SELECT begins_at FROM days))"
_WEIGHTS: Final = """
    {chosen},
    parts AS (
        SELECT grouped, CASE sum(num) WHEN 0 THEN sum(total) ELSE sum(num) END AS weight FROM facts
        GROUP BY grouped, part
    )
    SELECT grouped, count(*) OVER () FROM parts GROUP BY grouped ORDER BY sum(weight) DESC, grouped LIMIT :most
"""
_FACTS: Final = """
    {chosen},
    spread AS (
        SELECT grouped, part, begins, bucket, sum(count) AS count
        FROM facts, unnest(buckets, counts) AS u (bucket, count)
        GROUP BY grouped, part, begins, bucket
    ),
    sketches AS (
        SELECT grouped, part, begins, array_agg(bucket ORDER BY bucket) AS buckets,
            array_agg(count::bigint ORDER BY bucket) AS counts
        FROM spread GROUP BY grouped, part, begins
    ),
    sums AS (
        SELECT grouped, part, begins, sum(num)::bigint AS num, sum(total) AS total, min(least) AS least,
            max(most) AS most
        FROM facts GROUP BY grouped, part, begins
    )
    SELECT sums.*, sketches.buckets, sketches.counts FROM sums LEFT JOIN sketches USING (grouped, part, begins)
"""
_SUMS: Final = """
    {chosen}
    SELECT grouped, part, begins, sum(num)::bigint AS num, sum(total) AS total, NULL::int[] AS buckets FROM facts
    GROUP BY grouped, part, begins
"""
"""As ``_FACTS``, without percentiles: the facts are read once and not kept."""
_OVERHEAD: Final = frozenset({Account.STARTING, Account.SAVING, Account.RESTORING, Account.CLEANING})
_NOT_OWN: Final = frozenset(map(str, causes_of(Fault.INFRASTRUCTURE, Fault.MOVED)))
_PART_OF_ACCOUNT: Final = {
    Account.PRODUCTIVE: "productive",
    Account.IDLE: "idle",
    Account.SLOWED: "slowed",
    Account.RECLAIM_LOST: "reclaim_lost",
    **dict.fromkeys(_OVERHEAD, "overhead"),
}


@dataclass(frozen=True, slots=True)
class Stored:
    """A part of a figure in one hour or day, of one group."""

    group: str
    begins_at: datetime
    part: str
    sum: Sum


@dataclass(frozen=True, slots=True)
class Extent:
    """Which facts are read. ``tenant_id``: None: of all tenants. ``groups``: None: all of them.

    ``is_whole``: as one sum that begins with the extent, and not by its steps. ``has_percentiles``: with sketches.
    """

    since: datetime
    until: datetime
    step: str
    by: str
    tenant_id: TenantId | None
    groups: Sequence[str] | None = None
    is_whole: bool = False
    has_percentiles: bool = True


class Store:
    """Facts of the figure store. A day that is summed stands for its hours."""

    def __init__(self, session: Session, figure: Figure) -> None:
        self._session = session
        self._figure = figure

    def groups(self, extent: Extent, most: int) -> tuple[list[str], int]:
        """Return the groups with the most observations, and how many groups there are."""
        return _counted(self._session.execute(self._text(_WEIGHTS, extent), {**self._given(extent), "most": most}))

    def read(self, extent: Extent) -> Iterator[Stored]:
        words = _FACTS if self._figure.spread and extent.has_percentiles else _SUMS
        for row in self._session.execute(self._text(words, extent), self._given(extent)):
            yield Stored(row.grouped, row.begins, row.part, Sum(row.num, row.total, _sketch(row)))

    def _text(self, words: str, extent: Extent) -> TextClause:
        group = _COLUMN_OF_GROUP[extent.by]
        begins = "CAST(:since AS timestamptz)" if extent.is_whole else "date_trunc(:step, begins_at, 'UTC')"
        # Conditions that do not hold are left out, so that a plan for any values is as good as one for these.
        conditions = [_BY_DAY if extent.step == "day" else "span_s = 3600"]
        conditions += [] if extent.tenant_id is None else ["tenant_id = :tenant_id"]
        conditions += [] if extent.groups is None else [f"{group} = ANY(:groups)"]
        chosen = _CHOSEN.format(group=group, begins=begins, conditions=" AND ".join(conditions))
        return text(words.format(chosen=chosen))

    def _given(self, extent: Extent) -> dict[str, Any]:
        given: dict[str, Any] = {"figure": self._figure.stored_as, "since": extent.since, "until": extent.until}
        given |= {} if extent.is_whole else {"step": extent.step}
        given |= {} if extent.tenant_id is None else {"tenant_id": extent.tenant_id}
        return given | ({} if extent.groups is None else {"groups": extent.groups})


class Accounts:
    """Sums of the ledger's hours, in GPU-hours."""

    def __init__(self, session: Session, figure: Figure) -> None:
        self._session = session
        self._figure = figure

    def groups(self, extent: Extent, most: int) -> tuple[list[str], int]:
        """Return the groups with the most time, and how many groups there are."""
        group = _ledger_group(extent.by)
        query = select(group, func.count().over()).where(*_of_ledger(extent)).group_by(group)
        return _counted(self._session.execute(query.order_by(func.sum(LedgerFact.num_ms).desc(), group).limit(most)))

    def read(self, extent: Extent) -> Iterator[Stored]:
        group = _ledger_group(extent.by)
        begins = func.date_trunc(extent.step, LedgerFact.begins_at, "UTC")
        query = select(group, begins, LedgerFact.account, LedgerFact.cause, func.sum(LedgerFact.num_ms))
        keys = [begins, LedgerFact.account, LedgerFact.cause, *([] if extent.by == "none" else [group])]
        sums: dict[tuple[str, datetime, str], float] = {}
        for name, at, account, cause, num_ms in self._session.execute(query.where(*_of_ledger(extent)).group_by(*keys)):
            key = (name, at, _part_of(Account(account), cause))
            sums[key] = sums.get(key, 0.0) + int(num_ms) / MS_PER_HOUR
        for (name, at, part), total in sums.items():
            if part in self._figure.parts:
                yield Stored(name, at, part, Sum(0, total))


def _counted(rows: Iterable[Any]) -> tuple[list[str], int]:
    found = [(group, num) for group, num in rows]
    return [group for group, _ in found], found[0][1] if found else 0


def _ledger_group(by: str) -> ColumnElement[Any]:
    return {
        "none": func.min(""),
        "tenant": LedgerFact.tenant_id.expression,
        "tier": LedgerFact.tier.expression,
        "class": LedgerFact.job_class.expression,
        "site": LedgerFact.site.expression,
    }[by]


def _of_ledger(extent: Extent) -> list[ColumnElement[bool]]:
    conditions = [
        LedgerFact.span_s == _HOUR_S,
        LedgerFact.begins_at >= extent.since,
        LedgerFact.begins_at < extent.until,
        LedgerFact.account.in_(sorted(OF_ATTEMPTS)),
    ]
    if extent.tenant_id is not None:
        conditions.append(LedgerFact.tenant_id == extent.tenant_id)
    if extent.groups is not None:
        conditions.append(_ledger_group(extent.by).in_(extent.groups))
    return conditions


def _part_of(account: Account, cause: str) -> str:
    known = _PART_OF_ACCOUNT.get(account)
    if known is not None:
        return known
    return "lost_infrastructure" if cause in _NOT_OWN else "lost_own"


def _sketch(row: Row[tuple[object, ...]]) -> Sketch:
    if row.buckets is None:
        return Sketch()
    return Sketch(tuple(row.buckets), tuple(row.counts), row.least, row.most)
