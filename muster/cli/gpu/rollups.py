"""``muster gpu rollup`` shows the health and capacity of groups of GPUs, now, at a time, and over time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Annotated, Any, Final, Literal

import typer

from muster.cli.framework.field_help import parameter_help
from muster.cli.framework.list_options import Limit
from muster.cli.framework.moments import MOMENT, moment_in
from muster.cli.framework.options import unfit
from muster.cli.framework.output import Listing, moment_of, reads
from muster.cli.framework.profile import open_client
from muster.cli.framework.sheets import AsCsv, Sheet
from muster.cli.framework.tables import Column, Document
from muster.documents.rollups import Rollup

By = Literal["node", "rack", "cohort", "site", "model", "tenant", "fleet"]
Step = Literal["5m", "1h", "1d"]
RECENT: Final = timedelta(days=2)
"""All rounds are kept so long by default; the step then is the finest."""
STEP_NAMES: Final = {"5m": "five_minutes", "1h": "hour", "1d": "day"}
ROLLUP_COLUMNS: Final = (
    Column("SCORE", lambda item: f"{item['score']:.1f}"),
    Column("WORST", lambda item: item["worst"]),
    Column("P10", lambda item: item["p10"]),
    Column("MEAN", lambda item: f"{item['mean']:.1f}"),
    Column("GPUS", lambda item: item["num_gpus"]),
    Column("HEALTHY", lambda item: item["num_healthy"]),
    Column("IN USE", lambda item: item["num_in_use"]),
    Column("RESERVED", lambda item: item["num_reserved"]),
    Column("FREE", lambda item: item["num_free"]),
    Column("OUT", lambda item: item["num_out"]),
    Column("NODES", lambda item: item["num_nodes"], only_wide=True),
    Column("ADMITTED", lambda item: item["num_admitted"], only_wide=True),
    Column("STANDINGS", lambda item: ", ".join(_standings(item)), only_wide=True),
    Column("KEY", lambda item: item["key"], only_wide=True),
)
AT: Final = Column("AT", lambda item: moment_of(item["at"]))


@dataclass(frozen=True)
class PastOptions:
    """The time of the figures: one instant, or a stretch."""

    at: Annotated[str | None, typer.Option(help=parameter_help("list_rollups.at", MOMENT))] = None
    since: Annotated[str | None, typer.Option(help=parameter_help("list_rollups.since", MOMENT))] = None
    until: Annotated[str | None, typer.Option(help=parameter_help("list_rollups.until", MOMENT))] = None
    step: Annotated[
        Step | None,
        typer.Option(help=parameter_help("list_rollups.step", "By default 5m of the last two days, else 1h.")),
    ] = None
    is_past: Annotated[bool, typer.Option("--history", help="All that is kept of the past, the oldest first.")] = False

    def query(self) -> dict[str, Any]:
        """Return what was given. Raises ``typer.BadParameter``: --at with a stretch of time, or a text is no time."""
        now = datetime.now(UTC)
        times = {"at": self.at, "since": self.since, "until": self.until}
        found = {name: None if text is None else moment_in(text, f"--{name}", now) for name, text in times.items()}
        if not self.is_stretch:
            return found
        if self.at is not None:
            raise unfit("--at", "it asks for one instant; --history, --since, --until and --step ask for a stretch")
        since = found["since"]
        is_recent = since is not None and datetime.fromisoformat(since) >= now - RECENT
        return {**found, "step": STEP_NAMES[self.step or ("5m" if is_recent else "1h")]}

    @property
    def is_stretch(self) -> bool:
        return self.is_past or any(each is not None for each in (self.since, self.until, self.step))


def register(app: typer.Typer) -> None:
    reads(app, "rollup", example="muster gpu rollup --by rack --since 7d --csv")(rollup)


def rollup(
    past: PastOptions,
    by: Annotated[By, typer.Option(help=parameter_help("list_rollups.by"))] = "rack",
    group: Annotated[list[str] | None, typer.Option(help=parameter_help("list_rollups.group"))] = None,
    limit: Limit = 200,
    *,
    as_csv: AsCsv = False,
) -> Listing | Sheet:
    """Show the health and capacity of groups of GPUs, the worst first; with --history as they were.

    The score of a node is that of its worst GPU; of a larger group it is how much of it is on sound nodes.
    """
    with open_client(as_operator=True) as client:
        found = list(islice(client.rollups(by, group=group, limit=min(limit, 1000), **past.query()), limit + 1))
    shown, has_more = found[:limit], len(found) > limit
    if as_csv:
        return Sheet(shown, list(Rollup.__annotations__), note=_cut(limit) if has_more else "")
    name = Column(by.upper(), name_of, is_text=by == "cohort")
    columns = ((AT,) if past.is_stretch else ()) + (name, *ROLLUP_COLUMNS)
    notes = [f"as of {moment_of(shown[0]['at'])}"] if shown and not past.is_stretch else []
    return Listing(shown, columns, _empty(by, group), [*notes, *([_cut(limit)] if has_more else [])])


def _empty(by: str, group: Sequence[str] | None) -> str:
    if group:
        return f"No such {by} is recorded. `muster gpu rollup --by {by} --wide` lists names and keys."
    if by == "tenant":
        return "No tenant had a GPU: a tenant has a record while it has one."
    return "Nothing is recorded of that; a running control plane records every five minutes."


def name_of(item: Document) -> str:
    """Return the group's name for a person."""
    if item["by"] == "cohort":
        return str(item["key"]).replace("|", " ")  # it is folded at blanks
    if item["name"] is not None:
        return str(item["name"])
    return "fleet" if item["by"] == "fleet" else item["key"] or f"no {item['by']}"


def _cut(limit: int) -> str:
    return f"The first {limit}; --limit shows more."


def _standings(item: Document) -> Iterator[str]:
    yield from (f"{count} {standing}" for standing, count in item["standings"].items())
