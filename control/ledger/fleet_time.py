"""The fleet's time over a stretch, as the figures of ``ledger.measures`` need it: accounts, jobs, hosts, outages.

Accounts come from facts. Jobs and hosts come from what is stored with each hour (``measuring``). Outages come from
their own records.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sqlalchemy import BigInteger, cast, func, select, text

from control.core.paging import Span
from control.core.unit_of_work import UnitOfWork
from control.ledger import read as ledger
from control.ledger.measuring import MEASURED
from control.ledger.read import LedgerGroup, LedgerQuery, LedgerSums
from ledger.accounts import Account
from ledger.measures import IdleTime, JobTime, Outage, Times, Window
from muster.db.models import LedgerHour
from muster.domain.principals import Permission

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
    """``sums``: by account, tenant, tier and model. ``num_measured``: of its hours, jobs and hosts are known."""

    window: Window
    sums: LedgerSums
    num_measured: int


def fleet_time(unit: UnitOfWork, span: Span) -> FleetTime:
    """Return the time of the whole fleet over the hours that began in the span."""
    unit.principal.require(Permission.METRICS_READ)
    groups = (LedgerGroup.ACCOUNT, LedgerGroup.TENANT, LedgerGroup.TIER, LedgerGroup.MODEL)
    found = ledger.sums(unit, LedgerQuery(groups, span, limit=None))
    times = times_in(found)
    if not found.num_hours:
        return FleetTime(Window(times), found, 0)
    num_measured, sums = _measured(unit, found)
    jobs = JobTime(sums["productive_ms"], sums["run_ms"])
    return FleetTime(Window(times, jobs, _idle(sums), _outages(unit, found)), found, num_measured)


def times_in(found: LedgerSums) -> Times:
    """Return the time by account of sums that are grouped by account and tenant: only attempts have a tenant."""
    of_attempts: dict[Account, int] = {}
    others: dict[Account, int] = {}
    for each in found.sums:
        own, account = of_attempts if each.values["tenant_id"] else others, Account(each.values["account"])
        own[account] = own.get(account, 0) + each.num_ms
    return Times(of_attempts, others)


def _measured(unit: UnitOfWork, found: LedgerSums) -> tuple[int, dict[str, int]]:
    """Return of how many hours the sums are, and the sums by their names."""
    within = LedgerHour.hour >= found.since, LedgerHour.hour < found.until, LedgerHour.num_gpus > 0
    columns = [func.sum(cast(LedgerHour.measured[name].astext, BigInteger)) for name in MEASURED]
    num_hours, *sums = unit.session.execute(select(func.count(LedgerHour.measured), *columns).where(*within)).one()
    return num_hours, {name: int(own or 0) for name, own in zip(MEASURED, sums, strict=True)}


def _idle(sums: Mapping[str, int]) -> IdleTime:
    return IdleTime(
        sums["idle_ms"],
        sums["idle_on_used_ms"],
        sums["idle_in_used_racks_ms"],
        sums["waiting_ms"],
        sums["waiting_on_used_ms"],
    )


def _outages(unit: UnitOfWork, found: LedgerSums) -> tuple[Outage, ...]:
    """Return what left service by a fault: GPUs of one host that were quarantined at once, and hosts that were lost.

    Left out are GPUs that a person took out, and hosts that were enrolled and not live yet.
    """
    rows = unit.session.execute(_OUTAGES, {"since": found.since, "until": found.until, "in_service": _GIVES_WORK})
    return tuple(Outage(out_ms if is_back else None) for out_ms, is_back in rows)
