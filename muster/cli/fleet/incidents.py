"""``muster incident``."""

from itertools import islice
from typing import Annotated, Final, Literal

import typer

from muster.cli.framework.field_help import field_help, parameter_help
from muster.cli.framework.list_options import Limit, WithinOptions
from muster.cli.framework.names import IncidentId
from muster.cli.framework.output import Done, DryRun, Listing, Page, age, changes, reads
from muster.cli.framework.profile import open_client
from muster.cli.framework.tables import Column, Document

app = typer.Typer(help="Incidents: what needs attention.", no_args_is_help=True)

State = Literal["open", "closed", "all"]
SUBJECT_WIDTH: Final = 18
COLUMNS: Final = (
    Column("INCIDENT", lambda item: item["id"]),
    Column("KIND", lambda item: item["kind"]),
    Column("ABOUT", lambda item: _short(item["subject_id"]), wide=lambda item: item["subject_id"]),
    Column("AGE", lambda item: age(item["opened_at"]) if _is_open(item) else "closed"),
    Column("SUMMARY", lambda item: item["summary"], only_wide=True),
    Column("TO DO", lambda item: item.get("to_do"), only_wide=True),  # 0.1.0 sends none
)


@reads(app, "list", example="muster incident list --state all --watch")
def list_incidents(
    within: WithinOptions,
    state: Annotated[State, typer.Option(help=parameter_help("state", "open, closed or all."))] = "open",
    kind: Annotated[
        list[str] | None, typer.Option(help=parameter_help("kind", "Such as judge_failed; may be repeated."))
    ] = None,
    about: Annotated[str | None, typer.Option(help=parameter_help("list_incidents.subject"))] = None,
    limit: Limit = 20,
) -> Listing:
    """List incidents, the newest first."""
    wanted = None if state == "all" else state
    with open_client(as_operator=True) as client:
        asked = client.incidents(state=wanted, kind=kind, subject=about, limit=min(limit, 200), **within.query())
        found = list(islice(asked, limit))
    return Listing(found, COLUMNS, "No incident is open." if state == "open" else "There are no such incidents.")


@reads(app, "show", example="muster incident show inc_…")
def show(incident_id: IncidentId) -> Page:
    """Show what happened, and how the incident closes."""
    with open_client(as_operator=True) as client:
        item = client.incident(incident_id)
    said = [
        f"{item['id']}  {item['kind']}  {item['state']}",
        f"  {item['summary']}",
        f"  about {item['subject_type']} {item['subject_id']}, opened {age(item['opened_at'])} ago",
    ]
    if _is_open(item):
        way = f"Close it with `muster incident close {item['id']} --reason …`."
        said += [f"  {words}" for words in (item.get("to_do"), item["closes"] or way) if words]  # 0.1.0 sends no to_do
    else:
        why = item["close_reason"] or "no reason given"
        said.append(f"  closed by {item['closed_by']} {age(item['closed_at'])} ago: {why}")
    return Page(item, said)


@changes(app, "close", example="muster incident close inc_… --reason 'the host has torch again'")
def close(
    incident_id: IncidentId,
    reason: Annotated[str, typer.Option(help=field_help("IncidentClosing.reason"))],
    *,
    dry_run: DryRun = False,
) -> Done:
    """Close an incident that a person has handled. One that a rule closes is refused, with the way to close it."""
    with open_client(as_operator=True) as client:
        item = client.close_incident(incident_id, reason, dry_run=dry_run)
    return Done(item, f"{item['id']} is closed")


def _is_open(item: Document) -> bool:
    return bool(item["state"] == "open")


def _short(subject_id: str) -> str:
    """Return a subject shortened to fit into 80 columns; ``show`` and ``--wide`` print it in full."""
    return subject_id if len(subject_id) <= SUBJECT_WIDTH else f"{subject_id[:12]}..{subject_id[-4:]}"
