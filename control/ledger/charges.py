"""Charges: entries of the ledger with the prices that held in their hours, and what of them is given back.

Each entry is of one hour and a card begins with an hour, so each has one price. Time since the last computed hour is
in no entry yet: ``running`` counts it from the attempts' own times, for budgets and for the cost of a job so far.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any, Final

from sqlalchemy import text
from sqlalchemy.orm import Session

from control.ledger.rates import active_rates
from ledger.accounts import CHARGED, Account
from ledger.bills import Line, LineKey, Sums, sums
from ledger.credits import FLEET_CAUSES, grounds_of
from ledger.figures.hours import hour_of
from muster.domain.rates import CreditedAccount, RateCards, Tariff

_AROUND: Final = timedelta(minutes=15)
"""A measurement this close to a verdict is about the same fault."""
_WHERE: Final = """
    e.hour >= :start AND e.hour < :end AND e.account = ANY(:accounts)
    AND (CAST(:tenants AS text[]) IS NULL OR e.tenant_id = ANY(:tenants))
    AND (CAST(:jobs AS text[]) IS NULL OR e.job_id = ANY(:jobs))
"""
_TIME: Final = text(f"""
    SELECT e.tenant_id, e.job_id, e.model, e.tier, e.account, width_bucket(e.hour, CAST(:changes AS timestamptz[])),
        sum(e.num_ms)::bigint, coalesce(sum(e.num_ms) FILTER (WHERE h.closed_at IS NULL), 0)::bigint
    FROM ledger_entries AS e JOIN ledger_hours AS h ON h.hour = e.hour
    WHERE {_WHERE} AND e.tenant_id IS NOT NULL
    GROUP BY 1, 2, 3, 4, 5, 6 HAVING sum(e.num_ms) <> 0 ORDER BY 1, 2, 3, 4, 6, 5
""")  # noqa: S608  # parts of this module
_EVIDENT: Final = text(f"""
    SELECT e.tenant_id, e.job_id, e.model, e.tier, e.account, width_bucket(e.hour, CAST(:changes AS timestamptz[])),
        e.cause, e.evidence, sum(e.num_ms)::bigint
    FROM ledger_entries AS e
    WHERE {_WHERE} AND e.tenant_id IS NOT NULL AND e.cause = ANY(:causes) AND cardinality(e.evidence) > 0
    GROUP BY 1, 2, 3, 4, 5, 6, 7, 8
""")  # noqa: S608  # parts of this module
_ATTEMPTS: Final = text(f"""
    SELECT DISTINCT e.tenant_id, e.job_id, e.model, e.tier, e.account,
        width_bucket(e.hour, CAST(:changes AS timestamptz[])), e.attempt_id
    FROM ledger_entries AS e
    WHERE {_WHERE} AND e.tenant_id IS NOT NULL AND e.attempt_id IS NOT NULL
""")  # noqa: S608  # parts of this module
_MEASURED: Final = text("""
    SELECT id FROM evidence
        WHERE id = ANY(:ids) AND trust = 'measured' AND severity > 0 AND dismissed_at IS NULL AND NOT is_suspended
    UNION SELECT id FROM reclaims WHERE id = ANY(:ids)
    UNION SELECT v.id FROM verdicts AS v JOIN evidence AS m
        ON (m.gpu_uuid = v.gpu OR m.gpu_uuid IS NULL AND m.node_id = v.node_id)
        AND m.trust = 'measured' AND m.severity > 0 AND m.dismissed_at IS NULL AND NOT m.is_suspended
        AND m.onset_at <= coalesce(v.ended_at, v.created_at) + :around AND m.last_seen_at >= v.created_at - :around
        WHERE v.id = ANY(:ids) AND v.state <> 'dismissed'
""")
_COUNTED_UNTIL: Final = text("""
    SELECT coalesce(
        (SELECT min(hour) FROM ledger_hours WHERE closed_at IS NULL AND capacity_ms = 0),
        (SELECT max(hour) + interval '1 hour' FROM ledger_hours)
    )
""")
_RUNNING: Final = text("""
    SELECT a.tenant_id, a.job_id, g.model, l.tier, round(sum(extract(epoch FROM
        least(coalesce(a.ended_at, :end), :end) - greatest(coalesce(a.charged_from, a.placed_at), :start)) * 1000
    ))::bigint
    FROM attempts AS a JOIN allocations AS l ON l.attempt_id = a.id
        JOIN allocation_gpus AS p ON p.allocation_id = l.id JOIN gpus AS g ON g.uuid = p.gpu_uuid
    WHERE coalesce(a.charged_from, a.placed_at) < :end AND (a.ended_at IS NULL OR a.ended_at > :start)
        AND greatest(coalesce(a.charged_from, a.placed_at), :start) < least(coalesce(a.ended_at, :end), :end)
        AND (CAST(:tenants AS text[]) IS NULL OR a.tenant_id = ANY(:tenants))
        AND (CAST(:jobs AS text[]) IS NULL OR a.job_id = ANY(:jobs))
    GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
