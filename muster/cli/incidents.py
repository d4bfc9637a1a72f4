"""``muster incident``."""

import textwrap
from itertools import islice
from typing import Annotated, Any, Final, Literal

import typer

from muster.cli.output import AsJson, age, print_json, print_table, say_consequences
from muster.cli.profile import open_client

app = typer.Typer(help="Incidents: what wants a person.", no_args_is_help=True)

State = Literal["open", "closed", "all"]
WIDTH: Final = 78
SUBJECT_WIDTH: Final = 20


@app.command("list")
def list_incidents(
    state: Annotated[State, typer.Option(help="open, closed or all.")] = "open",
    kind: Annotated[list[str] | None, typer.Option(help="Such as judge_failed; may be repeated.")] = None,
    about: Annotated[str | None, typer.Option(help="The id of a GPU, job, tenant, … in full.")] = None,
    limit: Annotated[int, typer.Option(min=1)] = 20,
    *,
    as_json: AsJson = False,
) -> None:
    """The newest first."""
    filters = {"state": None if state == "all" else state, "kind": kind, "subject": about}
    with open_client(as_operator=True) as client:
        found = list(islice(client.incidents(**filters, limit=min(limit, 200)), limit))
    if as_json:
        print_json(found)
        return
    rows = [
        (item["id"], item["kind"], _short(item["subject_id"]), age(item["opened_at"]) if _is_open(item) else "closed")
        for item in found
    ]
    empty = "No incident is open." if state == "open" else "There are no such incidents."
    print_table(("INCIDENT", "KIND", "ABOUT", "AGE"), rows, empty=empty)


@app.command("show")
def show(incident_id: Annotated[str, typer.Argument(help="inc_…")], *, as_json: AsJson = False) -> None:
    """What happened, and how it closes."""
    with open_client(as_operator=True) as client:
        item = client.incident(incident_id)
    if as_json:
        print_json(item)
        return
    typer.echo(f"{item['id']}  {item['kind']}  {item['state']}")
    _say(item["summary"])
    _say(f"about {item['subject_type']} {item['subject_id']}, opened {age(item['opened_at'])} ago")
    if _is_open(item):
        _say(item["closes"] or f"Close it with `muster incident close {item['id']} --reason …`.")
    else:
        _say(f"closed by {item['closed_by']} {age(item['closed_at'])} ago: {item['close_reason'] or 'no reason given'}")


@app.command("close")
def close(
    incident_id: Annotated[str, typer.Argument(help="inc_…")],
    reason: Annotated[str, typer.Option(help="What was done about it.")],
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it would do, and do nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say that it is seen to. What a rule closes is refused, with the way to close it."""
    with open_client(as_operator=True) as client:
        item = client.close_incident(incident_id, reason, dry_run=dry_run)
    if as_json:
        print_json(item)
    elif dry_run:
        say_consequences(item)
    else:
        typer.echo(f"{item['id']} is closed")


def _is_open(item: dict[str, Any]) -> bool:
    return bool(item["state"] == "open")


def _short(subject_id: str) -> str:
    """What fits beside the rest in 80 columns; ``show`` names it in full."""
    return subject_id if len(subject_id) <= SUBJECT_WIDTH else f"{subject_id[:14]}..{subject_id[-4:]}"


def _say(words: str) -> None:
    typer.echo(textwrap.fill(words, WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False))
