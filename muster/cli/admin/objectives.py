"""``muster objectives``."""

from collections.abc import Iterator, Sequence
from typing import Final

from muster.cli.framework.output import Page, Table, age, reading
from muster.cli.framework.profile import open_client
from muster.cli.framework.tables import Column, Document


def _share(value: float) -> str:
    return f"{100 * value:.6g}%"


COLUMNS: Final = (
    Column("OBJECTIVE", lambda row: row["name"]),
    Column("CLASS", lambda row: row["job_class"]),
    Column("INDICATOR", lambda row: row["indicator"]),
    Column("TARGET", lambda row: f"{_share(row['target'])} in {row['window_days']}d"),
    Column("NOW", lambda row: "–" if row["good_share"] is None else _share(row["good_share"])),
    Column("BUDGET LEFT", lambda row: f"{max(row['left_fraction'], 0):.0%}"),
    Column("STATE", lambda row: row["state"] or "not counted"),
    Column("FOR", lambda row: "–" if row["state_since"] is None else age(row["state_since"])),
    Column("GOOD", lambda row: row["num_good"], only_wide=True),
    Column("BAD", lambda row: row["num_bad"], only_wide=True),
)


@reading
def objectives() -> Page:
    """Show the objectives of job classes, and the rest of their error budgets."""
    with open_client(as_operator=True) as client:
        found = list(client.objectives())
    if not found:
        return Page({"items": found}, ["The policy has no objective (`objectives.targets`)."])
    return Page({"items": found}, [Table(COLUMNS, found, indent=""), *details_of(found)])


def details_of(found: Sequence[Document]) -> Iterator[str]:
    """Yield what burns, and what a spent budget forbids."""
    for row in found:
        for rate in row["burn_rates"]:
            if rate["since"] is not None:
                windows = f"{rate['long_rate']:.3g} × over {rate['long_s'] / 3600:g} h"
                newest = f"{rate['short_rate']:.3g} × over {rate['short_s'] / 60:g} min"
                yield f"{row['name']} burns ({rate['severity']}) for {age(rate['since'])}: {windows}, {newest}"
        if row["is_spent"] and row["forbids"]:
            acts = ", ".join(row["forbids"])
            words = "forbids" if row["is_enforced"] else "would forbid, were `objectives.forbids` true:"
            yield f"the budget of {row['name']} is spent: it {words} {acts}, except with --despite-budget"
