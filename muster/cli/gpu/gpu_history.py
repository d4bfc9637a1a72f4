"""``muster gpu jobs|moves|burn-ins|evidence|latest|history`` show a GPU's readings and its past."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated, Final

import typer

from muster.cli.framework.field_help import parameter_help
from muster.cli.framework.list_options import WithinOptions
from muster.cli.framework.moments import MOMENT, moment_in
from muster.cli.framework.names import GpuName, gpu_named
from muster.cli.framework.output import Listing, Page, Table, age, moment_of, reads
from muster.cli.framework.profile import open_client
from muster.cli.framework.tables import Column, Document
from muster.cli.gpu.burn_ins import verdict_words

Limit = Annotated[int, typer.Option(min=1, max=200, help=parameter_help("limit"))]
JOBS: Final = (
    Column("JOB", lambda item: item["job_id"]),
    Column("NAME", lambda item: item["job_name"], is_text=True),
    Column("TRY", lambda item: item["attempt_number"]),
    Column("ENDED BY", lambda item: item["cause"] or item["attempt_state"]),
    Column("AGE", lambda item: age(item["placed_at"])),
    Column("PROOF", lambda item: item["proof"], only_wide=True),
)
TRANSITION_COLUMNS: Final = (
    Column("AGE", lambda item: age(item["at"]), wide=lambda item: item["at"]),
    Column("FROM", lambda item: item["from"]),
    Column("TO", lambda item: item["to"]),
    Column("BY", lambda item: item["actor"], is_text=True),
    Column("WHY", lambda item: item["reason"], is_text=True),
)


def _details(item: Document) -> str:
    """Return a burn-in's figures with the cohort's median; figures beyond the tolerance come first."""
    rates = sorted(item["compared"], key=lambda rate: not rate["is_outlier"])
    return "; ".join(_rate(rate) for rate in rates)


def _rate(rate: Document) -> str:
    median = "" if rate["cohort"] is None else f", median {rate['cohort']['median']:.4g}"
    return f"{rate['measure']} {rate['value']:.4g}{median}{' OUTLIER' if rate['is_outlier'] else ''}"


BURN_INS: Final = (
    Column("BURN-IN", lambda item: item["id"]),
    Column("VERDICT", verdict_words),
    Column("AGE", lambda item: age(item["ordered_at"])),
    Column("AGAINST THE COHORT", _details, is_text=True),
)
EVIDENCE: Final = (
    Column("EVIDENCE", lambda item: item["id"]),
    Column("STATE", lambda item: "dismissed" if item["dismissed_at"] else item["severity"]),
    Column("AGE", lambda item: age(item["last_seen_at"])),
    Column("WHAT", lambda item: item["summary"], is_text=True),
    Column("FAULT", lambda item: item["fault_key"], only_wide=True),
    Column("SOURCES", lambda item: ", ".join(item["sources"]), only_wide=True),
    Column("TRUST", lambda item: item["trust"], only_wide=True),
)
SERIES: Final = (
    Column("METRIC", lambda row: row["metric"]),
    Column("UNIT", lambda row: row["unit"]),
    Column("LEAST", lambda row: _value(row["least"])),
    Column("GREATEST", lambda row: _value(row["most"])),
    Column("NEWEST", lambda row: _value(row["new"])),
)
READING_COLUMNS: Final = (Column("READING", lambda row: row["name"]), Column("VALUE", lambda row: row["value"]))


def register(app: typer.Typer) -> None:
    reads(app, "jobs", example="muster gpu jobs GPU-… --wide")(jobs)
    reads(app, "moves", example="muster gpu moves GPU-…")(moves)
    reads(app, "burn-ins", example="muster gpu burn-ins GPU-…")(burn_ins)
    reads(app, "evidence", example="muster gpu evidence GPU-… --wide")(evidence)
    reads(app, "latest", example="muster gpu latest GPU-… --watch")(latest)
    reads(app, "history", example="muster gpu history GPU-… --metric temperature_c --json")(history)


def jobs(gpu: GpuName, within: WithinOptions, limit: Limit = 20) -> Listing:
    """List every attempt that had the GPU, the newest first, with the cause of its end."""
    with open_client(as_operator=True) as client:
        found = list(islice(client.gpu_jobs(gpu_named(client, gpu), limit=limit, **within.query()), limit))
    return Listing(found, JOBS, "No job ever had it.")


def moves(gpu: GpuName, within: WithinOptions, limit: Limit = 20) -> Listing:
    """List every transition of its standing, the newest first."""
    with open_client(as_operator=True) as client:
        found = list(islice(client.gpu_standings(gpu_named(client, gpu), limit=limit, **within.query()), limit))
    return Listing(found, TRANSITION_COLUMNS, "It has not moved since it was enrolled.")


def burn_ins(gpu: GpuName, within: WithinOptions, limit: Limit = 20) -> Listing:
    """List its burn-ins, the newest first, each figure with the newest ones of its cohort."""
    with open_client(as_operator=True) as client:
        found = list(islice(client.gpu_burn_ins(gpu_named(client, gpu), limit=limit, **within.query()), limit))
    return Listing(found, BURN_INS, "It has had no burn-in. `muster burnin run` orders one.")


def evidence(
    gpu: GpuName,
    within: WithinOptions,
    state: Annotated[list[str] | None, typer.Option(help=parameter_help("state"))] = None,
    detector: Annotated[str | None, typer.Option(help=parameter_help("detector"))] = None,
    limit: Limit = 50,
) -> Listing:
    """List all evidence about it, the newest first."""
    with open_client(as_operator=True) as client:
        states = [each.upper() for each in state or []] or None
        asked = client.evidence(gpu_named(client, gpu), state=states, detector=detector, limit=limit, **within.query())
        found = list(islice(asked, limit))
    return Listing(found, EVIDENCE, "Nothing was ever found about it.")


def latest(gpu: GpuName) -> Page:
    """Show its newest readings."""
    with open_client(as_operator=True) as client:
        found = client.latest(gpu_named(client, gpu))
    return _latest_page(found)


def history(
    gpu: GpuName,
    metric: Annotated[
        list[str] | None, typer.Option(help=parameter_help("metric", "Such as temperature_c; may be repeated."))
    ] = None,
    since: Annotated[str | None, typer.Option(help=parameter_help("get_history.from", MOMENT))] = None,
    until: Annotated[str | None, typer.Option(help=parameter_help("get_history.until", MOMENT))] = None,
    step: Annotated[float | None, typer.Option(help=parameter_help("get_history.step"))] = None,
) -> Page:
    """Show its readings over time, and the loss that its agent counted."""
    now = datetime.now(UTC)
    begin = None if since is None else moment_in(since, "--since", now)
    end = None if until is None else moment_in(until, "--until", now)
    with open_client(as_operator=True) as client:
        found = client.history(gpu_named(client, gpu), metric=metric, since=begin, until=end, step=step)
    return _history_page(found)


def _latest_page(found: Document) -> Page:
    lost = "  LOST: the driver no longer answers for it" if found["is_lost"] else ""
    rows = [{"name": name, "value": _value(value)} for name, value in found["values"].items()]
    head = f"{found['gpu_uuid']}, {age(found['at'])} ago{lost}"
    return Page(found, [head, Table(READING_COLUMNS, rows)])


def _history_page(found: Document) -> Page:
    """Return one line a metric: from, least, greatest, newest; every point is in ``--json``."""
    rows = list(_series_rows(found["series"]))
    said: list[str | Table] = [f"{found['gpu_uuid']}, {moment_of(found['from'])} to {moment_of(found['until'])}"]
    said.append(Table(SERIES, rows) if rows else "  no reading of it in that time")
    said += [
        f"  {gap['num_reports']} reports lost from {moment_of(gap['from'])}: {gap['why']}" for gap in found["gaps"]
    ]
    return Page(found, said)


def _series_rows(several: Iterable[Document]) -> Iterator[Document]:
    """Yield the row of each series with a value."""
    for series in several:
        values = [value for value in series["values"] if value is not None]
        if values:
            extremes = {"least": min(values), "most": max(values), "new": values[-1]}
            yield {"metric": series["metric"], "unit": series["unit"], **extremes}


def _value(value: float | None) -> str:
    return "" if value is None else f"{value:g}"
