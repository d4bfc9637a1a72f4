"""Reading of facts: from the figure store, whose sketches are merged, and from the ledger."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import Row, func, select, text
from sqlalchemy.orm import Session

from ledger.accounts import OF_ATTEMPTS, Account
from ledger.figures.definitions import Figure, Sum
from ledger.figures.faults import Fault, causes_of
from ledger.figures.sketch import Sketch
from muster.db.models import LedgerFact
from muster.domain.ids import TenantId

_MS_A_HOUR: Final = 3_600_000
_COLUMN_OF_GROUP: Final = {
    "none": "''",
    "tenant": "f.tenant_id",
    "tier": "f.tier",
    "class": "f.job_class",
    "site": "f.site",
}
_FACTS: Final = """
    WITH days AS (
        SELECT DISTINCT begins_at FROM figure_facts
        WHERE :by_day AND span_s = 86400 AND figure = :figure AND begins_at >= :since AND begins_at < :until
    ),
    facts AS (
        SELECT {group} AS grouped, part, date_trunc(:step, begins_at, 'UTC') AS begins, num, total, least, most,
            buckets, counts
        FROM figure_facts f
        WHERE figure = :figure AND begins_at >= :since AND begins_at < :until
            AND (CAST(:tenant_id AS text) IS NULL OR tenant_id = :tenant_id)
            AND CASE span_s WHEN 86400 THEN :by_day
                ELSE date_trunc('day', begins_at, 'UTC') NOT IN (SELECT begins_at FROM days) END
    ),
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


def of_store(
    session: Session,
    figure: Figure,
    since: datetime,
    until: datetime,
    *,
    step: str,
    by: str,
    tenant_id: TenantId | None,
) -> Iterator[Stored]:
    """Yield facts of the figure store. A day that is summed stands for its hours."""
    given = {
        "figure": figure.stored_as,
        "since": since,
        "until": until,
        "step": step,
        "by_day": step == "day",
        "tenant_id": tenant_id,
    }
    for row in session.execute(text(_FACTS.format(group=_COLUMN_OF_GROUP[by])), given):
        yield Stored(row.grouped, row.begins, row.part, Sum(row.num, row.total, _sketch(row)))


def of_ledger(
    session: Session,
    figure: Figure,
    since: datetime,
    until: datetime,
    *,
    step: str,
    by: str,
    tenant_id: TenantId | None,
) -> Iterator[Stored]:
    """Yield sums of the ledger's hours, in GPU-hours."""
    grouped = {
        "none": func.min(""),
        "tenant": LedgerFact.tenant_id,
        "tier": LedgerFact.tier,
        "class": LedgerFact.job_class,
        "site": LedgerFact.site,
    }[by]
    begins = func.date_trunc(step, LedgerFact.begins_at, "UTC")
    query = select(grouped, begins, LedgerFact.account, LedgerFact.cause, func.sum(LedgerFact.num_ms)).where(
        LedgerFact.span_s == 3600,
        LedgerFact.begins_at >= since,
        LedgerFact.begins_at < until,
        LedgerFact.account.in_(sorted(OF_ATTEMPTS)),
    )
    if tenant_id is not None:
        query = query.where(LedgerFact.tenant_id == tenant_id)
    keys = [begins, LedgerFact.account, LedgerFact.cause, *([] if by == "none" else [grouped])]
    sums: dict[tuple[str, datetime, str], float] = {}
    for group, at, account, cause, num_ms in session.execute(query.group_by(*keys)):
        key = (group, at, _part_of(Account(account), cause))
        sums[key] = sums.get(key, 0.0) + int(num_ms) / _MS_A_HOUR
    for (group, at, part), total in sums.items():
        if part in figure.parts:
            yield Stored(group, at, part, Sum(0, total))


def _part_of(account: Account, cause: str) -> str:
    known = _PART_OF_ACCOUNT.get(account)
    if known is not None:
        return known
    return "lost_infrastructure" if cause in _NOT_OWN else "lost_own"


def _sketch(row: Row[tuple[object, ...]]) -> Sketch:
    if row.buckets is None:
        return Sketch()
    return Sketch(tuple(row.buckets), tuple(row.counts), row.least, row.most)
