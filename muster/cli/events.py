"""``muster event``."""

from typing import Annotated, Any

import typer

from muster.cli.output import AsJson, print_json
from muster.cli.profile import open_client

app = typer.Typer(help="Events: what happened, in order.", no_args_is_help=True)


@app.command("list")
def list_events(
    after: Annotated[int, typer.Option(min=0, help="Begin behind this position.")] = 0,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what happens next.")] = False,
    as_json: AsJson = False,
) -> None:
    """Events that this key sees, the oldest first; in a local stack those of GPUs and hosts too."""
    with open_client(as_operator=True) as client:
        position = after
        for event in client.events(after=after):
            position = event["position"]
            _say(event, as_json=as_json)
        if follow:
            for event in client.follow_events(after=position):
                _say(event, as_json=as_json)


def _say(event: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(event, indent=None)
        return
    why = event["payload"].get("reason") or event["payload"].get("cause") or ""
    typer.echo(f"{event['position']:>6}  {event['at'][:19]}  {event['kind']:<24} {event['subject_id']}  {why}".rstrip())
