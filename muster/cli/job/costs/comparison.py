"""``muster job compare``: jobs side by side, a figure a row, with the best of each row marked."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import typer

from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.names import JobIds
from muster.cli.framework.output import Page, Table, reads
from muster.cli.framework.profile import open_client
from muster.cli.framework.sheets import AsCsv, Sheet
from muster.cli.framework.tables import Column, Document
from muster.documents.money import ComparedJob

BEST: Final = "*"
_FEWEST: Final = 2


class Row(NamedTuple):
    """One figure. ``better``: which value is marked; None: none, as it depends on what the job did."""

    title: str
    field: str
    shown: Callable[[Any], str]
    better: Literal["higher", "lower"] | None = None


def _whole(value: Any) -> str:
    return f"{float(value):,.0f}"


def _share(value: Any) -> str:
    return f"{value:.1%}"


def _seconds(value: Any) -> str:
    return f"{value:.3g} s"


def _money(value: Any) -> str:
    return f"{float(value):,.4g}"


COMPARED: Final = (
    Row("STATE", "state", str),
    Row("TIER", "tier", str),
    Row("GPUS", "gpus", str),
    Row("STEPS", "step", _whole),
    Row("TOKENS/S", "tokens_per_s", _whole, "higher"),
    Row("TOKENS/S A GPU", "tokens_per_s_per_gpu", _whole, "higher"),
    Row("SAMPLES/S", "samples_per_s", _whole, "higher"),
    Row("STEP P50", "step_p50_s", _seconds),
    Row("STEP P95", "step_p95_s", _seconds),
    Row("MFU", "mfu", _share, "higher"),
    Row("COMMUNICATION", "communication_share", _share, "lower"),
    Row("LOADER WAIT", "loader_share", _share, "lower"),
    Row("GOODPUT", "goodput", _share, "higher"),
    Row("LOST", "lost_share", _share, "lower"),
    Row("CHECKPOINTS", "checkpoint_share", _share, "lower"),
    Row("ATTEMPTS", "attempts", str),
    Row("PRE-EMPTIONS", "reclaims", str, "lower"),
    Row("GPU HOURS", "gpu_hours", _money),
    Row("PRICE A GPU HOUR", "price_per_gpu_hour", _money, "lower"),
    Row("COST", "spent", _money),
    Row("CREDITS", "credits", _money),
    Row("TOKENS FOR 1", "tokens_per_unit", _whole, "higher"),
    Row("  WHILE IT TRAINS", "tokens_per_unit_while_training", _whole, "higher"),
    Row("A MILLION TOKENS", "per_million_tokens", _money, "lower"),
)


def add_comparison(app: typer.Typer) -> None:
    @reads(app, "compare", example="muster job compare baseline larger-batches on-spot")
    def compare(job_ids: JobIds, *, as_csv: AsCsv = False) -> Page | Sheet:
        """Compare jobs: speed, use of their GPUs, cost, and tokens for one unit of money."""
        wanted = list(dict.fromkeys(job_ids))
        if len(wanted) < _FEWEST:
            raise CommandError("one job alone is compared with nothing", "Name two jobs or more.", Exit.USAGE)
        with open_client() as client:
            found = client.compare_jobs(wanted)
        jobs = found["items"]
        if as_csv:
            return Sheet(jobs, list(ComparedJob.__annotations__))
        heads = _heads(jobs)
        rows = [_cells(row, jobs) for row in COMPARED]
        columns = [Column("", lambda cells: cells["title"])]
        columns += [Column(head, _cell(str(place))) for place, head in enumerate(heads)]
        return Page(found, [Table(columns, rows, indent=""), *_notes(jobs, heads)])


def _heads(jobs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the name of each job, or its id where two have one name."""
    names = [str(job["name"]) for job in jobs]
    return [name if names.count(name) == 1 else str(job["job_id"]) for name, job in zip(names, jobs, strict=True)]


def _cell(place: str) -> Callable[[Document], object]:
    return lambda cells: cells[place]


def _cells(row: Row, jobs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the cells of one line of the table, by the place of their job."""
    currency = jobs[0]["currency"] or ""
    title = f"TOKENS FOR 1 {currency}".rstrip() if row.field == "tokens_per_unit" else row.title
    if row.shown is _money and row.field != "gpu_hours" and currency:
        title = f"{title}, {currency}"
    shown = ["-" if job[row.field] is None else row.shown(job[row.field]) for job in jobs]
    best = _best(row, [job[row.field] for job in jobs], shown)
    return {
        "title": title,
        **{str(place): f"{text} {BEST}" if text == best else text for place, text in enumerate(shown)},
    }


def _best(row: Row, values: Sequence[Any], shown: Sequence[str]) -> str | None:
    """Return the best value as it is shown; None where all are shown alike, or one alone is known."""
    known = {float(value): text for value, text in zip(values, shown, strict=True) if row.better and value is not None}
    if len(set(known.values())) < _FEWEST:
        return None
    return known[max(known) if row.better == "higher" else min(known)]


def _notes(jobs: Sequence[Mapping[str, Any]], heads: Sequence[str]) -> Iterator[str]:
    """Yield what the mark means, and why figures are missing."""
    yield f"{BEST} the best of its row, by what the programs themselves report"
    titles = {row.field: row.title.strip().lower() for row in COMPARED}
    whys: dict[str, dict[str, list[str]]] = {}
    for job, head in zip(jobs, heads, strict=True):
        for field, why in job["missing"].items():
            whys.setdefault(why, {}).setdefault(head, []).append(titles.get(field, field))
    for why, by_job in whys.items():
        fields = list(dict.fromkeys(title for titles in by_job.values() for title in titles))
        yield f"- {', '.join(fields)} of {', '.join(by_job)}: {why}"
