"""The stored ledger of a simulated month against the truth, by GPU and hour, and what its bills must be by the truth.

Inside of gap markers the truth is not asked for: there the stored time counts. So sums of whole months can be compared
to the millisecond and to the cent.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, Final, NamedTuple

from sqlalchemy import Engine, text

from ledger.accounts import Account
from muster.domain.states import Cause
from simulator.month.facts import job_id, number_of
from simulator.month.history import HOUR_MS, History
from simulator.month.reports import Reports
from simulator.month.truth import Cell, Truth

_ENTRIES: Final = text("SELECT hour, coalesce(attempt_id, '') AS attempt_id, account, gpus, gpu_ms FROM ledger_entries")
_FACTS: Final = text("""
SELECT count(*) FROM (
    SELECT hour, account, cause, coalesce(tenant_id, '') AS tenant_id, sum(num_ms) AS num_ms FROM ledger_entries
    GROUP BY 1, 2, 3, 4 HAVING sum(num_ms) <> 0
) AS entry FULL JOIN (
    SELECT begins_at, account, cause, tenant_id, sum(num_ms) AS num_ms FROM ledger_facts WHERE span_s = 3600
    GROUP BY 1, 2, 3, 4
) AS fact ON begins_at = hour AND fact.account = entry.account AND fact.cause = entry.cause
    AND fact.tenant_id = entry.tenant_id
WHERE fact.num_ms IS DISTINCT FROM entry.num_ms
""")
_DAYS: Final = text("""
SELECT count(*) FROM (
    SELECT date_trunc('day', begins_at, 'UTC') AS day, account, tenant_id, sum(num_ms) AS num_ms FROM ledger_facts
    WHERE span_s = 3600 GROUP BY 1, 2, 3
) AS own FULL JOIN (
    SELECT begins_at, account, tenant_id, sum(num_ms) AS num_ms FROM ledger_facts WHERE span_s = 86400 GROUP BY 1, 2, 3
) AS fact ON begins_at = day AND fact.account = own.account AND fact.tenant_id = own.tenant_id
WHERE fact.num_ms IS DISTINCT FROM own.num_ms
""")
_STATES: Final = text("""
SELECT count(*) AS hours, count(*) FILTER (WHERE closed_at IS NULL) AS open,
    coalesce(sum(unexplained_ms), 0)::bigint AS unexplained_ms, coalesce(sum(revision), 0)::bigint AS corrections,
    count(*) FILTER (WHERE gaps <> '{}') AS marked,
    (SELECT count(*) FROM (
        SELECT subject_id FROM events WHERE kind = 'ledger.hour_closed' GROUP BY 1 HAVING count(*) > 1
    ) AS twice) AS closed_twice
