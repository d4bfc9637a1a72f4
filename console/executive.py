"""The reads of the executive page: jobs, money, GPU time, capacity and objectives, over a stretch and before it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from console.cost_tables import By, Cost, Names, costs_by, departments_table, tenants_table
from console.figure_charts import Compared, compared
from console.figure_tables import groups_table
from console.ranges import Stretch
from console.tables import Column, Table
from console.utilisation_charts import by_name, times_next_to
from console.utilisation_tables import accounts_table
from control.core.paging import Part
from control.core.unit_of_work import UnitOfWork
from control.health.rollup_reads import GroupRollup, RollupFilter, list_rollups
from control.ledger.figures import By as FigureBy
from control.ledger.fleet_time import FleetTime, fleet_time
from control.ledger.objective_reads import ObjectiveView, list_objectives
from control.ledger.spending import Payer, Spending, payers, spending
from ledger.bills import LineKey
from muster.domain.gpu.rollup_groups import GroupKind

_ONE: Final = Part(1)


@dataclass(frozen=True, slots=True)
class Period:
    """The fleet's time, and what tenants are charged for theirs."""

    time: FleetTime
    spent: Spending


@dataclass(frozen=True, slots=True)
class Health:
    """The fleet's health at the end of the stretch, and at its begin; None: none was recorded until then."""

    now: GroupRollup | None
    before: GroupRollup | None


@dataclass(frozen=True, slots=True)
class Board:
    """All that the page shows. ``durations``: by class."""

    success: Compared
    durations: Compared
    converging: Compared
    now: Period
    before: Period
    payers: Mapping[str, Payer]
    health: Health
    objectives: Sequence[ObjectiveView]

    @property
    def currency(self) -> str:
        """Empty: no rate cards are set."""
        return "" if self.now.spent.rates is None else self.now.spent.rates.currency


def board(unit: UnitOfWork, shown: Stretch) -> Board:
    """Return all that the page shows over a stretch of time."""
    now, before = (_period(unit, each) for each in (shown, shown.before))
    tenant_ids = {line.key.tenant_id for each in (now, before) for line in each.spent.lines}
    return Board(
        compared(unit, "job_success", shown, is_whole=True),
        compared(unit, "time_to_complete", shown, FigureBy.CLASS, is_whole=True),
        compared(unit, "convergence", shown, is_whole=True),
        now,
        before,
        payers(unit, tenant_ids),
        _health(unit, shown),
        list_objectives(unit),
    )


def _period(unit: UnitOfWork, shown: Stretch) -> Period:
    time = fleet_time(unit, shown.span)
    return Period(time, spending(unit, time.sums))


def _health(unit: UnitOfWork, shown: Stretch) -> Health:
    now, before = (
        next(iter(list_rollups(unit, RollupFilter(GroupKind.FLEET, at=at), _ONE)), None)
        for at in (shown.until, shown.since)
    )
    return Health(now, before)


OBJECTIVES: Final = Table[ObjectiveView](
    "objectives",
    (
        Column("objective", "Objective", lambda each: each.name),
        Column("class", "Class", lambda each: each.objective.job_class),
        Column("indicator", "Indicator", lambda each: each.objective.indicator),
        Column("target", "Target", lambda each: each.objective.target, is_number=True),
        Column("window_days", "Days", lambda each: each.objective.window_days, is_number=True, is_shown=False),
        Column("good", "Good", lambda each: each.state and each.state.num_good, is_number=True),
        Column("bad", "Bad", lambda each: each.state and each.state.num_bad, is_number=True),
        Column("left", "Budget left", lambda each: each.state and each.state.left_fraction, is_number=True),
        Column("state", "State", lambda each: each.state and each.state.state),
    ),
    "",
)
"""Objectives: burning ones first, then those with the least budget left."""


def tables_of(found: Board) -> dict[str, tuple[Table[Any], Sequence[Any]]]:
    """Return the tables of the page with their rows, by name."""
    now, before = found.now, found.before

    def costs(group: Callable[[LineKey], str]) -> Sequence[Cost]:
        return costs_by(group, now.spent, before.spent)

    accounts = (by_name(each.time.sums.sums, "account") for each in (now, before))
    department = Names({}, found.payers).group(By.DEPARTMENT)
    return {
        "objectives": (OBJECTIVES, found.objectives),
        "departments": (departments_table(found.currency), costs(department)),
        "tenants": (tenants_table(found.payers, found.currency), costs(lambda key: key.tenant_id)),
        "classes": (groups_table("classes", "class", found.durations.figure), found.durations.rows),
        "accounts": (accounts_table(is_compared=True), times_next_to(*accounts)),
    }
