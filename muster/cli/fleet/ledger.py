"""``muster ledger``."""

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from muster.cli.framework.exits import Exit
from muster.cli.framework.field_help import parameter_help
from muster.cli.framework.list_options import Limit, TierOption, WithinOptions, bounds
from muster.cli.framework.moments import MOMENT, moment_in
from muster.cli.framework.names import JobOption, NodeOption, TenantOption, node_named, tenant_named
from muster.cli.framework.output import Listing, Page, Table, age, reads
from muster.cli.framework.profile import open_client
from muster.cli.framework.sheets import AsCsv, Sheet
from muster.cli.framework.tables import Column, Document

if TYPE_CHECKING:
    from muster.client.ledger import LedgerConditions
    from muster.client.rest import RestClient

app = typer.Typer(help="The ledger: what each GPU's time was.", no_args_is_help=True)
FIELDS_OF_GROUPS: Final = {
    "account": "account",
    "cause": "cause",
    "tenant": "tenant_id",
    "tier": "tier",
    "class": "job_class",
    "model": "model",
    "cohort": "cohort_key",
    "rack": "rack",
    "site": "site",
    "hour": "begins_at",
    "day": "begins_at",
    "node": "node_id",
    "job": "job_id",
    "attempt": "attempt_id",
}
"""Group of an option: field of a sum."""


def _state(item: Document) -> str:
    if item["closed_at"] is None:
        return "provisional"
    return f"corrected {item['revision']}×" if item["revision"] else "closed"


HOURS: Final = (
    Column("HOUR", lambda item: item["hour"]),
    Column("STATE", _state),
    Column("GPUS", lambda item: item["num_gpus"]),
    Column("GPU HOURS", lambda item: f"{item['capacity_ms'] / 3_600_000:,.1f}"),
    Column("AWAITS", lambda item: item["awaits"] or "-"),
    Column("UNEXPLAINED", lambda item: f"{item['unexplained_ms'] / 1000:,.3f} s" if item["unexplained_ms"] else "-"),
    Column("COMPUTED", lambda item: f"{age(item['computed_at'])} ago", only_wide=True),
    Column("GAPS", lambda item: ", ".join(item["gaps"]) or "-", only_wide=True),
)
ENTRIES: Final = (
    Column("HOUR", lambda item: item["hour"]),
    Column("ACCOUNT", lambda item: item["account"]),
    Column("CAUSE", lambda item: item["cause"] or "-"),
    Column("GPUS", lambda item: len(item["gpus"])),
    Column("GPU HOURS", lambda item: f"{item['num_ms'] / 3_600_000:,.3f}"),
    Column("EVIDENCE", lambda item: ", ".join(item["evidence"]) or "-", is_text=True),
    Column("ATTEMPT", lambda item: item["attempt_id"] or "-", only_wide=True),
    Column("NODE", lambda item: item["node_id"], only_wide=True),
)


@dataclass(frozen=True)
class WhereOptions:
    """Which GPU time is meant."""

    account: Annotated[list[str] | None, typer.Option(help=parameter_help("account"))] = None
    cause: Annotated[str | None, typer.Option(help=parameter_help("cause"))] = None
    tenant: TenantOption = None
    tier: TierOption = None
    job_class: Annotated[str | None, typer.Option("--class", help=parameter_help("job_class"))] = None
    model: Annotated[str | None, typer.Option(help=parameter_help("model"))] = None
    rack: Annotated[str | None, typer.Option(help=parameter_help("rack"))] = None
    site: Annotated[str | None, typer.Option(help=parameter_help("site"))] = None
    node: NodeOption = None
    job: JobOption = None
    attempt: Annotated[str | None, typer.Option(help=parameter_help("attempt_id"))] = None
    gpu: Annotated[str | None, typer.Option(help=parameter_help("gpu"))] = None

    def query(self, client: "RestClient") -> "LedgerConditions":
        """Return what was given."""
        return {
            "account": self.account,
            "cause": self.cause,
            "tenant_id": None if self.tenant is None else tenant_named(client, self.tenant),
            "tier": self.tier,
            "job_class": self.job_class,
            "model": self.model,
            "rack": self.rack,
            "site": self.site,
            "node_id": None if self.node is None else node_named(client, self.node),
            "job_id": self.job,
            "attempt_id": self.attempt,
            "gpu": self.gpu,
        }


