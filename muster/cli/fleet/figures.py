"""``muster figures``."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Annotated, Final, Literal

import typer

from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.field_help import parameter_help
from muster.cli.framework.list_options import bounds
from muster.cli.framework.moments import MOMENT
from muster.cli.framework.output import AsJson, AsYaml, Format, Listing, Page, Table, Wide, moment_of, show
from muster.cli.framework.profile import open_client
from muster.cli.framework.tables import Column, Document
from muster.documents.csv_lines import line_of

DEFINITIONS: Final = (
    Column("INDICATOR", lambda item: item["indicator"]),
    Column("FIGURE", lambda item: item["name"]),
    Column("UNIT", lambda item: item["unit"] or "share"),
    Column("BETTER", lambda item: item["better"]),
    Column("TARGET", lambda item: item["target"], is_text=True),
    Column("MEANING", lambda item: item["meaning"], only_wide=True, is_text=True),
)
PART_COLUMNS: Final = (
    Column("PART", lambda item: item["part"]),
    Column("NUMBER", lambda item: item["num"]),
    Column("TOTAL", lambda item: f"{item['total']:,.6g}"),
    Column("WHAT", lambda item: item["what"], is_text=True),
)
FIELDS: Final = ("figure", "unit", "group", "begins_at", "part", "num", "total", "value")
By = Literal["none", "tenant", "tier", "class", "site"]


@dataclass(frozen=True, slots=True)
class Csv:
    """A figure as CSV: a line for each point and for each of its parts."""

    found: Document
    code: int = Exit.OK

    def documents(self) -> list[object]:
        return [self.found]

    def lines(self, shape: Format) -> Iterator[str]:
        del shape
        percentiles = sorted(_percentiles_in(self.found))
        yield line_of([*FIELDS, *(f"p{each:g}" for each in percentiles)])
        for series in self.found["series"]:
            for point in series["points"]:
                for row in _rows_of(point):
                    spread = {each["percentile"]: each["value"] for each in row["percentiles"]}
                    given = {**row, "group": series["group"], "begins_at": point["begins_at"]}
                    given |= {"figure": self.found["definition"]["name"], "unit": self.found["definition"]["unit"]}
                    yield line_of([given.get(field) for field in FIELDS] + [spread.get(each) for each in percentiles])


def figures(
    name: Annotated[str | None, typer.Argument(help=parameter_help("show_figure.name"))] = None,
    *,
    since: Annotated[str | None, typer.Option(help=parameter_help("show_figure.since", MOMENT))] = None,
    until: Annotated[str | None, typer.Option(help=parameter_help("show_figure.until", MOMENT))] = None,
    by: Annotated[By, typer.Option(help=parameter_help("by"))] = "none",
    step: Annotated[Literal["hour", "day"], typer.Option(help=parameter_help("show_figure.step"))] = "hour",
    percentile: Annotated[list[float] | None, typer.Option(help=parameter_help("percentile"))] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="A line for each hour or day, group and part.")] = False,
    as_json: AsJson = False,
    as_yaml: AsYaml = False,
    is_wide: Wide = False,
) -> int:
    """Show the indicators M1 to M15: what each means, or one over time."""
    shape = Format(as_json, as_yaml, is_wide)
    if as_csv and (as_json or as_yaml or name is None):
        raise CommandError(
            "--csv shows one figure, and without --json or --yaml", "Name a figure: `muster figures`.", Exit.USAGE
        )
    with open_client() as client:
        if name is None:
            found = list(client.indicators())
            return show(Listing(found, DEFINITIONS, "There are none.", ["`muster figures NAME` shows one."]), shape)
        within = bounds(since, until)
        one = client.indicator(
            name, since=within.get("since"), until=within.get("until"), step=step, by=by, percentile=percentile
        )
    return show(Csv(one) if as_csv else Page(one, list(_parts(one))), shape)


def _parts(found: Document) -> Iterator[str | Table]:
    definition = found["definition"]
    target = f", target: {definition['target']}" if definition["target"] else ""
    better = "" if definition["better"] == "neither" else f": {definition['better']} is better"
    yield f"{definition['name']}, {definition['indicator']}{better}{target}"
    yield f"  {definition['meaning']}"
    if definition["excluded"]:
        yield f"  {definition['excluded']}"
    yield f"  {moment_of(found['since'])} to {moment_of(found['until'])}"
    if not found["series"]:
        yield "  Nothing was counted in that time. An hour is first counted when it is 15 minutes old."
        return
    yield from _tables(found)
    if found["num_left_out"]:
        yield f"  {found['num_left_out']} groups with fewer observations are left out"
    if found["final_until"] is not None:
        yield f"  final until {moment_of(found['final_until'])}; later hours may change, since reports may come late"


def _tables(found: Document) -> Iterator[Table]:
    """Yield a table of points, or of groups; then the parts of the whole, if it is one group."""
    columns = _columns(found)
    if found["by"] != "none":
        yield Table((Column(found["by"].upper(), lambda row: row["group"] or "-"), *columns), found["series"])
        return
    (series,) = found["series"]
    rows = [{**point, "at": moment_of(point["begins_at"])} for point in series["points"]]
    yield Table((Column("BEGINS", lambda row: row["at"]), *columns), [*rows, {**series, "at": "in all"}])
    meanings = {part["name"]: part["meaning"] for part in found["definition"]["parts"]}
    yield Table(PART_COLUMNS, [{**part, "what": meanings.get(part["part"], "")} for part in series["parts"]])


def _columns(found: Document) -> list[Column]:
    unit = found["definition"]["unit"]
    own = {each["percentile"] for series in found["series"] for each in series["percentiles"]}
    return [
        Column("VALUE", lambda row: _value(row["value"], unit)),
        *(Column(f"P{each:g}", partial(_percentile, percentile=each, unit=unit)) for each in sorted(own)),
    ]


def _percentile(row: Document, *, percentile: float, unit: str) -> str:
    found = [each["value"] for each in row["percentiles"] if each["percentile"] == percentile]
    return _value(found[0], unit) if found else ""


def _percentiles_in(found: Document) -> set[float]:
    values = chain(*([series, *series["points"]] for series in found["series"]))
    rows = chain(*([value, *value["parts"]] for value in values))
    return {each["percentile"] for row in rows for each in row["percentiles"]}


def _rows_of(point: Document) -> Iterator[Document]:
    yield {"part": "", "value": point["value"], "percentiles": point["percentiles"]}
    yield from point["parts"]


def _value(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return f"{value:.2%}" if unit == "" else f"{value:,.6g} {unit}"