FROM ledger_hours WHERE hour < :until
""")
_MOST_FAULTS: Final = 20
CREDITED: Final = (Account.REPLAYED, Account.RECLAIM_LOST)
_UNPAID: Final = (Account.CLEANING, Account.NO_CONTACT)


class LineKey(NamedTuple):
    """A line of a bill. ``period``: the number of its price, from 0 on."""

    tenant_id: str
    job_id: str
    tier: str
    period: int
    account: Account


@dataclass(slots=True)
class Agreement:
    """``expected_ms``: by tenant and account. ``line_ms``: by line of a bill. ``state``: of the hours of the month."""

    num_cells: int = 0
    num_marked: int = 0
    num_different: int = 0
    num_counted_twice: int = 0
    num_facts_different: int = 0
    expected_ms: Counter[tuple[str, Account]] = field(default_factory=Counter)
    line_ms: Counter[LineKey] = field(default_factory=Counter)
    state: Mapping[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


def agreement_of(engine: Engine, reports: Reports, begin: datetime, changes: tuple[int, ...] = ()) -> Agreement:
    """Compare the hours of the month. ``changes``: hours from whose beginning on another price holds."""
    found = Agreement()
    stored = _stored(engine, begin)
    truth = Truth(reports)
    num_hours = reports.history.shape.num_hours
    for hour in range(num_hours):
        true = truth.cells(hour * HOUR_MS, (hour + 1) * HOUR_MS)
        _compare(found, reports, hour, stored.get(hour, Counter()), true)
        _expect(found, reports, hour, stored.get(hour, Counter()), true, sum(hour >= change for change in changes))
    with engine.connect() as connection:
        found.num_facts_different = sum(int(connection.scalar(query) or 0) for query in (_FACTS, _DAYS))
        until = begin + timedelta(hours=num_hours)
        found.state = dict(connection.execute(_STATES, {"until": until}).mappings().one())
    return found


def _compare(found: Agreement, reports: Reports, hour: int, stored: Counter[Cell], true: Mapping[Cell, int]) -> None:
    whole: Counter[int] = Counter()
    different: set[int] = set()
    for cell in stored.keys() | true.keys():
        whole[cell[0]] += stored[cell]
        if (cell[0], hour) not in reports.marked and stored[cell] != true.get(cell, 0):
            different.add(cell[0])
            if len(found.faults) < _MOST_FAULTS:
                found.faults.append(f"hour {hour}, {cell}: {stored[cell]} ms, truly {true.get(cell, 0)} ms")
    num_gpus = reports.history.shape.num_gpus
    found.num_cells += num_gpus
    found.num_marked += sum((gpu, hour) in reports.marked for gpu in range(num_gpus))
    found.num_different += len(different)
    found.num_counted_twice += sum(num_ms != HOUR_MS for num_ms in whole.values())


def _expect(
    found: Agreement, reports: Reports, hour: int, stored: Counter[Cell], true: Mapping[Cell, int], period: int
) -> None:
    """Add what the hour is in sums and bills: the truth, and inside of gap markers what is stored."""
    history = reports.history
    for cell in stored.keys() | true.keys():
        gpu, attempt_id, account = cell
        num_ms = stored[cell] if (gpu, hour) in reports.marked else true.get(cell, 0)
        number = int(attempt_id.split("_")[1]) if attempt_id else None
        job = None if number is None else history.jobs[number]
        found.expected_ms[job.tenant if job else "", account] += num_ms
        if job is not None and number is not None and account not in _UNPAID:
            found.line_ms[LineKey(job.tenant, job_id(number), job.tier, period, account)] += num_ms


def _stored(engine: Engine, begin: datetime) -> dict[int, Counter[Cell]]:
    found: dict[int, Counter[Cell]] = {}
    with engine.connect() as connection:
        for hour, attempt_id, account, gpus, gpu_ms in connection.execute(_ENTRIES):
            own = found.setdefault((hour - begin) // timedelta(hours=1), Counter())
            for uuid, num_ms in zip(gpus, gpu_ms, strict=True):
                own[number_of(uuid), attempt_id, Account(account)] += num_ms
    return found


def price_of(num_ms: int, price: Decimal) -> Decimal:
    """Return what so much time costs, in cents: computed apart from ``muster.domain.amounts``."""
    return (Decimal(num_ms) * price / HOUR_MS).quantize(Decimal("0.01"), ROUND_HALF_UP)


def expected_lines(found: Agreement, prices: Mapping[str, tuple[str, ...]]) -> dict[LineKey, tuple[Decimal, Decimal]]:
    """Return amount and credit of each line. ``prices``: by tier, one for each period."""
    lines = {}
    for key, num_ms in found.line_ms.items():
        if num_ms:
            amount = price_of(num_ms, Decimal(prices[key.tier][key.period]))
            lines[key] = amount, -amount if key.account in CREDITED else Decimal("0.00")
    return lines


def ends_of(history: History) -> Mapping[str, float]:
    """Return how the attempts ended, for the peers of a figure."""
    ends: Counter[Any] = Counter(one.cause for one in history.attempts)
    return {
        "attempts": float(len(history.attempts)),
        "reclaims": float(ends[Cause.RECLAIMED]),
        "node failures": float(len(history.outages)),
    }
