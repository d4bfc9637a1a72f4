"""The fleet's time over a stretch, as the figures of ``ledger.measures`` need it: accounts, jobs, hosts, outages.

Accounts come from facts. Jobs and outages come from their own records, cut to the hours that the ledger has counted.
Hosts stand in entries alone, so they are of some hours, spread evenly over the stretch: a month of a large fleet has
millions of entries.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Text, bindparam, select, text
from sqlalchemy.dialects.postgresql import ARRAY

from control.core.paging import Span
from control.core.unit_of_work import UnitOfWork
from control.ledger import read as ledger
from control.ledger.read import HOUR, LedgerFilter, LedgerGroup, LedgerQuery, LedgerSums
from ledger.accounts import Account
from ledger.measures import IDLE, WHILE_WAITING, JobTime, Outage, PlaceTime, Times, Window
from muster.db.models import LedgerHour
from muster.domain.principals import Permission
from muster.domain.times import to_ms

SAMPLED_HOURS: Final = 11
"""Hours whose hosts are read. It is prime, so that in many days the hours are of all times of the day."""
_MOST_SUMS: Final = 100_000
_RUN_MS: Final = text("""
    SELECT coalesce(sum(size.num_gpus * extract(epoch FROM
        least(coalesce(j.finished_at, :until), :until) - greatest(run.began_at, :since)) * 1000), 0)::bigint
    FROM (
        SELECT DISTINCT job_id FROM attempts
        WHERE placed_at < :until AND running_at < :until AND (ended_at IS NULL OR ended_at > :since)
    ) AS own
    JOIN jobs AS j ON j.id = own.job_id
    CROSS JOIN LATERAL (SELECT min(running_at) AS began_at FROM attempts WHERE job_id = own.job_id) AS run
    CROSS JOIN LATERAL (
        SELECT coalesce(l.num_gpus, (SELECT count(*) FROM allocation_gpus WHERE allocation_id = l.id)) AS num_gpus
        FROM attempts AS a JOIN allocations AS l ON l.attempt_id = a.id
        WHERE a.job_id = own.job_id AND a.placed_at < :until ORDER BY a.number DESC LIMIT 1
    ) AS size
    WHERE run.began_at < least(coalesce(j.finished_at, :until), :until)
        AND coalesce(j.finished_at, :until) > :since
""")
_PLACES: Final = text("""
    SELECT rack, hour, coalesce(sum(used_ms), 0)::bigint, coalesce(sum(idle_ms), 0)::bigint,
        coalesce(sum(waiting_ms), 0)::bigint
    FROM (
        SELECT rack, hour, sum(num_ms) FILTER (WHERE attempt_id IS NOT NULL) AS used_ms,
            sum(num_ms) FILTER (WHERE attempt_id IS NULL AND account = ANY(:idle)) AS idle_ms,
            sum(num_ms) FILTER (WHERE attempt_id IS NULL AND account = ANY(:waiting)) AS waiting_ms
        FROM ledger_entries WHERE hour = ANY(:hours) GROUP BY hour, node_id, rack
    ) AS host
    GROUP BY rack, hour, coalesce(used_ms, 0) > 0
""").bindparams(bindparam("idle", type_=ARRAY(Text)), bindparam("waiting", type_=ARRAY(Text)))
_OUTAGES: Final = text("""
    SELECT max(out_ms) FILTER (WHERE is_back), bool_and(is_back) FROM (
        SELECT g.node_id, moved.at, back.at IS NOT NULL AS is_back,
            (extract(epoch FROM back.at - moved.at) * 1000)::bigint AS out_ms
        FROM gpu_standing_changes AS moved JOIN gpus AS g ON g.uuid = moved.gpu_uuid
        LEFT JOIN LATERAL (
            SELECT at FROM gpu_standing_changes
            WHERE gpu_uuid = moved.gpu_uuid AND id > moved.id AND target = ANY(:in_service) ORDER BY id LIMIT 1
        ) AS back ON true
        WHERE moved.target = 'QUARANTINED' AND moved.at >= :since AND moved.at < :until
            AND moved.origin = ANY(:in_service) AND moved.move_reason IS DISTINCT FROM 'taken_out'
    ) AS gpu GROUP BY node_id, at
    UNION ALL
    SELECT (extract(epoch FROM back.at - lost.at) * 1000)::bigint, back.at IS NOT NULL
    FROM node_contact_changes AS lost
    LEFT JOIN LATERAL (
        SELECT at FROM node_contact_changes
        WHERE node_id = lost.node_id AND at > lost.at AND contact = 'LIVE' ORDER BY at LIMIT 1
    ) AS back ON true
    WHERE lost.contact = 'LOST' AND lost.at >= :since AND lost.at < :until AND EXISTS (
        SELECT FROM node_contact_changes WHERE node_id = lost.node_id AND (at, id) < (lost.at, lost.id)
    )
