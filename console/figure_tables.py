"""The tables of indicators: the list of them, and the groups of one."""

from collections.abc import Callable
from typing import Any, Final

from console.figure_charts import PERCENTILES, Compared, Row, change_of
from console.tables import Column, Table
from ledger.figures.definitions import Figure, Kind


def _of_whole(read: Callable[[Compared, Row], Any]) -> Callable[[Compared], Any]:
    """Return the function that reads the row of all; None where nothing was counted."""
    return lambda each: None if each.whole is None else read(each, each.whole)


INDICATORS_TABLE: Final = Table[Compared](
    "all",
    (
        Column("number", "Number", lambda each: int(each.figure.indicator.removeprefix("M"))),
        Column("indicator", "Indicator", lambda each: each.figure.name),
        Column("value", "Value", _of_whole(lambda _, row: row.value), is_number=True, is_sortable=False),
        Column("before", "Before", _of_whole(lambda _, row: row.before), is_number=True, is_sortable=False),
        Column(
            "change",
            "Change",
            _of_whole(lambda each, row: change_of(row.value, row.before, each.figure.unit)),
            is_number=True,
            is_sortable=False,
        ),
        Column("unit", "Unit", lambda each: each.figure.unit, is_shown=False, is_sortable=False),
        Column("target", "Target", lambda each: each.figure.target),
    ),
    "number",
    size=100,
)
"""All indicators. Each has a unit of its own, so they cannot be sorted by value."""


def groups_table(name: str, group: str, figure: Figure) -> Table[Row]:
    """Return the table of the groups of an indicator, the most counted first. ``group``: what they are groups of."""
    value = "Mean" if figure.kind is Kind.MEAN else "Value"
    columns = (
        Column[Row](group, group.capitalize(), lambda row: row.group),
        Column[Row]("value", value, lambda row: row.value, is_number=True),
        Column[Row]("before", "Before", lambda row: row.before, is_number=True),
        Column[Row]("change", "Change", lambda row: change_of(row.value, row.before, figure.unit), is_number=True),
        *(_percentile(place) for place in range(len(PERCENTILES) if figure.spread else 0)),
        Column[Row]("unit", "Unit", lambda _: figure.unit, is_shown=False, is_sortable=False),
    )
    return Table(name, columns, "")


def _percentile(place: int) -> Column[Row]:
    name = f"p{PERCENTILES[place]}"
    return Column(name, name, lambda row: row.percentiles[place], is_number=True)
