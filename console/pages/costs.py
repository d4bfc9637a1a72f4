"""Page of costs: this month and its budgets, what was due over a stretch by group and job, waste, and prices."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from console.cost_tables import (
    OF_TENANTS,
    PRICES,
    VERSIONS,
    By,
    Cost,
    Names,
    budgets_table,
    change_words,
    costs_by,
    credits_of,
    credits_table,
    groups_table,
    idle_costs,
    idle_table,
    jobs_table,
    state_of,
)
from console.figure_charts import change
from console.ranges import Range, Shown, Stretch
from console.rendering import csv_answer, pages_of
from console.session import Viewer, read_at_once, sees
from console.tables import Order, Table, table_named
from control.core.paging import Part
from control.core.unit_of_work import UnitOfWork
from control.core.versions import VersionRecord
from control.ledger import budgets, rates, statements
from control.ledger.job_costs import costs_of_jobs
from control.ledger.job_groups import job_groups
from control.ledger.read import LONGEST, hours_in
from control.ledger.spending import payers
from control.ledger.statements import Statement
from control.tenants.read import list_tenants
from ledger.bills import forecast
from muster.domain.budgets import BudgetAction, month_of
from muster.domain.errors import ValidationFailedError
from muster.domain.ids import JobId
from muster.domain.principals import Permission

router = APIRouter()
BUDGETS_SHOWN: Final = 200
VERSIONS_SHOWN: Final = 100
TENANTS_OFFERED: Final = 500
Reader = Annotated[Viewer, sees(Permission.TENANT_READ)]


@dataclass(frozen=True, slots=True)
class CostQuery(Shown):
    """The stretch of time, 30 days by default, and what costs are grouped by. ``prices``: a version of the cards."""

    range: Annotated[Range, Query()] = Range.MONTH
    by: Annotated[By | None, Query()] = None
    prices: Annotated[int | None, Query(ge=1, le=2**31 - 1)] = None

    @property
    def ranges(self) -> list[Range]:
        return [each for each in Range if each.length <= LONGEST]

    def hours(self, now: datetime) -> Stretch:
        """Return the whole hours of the stretch. Raises ``ValidationFailedError``: they are more than a month."""
        found = self.stretch(now)
        if found.length > LONGEST:
            words = f"costs are shown of {LONGEST.days} days at most; statements have each month"
            raise ValidationFailedError.at("since", "too_long", words)
        return Stretch(*hours_in(found.span, now))

    def address(self, *, by: By | None = None) -> str:
        """Return all parameters but the order. ``by``: in place of its own."""
        group = by or self.by
        given = {"by": group and group.value, "prices": self.prices}
        return "&".join([self.query(), urlencode({name: value for name, value in given.items() if value})]).strip("&")


Chosen = Annotated[CostQuery, Depends()]
Ordered = Annotated[Order, Depends()]


@dataclass(frozen=True, slots=True)
class Costs:
    """All that the page's tables are made of. ``names``: of tenants by id. ``prices``: the version that is shown."""

    now: Statement
    before: Statement | None
    groups: list[Cost]
    jobs: list[Cost]
    budgets: list[budgets.Standing]
    names: dict[str, str]
    prices: VersionRecord | None
    versions: list[VersionRecord]

    @property
    def job_names(self) -> dict[str, str]:
        """The names of the jobs of both periods by id; a job that was removed since has none."""
        return {**({} if self.before is None else self.before.job_names), **self.now.job_names}


@router.get("/costs")
def costs_page(request: Request, viewer: Reader, chosen: Chosen, order: Ordered) -> Response:
    """Show what this month and a stretch of time cost. A tenant sees its own."""
    groupings = [each for each in By if viewer.principal.sees_all_tenants or each not in OF_TENANTS]
    by = _group(viewer, chosen)

    def read(unit: UnitOfWork) -> dict[str, Any]:
        found = _read(unit, chosen, by)
        tables = _tables(found, viewer, by, is_compared=chosen.compare)
        order.require([table for table, _ in tables.values()])
        shown = {name: table.shown(rows, order) for name, (table, rows) in tables.items()}
        known = [JobId(each.name) for each in shown["jobs"].rows if each.name in found.job_names]
        costs = costs_of_jobs(unit, known)
        return {"found": found, "shown": shown, "job_costs": costs, "unset": _unset(unit, found), **_month(unit)}

    return pages_of(request).page(
        request,
        "costs.html",
        viewer,
        place="costs",
        actions=list(BudgetAction),
        by=by,
        chosen=chosen,
        groupings=groupings,
        change=change,
        change_words=change_words,
        state_of=state_of,
        **_reading(request, viewer, read),
    )