@reads(app, "show", example="muster ledger show --by account --by tenant --since 7d")
def show(
    where: WhereOptions,
    by: Annotated[list[str] | None, typer.Option(help=parameter_help("group"))] = None,
    since: Annotated[str | None, typer.Option(help=parameter_help("since", MOMENT))] = None,
    until: Annotated[str | None, typer.Option(help=parameter_help("until", MOMENT))] = None,
    limit: Limit = 1000,
    *,
    as_csv: AsCsv = False,
) -> Page | Sheet:
    """Sum up GPU time, by account unless --by says otherwise: of the last 24 hours that are over."""
    groups = by or ["account"]
    with open_client() as client:
        span = bounds(since, until)
        found = client.ledger(
            group=groups,
            since=span.get("since"),
            until=span.get("until"),
            limit=limit,
            **where.query(client),
        )
    fields = list(dict.fromkeys(FIELDS_OF_GROUPS.get(group, group) for group in groups))
    if as_csv:
        return Sheet(found["sums"], [*fields, "num_ms", "gpu_hours", "share"])
    if not found["sums"]:
        return Page(found, [_words(found), "An hour is computed 5 minutes after its end."])
    columns = [Column(name.removesuffix("_id").upper(), _value_of(name)) for name in fields]
    columns += [
        Column("GPU HOURS", lambda item: f"{item['gpu_hours']:,.2f}"),
        Column("SHARE", lambda item: f"{item['share']:.1%}"),
    ]
    return Page(found, [Table(columns, found["sums"], indent=""), _words(found)])


@reads(app, "entries", example="muster ledger entries --job job_… --account lost")
def entries(where: WhereOptions, within: WithinOptions, limit: Limit = 50, *, as_csv: AsCsv = False) -> Listing | Sheet:
    """List entries, the newest hours first, with the evidence of each loss."""
    with open_client() as client:
        asked = client.ledger_entries(limit=min(limit, 200), **where.query(client), **within.query())
        found = list(islice(asked, limit))
    if as_csv:
        return Sheet([_joined(item) for item in found], ["hour", "account", "cause", "num_ms"])
    return Listing(found, ENTRIES, "There are no such entries. An hour is computed 5 minutes after its end.")


@reads(app, "hours", example="muster ledger hours --since 2d")
def hours(within: WithinOptions, limit: Limit = 50) -> Listing:
    """List the hours, the newest first: whether each is closed, and what it awaits."""
    with open_client(as_operator=True) as client:
        found = list(islice(client.ledger_hours(limit=min(limit, 1000), **within.query()), limit))
    return Listing(found, HOURS, "No hour is computed yet: the first one is, 5 minutes after its end.")


RECOUNTED: Final = (
    Column("GROUP", lambda item: item["group"]),
    Column("ACCOUNTS", lambda item: ", ".join(item["accounts"]) or "-", is_text=True),
    Column("LEDGER", lambda item: f"{item['stored_ms'] / 3_600_000:,.2f} h"),
    Column("EVENTS", lambda item: f"{item['recounted_ms'] / 3_600_000:,.2f} h"),
    Column("DIFFERENCE", lambda item: _seconds(item["stored_ms"] - item["recounted_ms"])),
)
DIFFERENCES: Final = (
    Column("HOUR", lambda item: item["hour"]),
    Column("GPU", lambda item: item["gpu_uuid"]),
    Column("GROUP", lambda item: item["group"]),
    Column("LEDGER", lambda item: _seconds(item["stored_ms"])),
    Column("EVENTS", lambda item: _seconds(item["recounted_ms"])),
    Column("ATTEMPT", lambda item: item["attempt_id"] or "-", only_wide=True),
    Column("DECIDED BY", lambda item: ", ".join(one["kind"] for one in item["events"]) or "-", is_text=True),
    Column("EVENTS AT", lambda item: ", ".join(one["at"] for one in item["events"]), is_text=True, only_wide=True),
    Column(
        "EVENT IDS", lambda item: ", ".join(one["event_id"] for one in item["events"]), is_text=True, only_wide=True
    ),
)
NOT_RECOUNTED: Final = {
    "not_computed": "the ledger has not computed them yet, or they had no GPU",
    "dropped": "their entries are no longer kept",
    "lost_end": "no event says when a host of an attempt was clean",
    "within_use": "programs report what used GPUs did: only the sum of each attempt is compared",
    "within_empty": "no event says for what a free GPU was free: only the sum of each GPU is compared",
}
"""Why events say nothing, or not enough."""


