"""Routes of the ledger: GPU time by account and group, entries with their evidence, the state of hours, a recount."""

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Query, Request

from api.dependencies import dependencies_of
from api.lists import Cursor, ManyAPage, Moment, OfTenant, PageRequest, Racked, Within, span_of
from api.permissions import requires
from api.reading import PRINTABLE, STORABLE, Limit, reading
from api.views import time_of
from control.ledger import read, recounting
from control.ledger.entry_orders import ENTRY_SORTS
from control.ledger.read import GROUPED_BY, LedgerFilter, LedgerGroup, LedgerQuery, LedgerSums
from ledger.accounts import Account
from muster.documents import ledger as documents
from muster.domain.principals import Permission, Principal
from muster.domain.strict import Name
from muster.domain.times import to_time

router = APIRouter(tags=["ledger"])
Reader = Annotated[Principal, requires(Permission.JOB_READ)]
Text = Annotated[str | None, Query(min_length=1, max_length=512, pattern=STORABLE)]
Id = Annotated[str | None, Query(max_length=128, pattern=PRINTABLE)]
Groups = Annotated[list[LedgerGroup] | None, Query(max_length=4)]
Accounts = Annotated[list[Account] | None, Query(max_length=30)]
MS_AN_HOUR = 3_600_000


@dataclass(frozen=True, slots=True)
class Where:
    """The parameters that say which GPU time is meant."""

    account: Accounts = None
    cause: Text = None
    tenant_id: OfTenant = None
    tier: Annotated[Name | None, Query()] = None
    job_class: Text = None
    model: Text = None
    cohort_key: Text = None
    rack: Racked = None
    site: Text = None
    node_id: Id = None
    job_id: Id = None
    attempt_id: Id = None
    gpu: Id = None

    @property
    def filter(self) -> LedgerFilter:
        given = {name: getattr(self, name) for name in self.__slots__ if name not in {"account", "gpu"}}
        return LedgerFilter(sorted(self.account or []), **given, gpu_uuid=self.gpu)

    @property
    def conditions(self) -> dict[str, Any]:
        """What a cursor of a list is bound to."""
        given = {name: getattr(self, name) for name in self.__slots__ if name != "account"}
        return {**given, "account": sorted(self.account or [])}


