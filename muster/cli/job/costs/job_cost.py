"""``muster job cost``, and lines about what a planned job would cost."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import typer

from muster.cli.framework.names import JobId
from muster.cli.framework.output import Page, Table, moment_of, reads
from muster.cli.framework.profile import open_client
from muster.cli.framework.tables import Column

COST: Final = (
    Column("MODEL", lambda item: item["model"], is_text=True),
    Column("TIER", lambda item: item["tier"], only_wide=True),
    Column("ACCOUNT", lambda item: item["account"]),
    Column("SINCE", lambda item: moment_of(item["from_at"]), only_wide=True),
    Column("GPU HOURS", lambda item: hours(item["gpu_hours"])),
    Column("PROVISIONAL", lambda item: hours(item["provisional_gpu_hours"])),
    Column("PRICE", lambda item: item["price_per_gpu_hour"] or "unpriced"),
    Column("AMOUNT", lambda item: item["amount"] or "unpriced"),
    Column("CREDIT", lambda item: item["credit"] or "-"),
)


def add_cost(app: typer.Typer) -> None:
    @reads(app, "cost", example="muster job cost job_…")
    def cost(job_id: JobId) -> Page:
        """Show what the job has cost until now, by account, and what a step, token, epoch and checkpoint cost."""
        with open_client() as client:
            found = client.job_cost(job_id)
        lines = found["lines"] + [{**each, "account": "(running)"} for each in found["running"]]
        return Page(found, [*_lines_of(job_id, found), *([Table(COST, lines)] if lines else [])])


def _lines_of(job_id: str, found: Mapping[str, Any]) -> Iterator[str]:
    money, sums = found["currency"], found["sums"]
    if money is None:
        yield f"{job_id}  no rate cards are set: nothing has a price"
    else:
        credit = f"; {sums['credits']} are given back" if float(sums["credits"]) else ""
        yield f"{job_id}  {found['spent']} {money} until now{credit}"
    if float(sums["unpriced_gpu_hours"]):
        yield f"  unpriced: {hours(sums['unpriced_gpu_hours'])} GPU-hours, for which no rate card holds"
    if float(sums["provisional_gpu_hours"]) or found["running"]:
        until = moment_of(found["counted_until"]) if found["counted_until"] else "never yet"
        yield f"  counted until {until}; hours that are provisional may still change"
    per = [
        (found["per_step"], f"a step, of {found['step']}"),
        (found["per_million_tokens"], f"a million tokens, of {found['tokens']}"),
        (found.get("per_epoch"), f"an epoch, of {shortened(found.get('epochs') or 0)}"),
        (found["per_checkpoint"], f"a checkpoint, of {found['checkpoints']}"),
    ]
    yield from (f"  {shortened(number)} {money} for {words}" for number, words in per if number is not None)


def planned_lines(cost: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield what a planned job would cost; an older server does not say."""
    if not cost:
        return
    least, most, money = cost["per_hour_least"], cost["per_hour_most"], cost["currency"]
    hour = most if least == most else f"{least} to {most}"
    yield f"  costs {hour} {money} an hour on all its GPUs"
    expected, limit = cost["by_expected"], cost["by_wall_time"]
    if expected is not None and expected != limit:
        yield f"  about {expected} {money} if it takes as long as is expected"
    if limit is not None:
        yield f"  at most {limit} {money}, by its wall time"
    else:
        yield "  it has no wall time, so there is no most: --wall-time sets one"


def hours(number: str) -> str:
    return f"{float(number):,.2f}"


def shortened(number: str | float) -> str:
    return f"{float(number):.4g}"