@router.get("/costs.csv")
def costs_csv(
    request: Request,
    viewer: Reader,
    chosen: Chosen,
    order: Ordered,
    table: Annotated[str, Query(max_length=20)] = "groups",
) -> Response:
    """Return one table of the page as CSV, in the order in which it is shown."""
    by = _group(viewer, chosen)
    found = _reading(request, viewer, lambda unit: _read(unit, chosen, by))
    tables = _tables(found, viewer, by, is_compared=True)
    order.require([each for each, _ in tables.values()])
    own, rows = table_named(table, tables)
    return csv_answer(f"costs-{table}", own.csv(rows, order))


def _reading(request: Request, viewer: Viewer, work: Callable[[UnitOfWork], Any]) -> Any:
    return read_at_once(request, viewer, statements.READ, work)


def _group(viewer: Viewer, chosen: CostQuery) -> By:
    """Return the group. Raises ``ValidationFailedError``: a tenant asked for a group of tenants."""
    if viewer.principal.sees_all_tenants:
        return chosen.by or By.TENANT
    if chosen.by in OF_TENANTS:
        accepted = ", ".join(each for each in By if each not in OF_TENANTS)
        raise ValidationFailedError.at("by", "unknown", f"is one of: {accepted}")
    return chosen.by or By.PROJECT


def _read(unit: UnitOfWork, chosen: CostQuery, by: By) -> Costs:
    shown = chosen.hours(unit.now)
    now = statements.usage_in(unit, shown.since, shown.until)
    before = statements.usage_in(unit, shown.before.since, shown.before.until) if chosen.compare else None
    earlier = None if before is None else before.charges
    lines = [*now.charges.lines, *(() if earlier is None else earlier.lines)]
    own = budgets.list_budgets(unit, BUDGETS_SHOWN)
    tenant_ids = {line.key.tenant_id for line in lines} | {str(each.row.tenant_id) for each in own}
    known = payers(unit, tenant_ids)
    names = Names(job_groups(unit.session, {line.key.job_id for line in lines}), known)
    may_read = unit.principal.may(Permission.POLICY_READ)
    return Costs(
        now,
        before,
        costs_by(names.group(by), now.charges, earlier),
        costs_by(lambda key: key.job_id, now.charges, earlier),
        list(own),
        {tenant_id: payer.name for tenant_id, payer in known.items()},
        rates.show(unit) if chosen.prices is None else rates.get(unit, chosen.prices),
        list(rates.list_versions(unit, Part(VERSIONS_SHOWN))) if may_read else [],
    )


def _tables(found: Costs, viewer: Viewer, by: By, *, is_compared: bool) -> dict[str, tuple[Table[Any], list[Any]]]:
    jobs = found.job_names
    cards = [] if found.prices is None else found.prices.document["cards"]
    return {
        "budgets": (budgets_table(found.names, may_change=viewer.may(Permission.TENANT_WRITE)), found.budgets),
        "groups": (groups_table(by.value, is_compared=is_compared), found.groups),
        "jobs": (jobs_table(jobs), [each for each in found.jobs if each.name]),
        "idle": (idle_table(jobs), idle_costs(found.now)),
        "credits": (credits_table(jobs), credits_of(found.now)),
        "prices": (PRICES, cards),
        "versions": (VERSIONS, found.versions),
    }


def _month(unit: UnitOfWork) -> dict[str, Any]:
    """Return what this month cost until now, with the forecast to its end."""
    month = statements.usage_in(unit, *month_of(unit.now))
    charges = month.charges
    counted = min(max(charges.counted_until or charges.start, charges.start), charges.end)
    elapsed_s, whole_s = (counted - charges.start).total_seconds(), (charges.end - charges.start).total_seconds()
    own = charges.sums
    return {
        "month": own,
        "currency": None if charges.rates is None else charges.rates.currency,
        "start": charges.start,
        "counted": counted,
        "num_open": month.num_open,
        "forecast": forecast(own.due, elapsed_s, whole_s, charges.decimals),
    }


def _unset(unit: UnitOfWork, found: Costs) -> list[Any]:
    """Return the tenants without a budget, if the reader may set one."""
    if not unit.principal.may(Permission.TENANT_WRITE):
        return []
    known = {each.row.tenant_id for each in found.budgets}
    return [each for each in list_tenants(unit, part=Part(TENANTS_OFFERED)) if each.id not in known]