@reads(app, "recount", example="muster ledger recount --from 2d --until 1d")
def recount(
    since: Annotated[
        str | None, typer.Option("--from", "--since", help=parameter_help("recount_ledger.since", MOMENT))
    ] = None,
    until: Annotated[str | None, typer.Option(help=parameter_help("recount_ledger.until", MOMENT))] = None,
    gpu: Annotated[str | None, typer.Option(help=parameter_help("recount_ledger.gpu"))] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help=parameter_help("recount_ledger.limit"))] = 20,
) -> Page:
    """Recount GPU time from events and compare it with the ledger. Exit code 1: they differ outside of gaps."""
    with open_client(as_operator=True) as client:
        first = None if since is None else moment_in(since, "--from")
        last = None if until is None else moment_in(until, "--until")
        found = client.ledger_recount(since=first, until=last, gpu=gpu, limit=limit)
    hours_words = f"{found['num_hours']:,} hours of {found['num_gpus']:,} GPUs"
    words = f"{hours_words} from {found['since']} to {found['until']}, by {found['num_events']:,} events"
    if found["num_records"]:
        words += f" and {found['num_records']:,} records from before {found['events_since']}"
    parts: list[str | Table] = [f"{words}."]
    if found["num_open_hours"]:
        parts.append(f"Provisional hours among them: {found['num_open_hours']:,}.")
    if found["sums"]:
        parts.append(Table(RECOUNTED, found["sums"], indent=""))
    parts += [*_outcome(found), *map(_not_recounted, found["not_recounted"])]
    if found["differences"]:
        parts.append(Table(DIFFERENCES, found["differences"], indent=""))
    return Page(found, parts, code=Exit.FAILED if found["num_differences"] else Exit.OK)


def _outcome(found: Document) -> list[str]:
    """Return the sentences that state the result: of differences, and of what gaps of reports explain."""
    if not found["num_hours"]:
        return ["There is nothing to compare."]
    num_different, num_in_gaps = found["num_differences"], found["num_in_gaps"]
    outside = " outside of gaps of reports" if num_in_gaps else ""
    lines = [f"The ledger and the events agree to the millisecond{outside}."]
    if num_different:
        lines = [f"{_num_of(num_different, 'difference')}{outside}: {_seconds(found['difference_ms'])} in all."]
        if left_out := num_different - len(found["differences"]):
            lines.append(f"{left_out:,} of them {'is' if left_out == 1 else 'are'} not shown: --limit shows more.")
    if num_in_gaps:
        lines.append(f"Gaps explain {_seconds(found['in_gaps_ms'])} in {_num_of(num_in_gaps, 'GPU hour')}.")
    return lines


def _not_recounted(item: Document) -> str:
    unit = "GPU hour" if item["cause"] == "lost_end" else "hour"
    hours_words = _num_of(item["num_hours"], unit) if item["num_hours"] is not None else ""
    time_words = f"{item['num_ms'] / 3_600_000:,.2f} h of GPU time" if item["num_ms"] is not None else ""
    much = " with ".join(filter(None, (hours_words, time_words)))
    return f"Not recounted: {much} ({NOT_RECOUNTED.get(item['cause'], item['cause'])})."


def _num_of(num: int, noun: str) -> str:
    return f"{num:,} {noun}{'' if num == 1 else 's'}"


def _seconds(num_ms: int) -> str:
    return f"{num_ms / 1000:,.3f} s" if num_ms else "-"


def _value_of(name: str) -> Any:
    return lambda item: item[name] or "-"


def _words(found: Document) -> str:
    hours_words = f"{found['num_hours']:,} hours from {found['since']} to {found['until']}"
    words = f"{found['num_ms'] / 3_600_000:,.2f} GPU hours in {hours_words}."
    if found["num_open_hours"]:
        words += f" {found['num_open_hours']:,} of them may still change: hosts may report about them."
    return words if found["is_whole"] else f"{words} Smaller sums are left out: --limit shows more."


def _joined(item: Document) -> dict[str, Any]:
    """Return an entry as a row: without the time of each GPU, and lists as words."""
    shown = {name: value for name, value in item.items() if name != "gpu_ms"}
    return {name: " ".join(map(str, value)) if isinstance(value, list) else value for name, value in shown.items()}