""")
_GIVES_WORK: Final = ["HEALTHY", "PROBATION", "SUSPECT"]


@dataclass(frozen=True, slots=True)
class FleetTime:
    """``sums``: by account, tenant, tier and model. ``num_sampled``: the hours whose hosts were read."""

    window: Window
    sums: LedgerSums
    num_sampled: int


def fleet_time(unit: UnitOfWork, span: Span) -> FleetTime:
    """Return the time of the whole fleet over the hours that began in the span."""
    unit.principal.require(Permission.METRICS_READ)
    groups = (LedgerGroup.ACCOUNT, LedgerGroup.TENANT, LedgerGroup.TIER, LedgerGroup.MODEL)
    found = ledger.sums(unit, LedgerQuery(groups, span, LedgerFilter(), _MOST_SUMS))
    times = times_in(found)
    hours = _counted_hours(unit, found)
    if not hours:
        return FleetTime(Window(times), found, 0)
    counted = {"since": hours[0], "until": hours[-1] + HOUR}
    run_ms = int(unit.session.execute(_RUN_MS, counted).scalar_one())
    jobs = (JobTime(1, times.of_attempts.get(Account.PRODUCTIVE, 0), run_ms),) if run_ms else ()
    sampled = hours[:: -(-len(hours) // SAMPLED_HOURS)]
    return FleetTime(Window(times, jobs, _places(unit, sampled), _outages(unit, counted)), found, len(sampled))


def times_in(found: LedgerSums) -> Times:
    """Return the time by account of sums that are grouped by account and tenant: only attempts have a tenant."""
    of_attempts: dict[Account, int] = {}
    others: dict[Account, int] = {}
    for each in found.sums:
        own, account = of_attempts if each.values["tenant_id"] else others, Account(each.values["account"])
        own[account] = own.get(account, 0) + each.num_ms
    return Times(of_attempts, others)


def _counted_hours(unit: UnitOfWork, found: LedgerSums) -> Sequence[datetime]:
    within = LedgerHour.hour >= found.since, LedgerHour.hour < found.until, LedgerHour.num_gpus > 0
    return unit.session.scalars(select(LedgerHour.hour).where(*within).order_by(LedgerHour.hour)).all()


def _places(unit: UnitOfWork, hours: Sequence[datetime]) -> tuple[PlaceTime, ...]:
    """Return the hosts of these hours, added up by rack, hour, and whether an attempt used one of their GPUs."""
    given = {"hours": list(hours), "idle": [str(one) for one in IDLE], "waiting": [str(one) for one in WHILE_WAITING]}
    rows = unit.session.execute(_PLACES, given)
    return tuple(PlaceTime("", rack, to_ms(hour), *own) for rack, hour, *own in rows)


def _outages(unit: UnitOfWork, counted: dict[str, Any]) -> tuple[Outage, ...]:
    """Return what left service by a fault: GPUs of one host that were quarantined at once, and hosts that were lost.

    Left out are GPUs that a person took out, and hosts that were enrolled and not live yet.
    """
    rows = unit.session.execute(_OUTAGES, {**counted, "in_service": _GIVES_WORK})
    return tuple(Outage(out_ms if is_back else None) for out_ms, is_back in rows)
