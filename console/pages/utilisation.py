"""Page of utilisation: where GPU time went, by account and group, and what explains the newest losses."""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import parse_qsl, urlencode

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from api.dependencies import dependencies_of
from console.annotations import marks_in
from console.measure_tiles import TileGroup
from console.paging import page_of, place_in
from console.ranges import Range, Shown, Stretch
from console.rendering import csv_answer, pages_of
from console.session import Viewer, read_at_once, sees
from console.tables import Order, Table, TablePage, table_named
from console.time_tiles import time_group
from console.use_advice import ADVICE, advice_about
from console.utilisation_charts import AccountTime, by_name, chart_of, step_of, times_next_to
from console.utilisation_tables import accounts_table, change_words, entries_table, groups_table
from control.core.paging import Part, Sort
from control.core.unit_of_work import UnitOfWork
from control.ledger import read as ledger
from control.ledger.entry_orders import entry_sort
from control.ledger.fleet_time import fleet_time
from control.ledger.low_use import EXAMINED, little_used
from control.ledger.read import (
    GROUPED_BY,
    LedgerEntryRecord,
    LedgerFilter,
    LedgerGroup,
    LedgerQuery,
    LedgerSum,
    LedgerSums,
)
from control.ledger.statements import job_names, tenant_names
from ledger.accounts import Account
from muster.domain.principals import Permission

router = APIRouter()
T = TypeVar("T")
LOSSES_SHOWN: Final = 20
ENTRIES_READ: Final = 5_000
SUMS_READ: Final = 20_000
LOSSES: Final = (Account.LOST, Account.REPLAYED, Account.RECLAIM_LOST, Account.SLOWED)
Reader = Annotated[Viewer, sees(Permission.JOB_READ)]


class By(StrEnum):
    TENANT = "tenant"
    TIER = "tier"
    CLASS = "class"
    MODEL = "model"
    RACK = "rack"
    SITE = "site"
    CAUSE = "cause"


@dataclass(frozen=True, slots=True)
class UtilisationQuery(Shown):
    """The stretch of time, and what groups have in common.

    ``job``, ``account``: of which entries are listed, as a line of a bill names them.
    """

    by: Annotated[By, Query()] = By.TENANT
    job: Annotated[str | None, Query(max_length=128, pattern="^job_[0-9a-z]+$")] = None
    account: Annotated[Account | None, Query()] = None

    @property
    def accounts(self) -> tuple[Account, ...]:
        return LOSSES if self.account is None else (self.account,)

    @property
    def ranges(self) -> list[Range]:
        """The usual stretches; of one job not the year, since entries are summed up over a month at most."""
        return [each for each in Range if self.job is None or each is not Range.YEAR]

    def address(self, *, by: By | None = None) -> str:
        """Return all parameters but the order. ``by``: in place of its own."""
        account = None if self.account is None else self.account.value
        given = {"by": (by or self.by).value, "job": self.job, "account": account}
        return f"{self.query()}&{urlencode({name: value for name, value in given.items() if value})}"

    def sums(self, unit: UnitOfWork, shown: Stretch, *groups: LedgerGroup, limit: int = SUMS_READ) -> LedgerSums:
        return ledger.sums(unit, LedgerQuery(groups, shown.span, LedgerFilter(job_id=self.job), limit))


Chosen = Annotated[UtilisationQuery, Depends()]
Ordered = Annotated[Order, Depends()]
Cursor = Annotated[str | None, Query(max_length=1024)]


@router.get("/utilisation")
def utilisation_page(
    request: Request, viewer: Reader, chosen: Chosen, order: Ordered, cursor: Cursor = None
) -> Response:
    """Show where GPU time went. A tenant sees the time of its own attempts."""
    secret_key = dependencies_of(request).secret_key
    _require(order)
    entry_order = _entry_order(order)
    filters = {**dict(parse_qsl(chosen.address())), "sort": order.sort}
    behind = place_in(secret_key, filters, cursor, length=len(entry_order.keys))
    part = Part(LOSSES_SHOWN + 1, behind, entry_order)

    def read(unit: UnitOfWork) -> dict[str, Any]:
        shown = chosen.stretch(unit.now)
        found = chosen.sums(unit, shown, LedgerGroup.ACCOUNT)
        entries, rows = _entries(unit, chosen, shown, part)
        page = page_of(
            secret_key,
            filters,
            rows,
            size=LOSSES_SHOWN,
            path="/console/utilisation",
            place=entry_order.position_of,
        )
        return {
            "found": found,
            "accounts": _shown(_accounts(unit, chosen, found), order),
            "groups": _shown(_groups(unit, chosen), order),
            "entries": TablePage(entries, entries.order_in(order), page.items, len(page.items)),
            "older": page.older,
            "advice": ADVICE.shown(little_used(unit, chosen.job), order),
            "tiles": _time_tiles(unit, chosen),
        }

    return pages_of(request).page(
        request,
        "utilisation.html",
        viewer,
        place="utilisation",
        chosen=chosen,
        groupings=list(By),
        change_words=change_words,
        is_of_fleet=viewer.principal.sees_all_tenants,
        advice_about=advice_about,
        examined=EXAMINED,
        **_reading(request, viewer, read),
    )