""")


@dataclass(frozen=True, slots=True)
class Charges:
    """What was used from ``start`` to ``end``. ``rates``: None where no cards are set, and all is unpriced.

    ``counted_until``: the end of the last computed hour; None before the first. ``running``: time since then, as lines
    of the account `productive` whose use is not known yet; empty where the time is over and counted.
    """

    start: datetime
    end: datetime
    rates: RateCards | None
    lines: tuple[Line, ...]
    running: tuple[Line, ...]
    counted_until: datetime | None

    @property
    def decimals(self) -> int:
        return 2 if self.rates is None else self.rates.decimals

    @property
    def sums(self) -> Sums:
        """The sums of the counted hours."""
        return sums(self.lines, self.decimals)

    @property
    def spent(self) -> Decimal:
        """What is used up until now: counted hours after credits, and the running time."""
        return self.sums.due + sums(self.running, self.decimals).due

    @property
    def every_line(self) -> tuple[Line, ...]:
        """All lines: of counted hours and of the time since."""
        return (*self.lines, *self.running)

    def of_job(self, job_id: str, created_at: datetime) -> "Charges":
        """Return the charges of one job of several, from the hour in which it was created."""
        start = hour_of(created_at)
        lines, running = (_of_job(every, job_id, start) for every in (self.lines, self.running))
        return replace(self, start=start, lines=lines, running=running)


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose entries count; None sets no condition."""

    tenants: Sequence[str] | None = None
    job_ids: Sequence[str] | None = None

    @property
    def parameters(self) -> dict[str, Any]:
        named = {"tenants": self.tenants, "jobs": self.job_ids}
        return {name: None if ids is None else list(ids) for name, ids in named.items()}


def charges(session: Session, scope: Scope, start: datetime, end: datetime, *, now: datetime | None = None) -> Charges:
    """Return the charges of the hours from ``start`` to ``end``. ``now``: with the running time until then.

    With running time, hours after one that is not counted yet are part of that time, and not of the lines: two workers
    may finish hours in any order, and no time counts twice.
    """
    rates = active_rates(session)
    tariff = Tariff(() if rates is None else rates.cards)
    changes = tariff.changes(start, end)
    until = session.scalar(_COUNTED_UNTIL)
    counted_end = end if now is None else min(end, until or start)
    query = {**scope.parameters, "start": start, "end": counted_end, "changes": changes}
    credited = _credited(session, query, () if rates is None else rates.credited_accounts)
    begins, ends = [start, *changes], [*changes, end]
    rows = session.execute(_TIME, {**query, "accounts": [str(each) for each in CHARGED]})
    lines = []
    for tenant_id, job_id, model, tier, account, bucket, num_ms, provisional_ms in rows:
        key = LineKey(tenant_id, job_id or "", model, tier or "", begins[bucket], Account(account))
        price = tariff.price(model, tier, begins[bucket])
        credited_ms, grounds = credited.get(key, (0, frozenset()))
        lines.append(Line(key, price, num_ms, credited_ms, provisional_ms, ends[bucket], tuple(sorted(grounds))))
    running = () if now is None else _running(session, scope, tariff, max(start, until or start), min(end, now))
    return Charges(start, end, rates, tuple(lines), tuple(running), until)


def _of_job(lines: Sequence[Line], job_id: str, start: datetime) -> tuple[Line, ...]:
    own = (line for line in lines if line.key.job_id == job_id)
    return tuple(replace(line, key=line.key._replace(from_at=max(line.key.from_at, start))) for line in own)


def _credited(
    session: Session, query: dict[str, Any], accounts: Collection[CreditedAccount]
) -> dict[LineKey, tuple[int, frozenset[str]]]:
    """Return the milliseconds that are given back and the evidence of that, by line."""
    wanted = {"accounts": [str(each) for each in accounts], "causes": sorted(FLEET_CAUSES)}
    rows = session.execute(_EVIDENT, {**query, **wanted}).all()
    begins = [query["start"], *query["changes"]]
    measured = measured_among(session, {one for row in rows for one in row.evidence})
    found: dict[LineKey, tuple[int, frozenset[str]]] = {}
    for tenant_id, job_id, model, tier, name, bucket, cause, evidence, num_ms in rows:
        account = Account(name)
        grounds = grounds_of(account, cause, evidence, accounts=wanted["accounts"], measured=measured)
        if grounds:
            key = LineKey(tenant_id, job_id or "", model, tier or "", begins[bucket], account)
            credited_ms, known = found.get(key, (0, frozenset()))
            found[key] = credited_ms + num_ms, known.union(grounds)
    return found


def attempts_of_lines(session: Session, scope: Scope, found: Charges) -> dict[LineKey, list[str]]:
    """Return the attempts whose time is in each line, in the order of their ids."""
    tariff = Tariff(() if found.rates is None else found.rates.cards)
    changes = tariff.changes(found.start, found.end)
    query = {**scope.parameters, "start": found.start, "end": found.end, "changes": changes}
    rows = session.execute(_ATTEMPTS, {**query, "accounts": [str(each) for each in CHARGED]})
    begins = [found.start, *changes]
    by_line: dict[LineKey, list[str]] = {}
    for tenant_id, job_id, model, tier, account, bucket, attempt_id in rows:
        key = LineKey(tenant_id, job_id or "", model, tier or "", begins[bucket], Account(account))
        by_line.setdefault(key, []).append(attempt_id)
    return {key: sorted(attempts) for key, attempts in by_line.items()}


def measured_among(session: Session, ids: Collection[str]) -> set[str]:
    """Return the ids that rest on our own measurement: such evidence, verdicts that it confirms, and reclaims.

    Findings for information are none: a program causes them, as by an access outside of its memory.
    """
    if not ids:
        return set()
    return set(session.scalars(_MEASURED, {"ids": sorted(ids), "around": _AROUND}))


def _running(session: Session, scope: Scope, tariff: Tariff, since: datetime, until: datetime) -> Iterator[Line]:
    """Yield the time of attempts that no entry has yet, cut where prices change."""
    if since >= until:
        return
    cuts = [since, *tariff.changes(since, until), until]
    for begins, ends in pairwise(cuts):
        rows = session.execute(_RUNNING, {**scope.parameters, "start": begins, "end": ends})
        for tenant_id, job_id, model, tier, num_ms in rows:
            key = LineKey(tenant_id, job_id, model, tier, begins, Account.PRODUCTIVE)
            yield Line(key, tariff.price(model, tier, begins), num_ms, 0, num_ms, ends)