@router.get("/ledger")
def sum_ledger(
    request: Request,
    principal: Reader,
    where: Annotated[Where, Depends()],
    group: Groups = None,
    since: Moment = None,
    until: Moment = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> documents.LedgerSums:
    """Return GPU time by ``group``, by account unless stated otherwise: the largest sums first, or in order of time.

    Each GPU-millisecond is in exactly one account. ``since`` and ``until`` are about the beginnings of hours; by
    default the last 24 hours that are over. A tenant sees the time of its own attempts.
    """
    groups = list(dict.fromkeys(group or [LedgerGroup.ACCOUNT]))
    query = LedgerQuery(groups, span_of(since, until), where.filter, limit)
    found = reading(dependencies_of(request).units, principal, read.READ, lambda unit: read.sums(unit, query))
    return _sums_view(found)


@router.get("/ledger/entries")
def list_ledger_entries(
    request: Request,
    principal: Reader,
    where: Annotated[Where, Depends()],
    within: Annotated[Within, Depends()],
    cursor: Cursor = None,
    limit: Limit = 50,
) -> documents.LedgerEntryPage:
    """Return entries, the newest hours first unless ``order`` says otherwise, with the evidence of each loss.

    ``since`` and ``until`` are about the beginnings of hours. A tenant sees the entries of its own attempts.
    """
    wanted, span = where.filter, within.span
    return PageRequest(request, principal, ENTRY_SORTS[within.order], cursor, limit).answer(
        read.READ,
        {**where.conditions, **within.conditions},
        lambda unit, part: read.list_entries(unit, wanted, span, part),
        _entry_view,
    )


@router.get("/ledger/hours")
def list_ledger_hours(
    request: Request,
    principal: Annotated[Principal, requires(Permission.METRICS_READ)],
    within: Annotated[Within, Depends()],
    cursor: Cursor = None,
    limit: ManyAPage = 50,
) -> documents.LedgerHourPage:
    """Return the hours, the newest first unless ``order`` says otherwise: is each closed, and what does it await."""
    return PageRequest(request, principal, read.HOUR_SORTS[within.order], cursor, limit).answer(
        read.READ,
        within.conditions,
        lambda unit, part: read.list_hours(unit, within.span, part),
        _hour_view,
    )


@router.get("/ledger/recount")
def recount_ledger(
    request: Request,
    principal: Annotated[Principal, requires(Permission.METRICS_READ)],
    since: Moment = None,
    until: Moment = None,
    gpu: Id = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 20,
) -> documents.LedgerRecount:
    """Recount hours of the ledger from events, and return where the two differ, with the events that decide.

    ``since`` and ``until`` are about the beginnings of hours, 31 days at most; by default the last 24 hours that are
    over. Hours whose events are no longer kept are refused.
    """
    span = span_of(since, until)
    found = reading(
        dependencies_of(request).units,
        principal,
        read.READ,
        lambda unit: recounting.recount(unit, span, gpu=gpu, limit=limit),
        is_one_snapshot=True,
    )
    return _recount_view(found)


def _recount_view(found: recounting.Recount) -> documents.LedgerRecount:
    return {
        "since": time_of(found.since),
        "until": time_of(found.until),
        "events_since": time_of(found.events_since),
        "num_events": found.num_events,
        "num_records": found.num_records,
        "num_gpus": found.num_gpus,
        "num_hours": found.num_hours,
        "num_open_hours": found.num_open_hours,
        "sums": [
            {
                "group": one.group,
                "accounts": dict(one.accounts),
                "stored_ms": one.stored_ms,
                "recounted_ms": one.recounted_ms,
            }
            for one in found.groups
        ],
        "num_differences": found.num_differences,
        "difference_ms": found.difference_ms,
        "differences": [_difference_view(one) for one in found.differences],
        "num_in_gaps": found.in_gaps,
        "in_gaps_ms": found.in_gaps_ms,
        "not_recounted": [
            {"cause": cause, "num_hours": num_hours, "num_ms": num_ms}
            for cause, (num_hours, num_ms) in found.not_recounted.items()
        ],
    }


def _difference_view(found: recounting.GpuDifference) -> documents.LedgerRecountDifference:
    one = found.difference
    return {
        "hour": time_of(found.hour),
        "gpu_uuid": one.gpu_uuid,
        "attempt_id": one.attempt_id or None,
        "group": one.group,
        "stored_ms": one.stored_ms,
        "recounted_ms": one.recounted_ms,
        "events": [
            {
                "event_id": event.event_id,
                "kind": event.kind,
                "at": time_of(to_time(event.at_ms)),
                "subject_id": event.subject_id,
            }
            for event in found.events
        ],
    }


def _sums_view(found: LedgerSums) -> documents.LedgerSums:
    none: dict[str, Any] = dict.fromkeys(GROUPED_BY.values())
    sums: list[Any] = []
    for each in found.sums:
        values = dict(each.values)
        if "begins_at" in values:
            values["begins_at"] = time_of(values["begins_at"])
        share = each.num_ms / found.num_ms if found.num_ms else 0.0
        sums.append({**none, **values, "num_ms": each.num_ms, "gpu_hours": each.num_ms / MS_AN_HOUR, "share": share})
    return {
        "since": time_of(found.since),
        "until": time_of(found.until),
        "num_hours": found.num_hours,
        "num_open_hours": found.num_open_hours,
        "num_ms": found.num_ms,
        "is_whole": found.is_whole,
        "sums": sums,
    }


def _hour_view(found: read.LedgerHourRecord) -> documents.LedgerHour:
    return {
        "hour": time_of(found.hour),
        "computed_at": time_of(found.computed_at),
        "closed_at": time_of(found.closed_at),
        "revision": found.revision,
        "num_gpus": found.num_gpus,
        "capacity_ms": found.capacity_ms,
        "unexplained_ms": found.unexplained_ms,
        "awaits": found.awaits,
        "gaps": found.gaps,
    }


def _entry_view(found: read.LedgerEntryRecord) -> documents.LedgerEntry:
    view: Any = {**msgspec.structs.asdict(found), "hour": time_of(found.hour)}
    entry: documents.LedgerEntry = view
    return entry