@router.get("/utilisation.csv")
def utilisation_csv(
    request: Request,
    viewer: Reader,
    chosen: Chosen,
    order: Ordered,
    table: Annotated[str, Query(max_length=20)] = "accounts",
) -> Response:
    """Return one table of the page as CSV, whole and in the order in which it is shown."""
    _require(order)
    known: dict[str, Callable[[UnitOfWork], tuple[Table[Any], Sequence[Any]]] | None] = {
        "accounts": lambda unit: _accounts(
            unit, chosen, chosen.sums(unit, chosen.stretch(unit.now), LedgerGroup.ACCOUNT)
        ),
        "groups": lambda unit: _groups(unit, chosen),
        "entries": None,
        "advice": lambda unit: (ADVICE, little_used(unit, chosen.job)),
    }
    read = table_named(table, known)
    if read is None:
        return csv_answer("utilisation-entries", _entry_lines(request, viewer, chosen, _entry_order(order)))
    own, rows = _reading(request, viewer, read)
    return csv_answer(f"utilisation-{table}", own.csv(rows, order))


@router.get("/utilisation.json")
def utilisation_charts(request: Request, viewer: Reader, chosen: Chosen) -> Response:
    """Return GPU-hours by account and hour or day, for the page's chart."""

    def read(unit: UnitOfWork) -> dict[str, Any]:
        shown = chosen.stretch(unit.now)

        def past(of: Stretch) -> list[LedgerSum]:
            return list(chosen.sums(unit, of, step_of(shown), LedgerGroup.ACCOUNT).sums)

        earlier = past(shown.before) if chosen.compare else None
        return chart_of(past(shown), shown, marks_in(unit, shown), earlier)

    return JSONResponse(_reading(request, viewer, read))


def _reading(request: Request, viewer: Viewer, work: Callable[[UnitOfWork], T]) -> T:
    return read_at_once(request, viewer, ledger.READ, work)


def _require(order: Order) -> None:
    """Raise ``ValidationFailedError`` where a column is asked for that no table of the page has."""
    sums = accounts_table(is_compared=True), groups_table("", {}, is_compared=True)
    order.require((*sums, ADVICE, entries_table({})))


def _entry_order(order: Order) -> Sort:
    by = entries_table({}).order_in(order)
    return entry_sort(by.removeprefix("-"), is_descending=by.startswith("-"))


def _times(unit: UnitOfWork, chosen: UtilisationQuery, group: LedgerGroup, found: LedgerSums) -> list[AccountTime]:
    """Return the time of each value of a group next to the time before. ``found``: the sums by it."""
    field, before = GROUPED_BY[group], None
    if chosen.compare:
        before = by_name(chosen.sums(unit, chosen.stretch(unit.now).before, group).sums, field)
    return times_next_to(by_name(found.sums, field), before)


def _accounts(
    unit: UnitOfWork, chosen: UtilisationQuery, found: LedgerSums
) -> tuple[Table[AccountTime], list[AccountTime]]:
    return accounts_table(is_compared=chosen.compare), _times(unit, chosen, LedgerGroup.ACCOUNT, found)


def _groups(unit: UnitOfWork, chosen: UtilisationQuery) -> tuple[Table[AccountTime], list[AccountTime]]:
    group = LedgerGroup(chosen.by)
    rows = _times(unit, chosen, group, chosen.sums(unit, chosen.stretch(unit.now), group))
    names = tenant_names(unit.session, {each.name for each in rows}) if chosen.by is By.TENANT else {}
    return groups_table(chosen.by.value, names, is_compared=chosen.compare), rows


def _entries(
    unit: UnitOfWork, chosen: UtilisationQuery, shown: Stretch, part: Part
) -> tuple[Table[LedgerEntryRecord], Sequence[LedgerEntryRecord]]:
    rows = ledger.list_entries(unit, LedgerFilter(chosen.accounts, job_id=chosen.job), shown.span, part)
    return entries_table(job_names(unit.session, {each.job_id for each in rows if each.job_id})), rows


def _entry_lines(request: Request, viewer: Viewer, chosen: UtilisationQuery, sort: Sort) -> Iterator[str]:
    """Yield the lines of CSV of all entries, which are read part by part: a year has more than memory should hold."""
    shown = _reading(request, viewer, lambda unit: chosen.stretch(unit.now))
    part: Part | None = Part(ENTRIES_READ, sort=sort)
    first = True
    while part is not None:
        table, rows = _reading(request, viewer, functools.partial(_entries, chosen=chosen, shown=shown, part=part))
        yield from islice(table.lines(rows), 0 if first else 1, None)
        first = False
        part = Part(ENTRIES_READ, sort.position_of(rows[-1]), sort) if len(rows) == ENTRIES_READ else None


def _shown(found: tuple[Table[T], Sequence[T]], order: Order) -> TablePage[T]:
    table, rows = found
    return table.shown(rows, order)


def _time_tiles(unit: UnitOfWork, chosen: UtilisationQuery) -> TileGroup | None:
    """Return the figures over the time of the whole fleet; None for one job, and where the reader may not see it."""
    if chosen.job is not None or not unit.principal.may(Permission.METRICS_READ):
        return None
    shown = chosen.stretch(unit.now)
    link = f"/console/utilisation?{chosen.address()}#accounts-title"
    return time_group(fleet_time(unit, shown.span), fleet_time(unit, shown.before.span), link)
