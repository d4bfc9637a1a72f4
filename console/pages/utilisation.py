"""Page of utilisation: where GPU time went, by account and group, and what explains the newest losses."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import parse_qsl, urlencode

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from api.dependencies import dependencies_of
from api.reading import reading
from console.annotations import marks_in
from console.measure_tiles import TileGroup
from console.pages.figures import csv_answer
from console.paging import page_of, place_in
from console.ranges import Range, Shown, Stretch
from console.rendering import pages_of
from console.session import Viewer, sees
from console.tables import Order, Table, table_named
from console.tables import Shown as Page
from console.time_tiles import time_group
from console.use_advice import ADVICE, advice_about
from console.utilisation_charts import AccountTime, by_name, chart_of, step_of, times_next_to
from console.utilisation_tables import accounts_table, change_words, entries_table, groups_table
from control.core.paging import Part, Sort
from control.core.unit_of_work import UnitOfWork
from control.ledger import read as ledger
from control.ledger.entry_orders import entry_sort
from control.ledger.fleet_time import fleet_time
from control.ledger.low_use import EXAMINED, LowUse, little_used
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
ENTRIES_WRITTEN: Final = 20_000
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


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of the page with their rows; of the entries one page, and one more row where there is another."""

    accounts: Table[AccountTime]
    account_rows: list[AccountTime]
    groups: Table[AccountTime]
    group_rows: list[AccountTime]
    entries: Table[LedgerEntryRecord]
    entry_rows: list[LedgerEntryRecord]
    uses: list[LowUse]


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
        return {
            "found": found,
            "tables": _tables(unit, chosen, found.sums, part),
            "tiles": _time_tiles(unit, chosen),
        }

    read_now = _reading(request, viewer, read)
    tables: Tables = read_now["tables"]
    entries = page_of(
        secret_key,
        filters,
        tables.entry_rows,
        size=LOSSES_SHOWN,
        path="/console/utilisation",
        place=entry_order.position_of,
    )
    return pages_of(request).page(
        request,
        "utilisation.html",
        viewer,
        place="utilisation",
        chosen=chosen,
        groupings=list(By),
        change_words=change_words,
        is_of_fleet=viewer.principal.sees_all_tenants,
        accounts=tables.accounts.shown(tables.account_rows, order),
        groups=tables.groups.shown(tables.group_rows, order),
        entries=Page(tables.entries, tables.entries.order_in(order), entries.items, len(entries.items)),
        older=entries.older,
        advice=ADVICE.shown(tables.uses, order),
        advice_about=advice_about,
        examined=EXAMINED,
        **read_now,
    )


@router.get("/utilisation.csv")
def utilisation_csv(
    request: Request,
    viewer: Reader,
    chosen: Chosen,
    order: Ordered,
    table: Annotated[str, Query(max_length=20)] = "accounts",
) -> Response:
    """Return one table of the page as CSV, in the order in which it is shown."""
    _require(order)
    part = Part(ENTRIES_WRITTEN if table == "entries" else 1, sort=_entry_order(order))

    def read(unit: UnitOfWork) -> Tables:
        found = chosen.sums(unit, chosen.stretch(unit.now), LedgerGroup.ACCOUNT)
        return _tables(unit, chosen, found.sums, part)

    found = _reading(request, viewer, read)
    written = {
        "accounts": lambda: found.accounts.csv(found.account_rows, order),
        "groups": lambda: found.groups.csv(found.group_rows, order),
        "entries": lambda: "".join(found.entries.lines(found.entry_rows)),
        "advice": lambda: ADVICE.csv(found.uses, order),
    }
    return csv_answer(f"utilisation-{table}", table_named(table, written)())


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
    return reading(dependencies_of(request).units, viewer.principal, ledger.READ, work, is_one_snapshot=True)


def _require(order: Order) -> None:
    """Raise ``ValidationFailedError`` where a column is asked for that no table of the page has."""
    sums = accounts_table(is_compared=True), groups_table("", {}, is_compared=True)
    order.require((*sums, ADVICE, entries_table({})))


def _entry_order(order: Order) -> Sort:
    by = entries_table({}).order_in(order)
    return entry_sort(by.removeprefix("-"), is_descending=by.startswith("-"))


def _tables(unit: UnitOfWork, chosen: UtilisationQuery, sums: Sequence[LedgerSum], part: Part) -> Tables:
    shown = chosen.stretch(unit.now)
    earlier = shown.before if chosen.compare else None
    group = LedgerGroup(chosen.by)

    def before(group: LedgerGroup) -> dict[str, int] | None:
        return None if earlier is None else by_name(chosen.sums(unit, earlier, group).sums, GROUPED_BY[group])

    groups = by_name(chosen.sums(unit, shown, group).sums, GROUPED_BY[group])
    names = tenant_names(unit.session, set(groups)) if chosen.by is By.TENANT else {}
    entries = list(ledger.list_entries(unit, LedgerFilter(chosen.accounts, job_id=chosen.job), shown.span, part))
    jobs = job_names(unit.session, {each.job_id for each in entries if each.job_id})
    return Tables(
        accounts_table(is_compared=chosen.compare),
        times_next_to(by_name(sums, "account"), before(LedgerGroup.ACCOUNT)),
        groups_table(chosen.by.value, names, is_compared=chosen.compare),
        times_next_to(groups, before(group)),
        entries_table(jobs),
        entries,
        little_used(unit, chosen.job),
    )


def _time_tiles(unit: UnitOfWork, chosen: UtilisationQuery) -> TileGroup | None:
    """Return the figures over the time of the whole fleet; None for one job, and where the reader may not see it."""
    if chosen.job is not None or not unit.principal.may(Permission.METRICS_READ):
        return None
    shown = chosen.stretch(unit.now)
    link = f"/console/utilisation?{chosen.address()}#accounts-title"
    return time_group(fleet_time(unit, shown.span), fleet_time(unit, shown.before.span), link)
