"""``muster breaker``."""

from typing import Annotated

import typer

from muster.cli.output import AsJson, age, print_json, print_table, say_consequences
from muster.cli.profile import open_client
from muster.client.rest import RestClient

app = typer.Typer(help="The circuit breaker: how much rules have taken out.", no_args_is_help=True)


@app.command("list")
def list_breakers(*, as_json: AsJson = False) -> None:
    """Its scopes: open ones first, then the fullest."""
    with open_client(as_operator=True) as client:
        found = client.breakers()
    if as_json:
        print_json(found)
        return
    rows = [
        (
            breaker["name"],
            scope["scope"],
            "OPEN" if scope["is_open"] else "closed",
            f"{scope['num_quarantined']} of {scope['cap']}",
            age(scope["opened_at"]) if scope["is_open"] else "",
        )
        for breaker in found
        for scope in breaker["scopes"]
    ]
    print_table(("BREAKER", "SCOPE", "STATE", "OUT", "SINCE"), rows, empty="There are no breakers.")


@app.command("close")
def close(
    scope: Annotated[str, typer.Argument(help="An open one, or as much of it as names one: cohort.")],
    reason: Annotated[str, typer.Option(help="Why rules may act there again.")],
    breaker: Annotated[str, typer.Option(help="Which breaker.")] = "quarantine",
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it would do, and do nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Let rules act in a scope again. Moves that waited for it are made within a minute."""
    with open_client(as_operator=True) as client:
        found = client.close_breaker(breaker, _named(client, breaker, scope), reason, dry_run=dry_run)
    if as_json:
        print_json(found)
    elif dry_run:
        say_consequences(found)
    else:
        typer.echo(f"{breaker} is closed in {scope}")


def _named(client: RestClient, breaker: str, text: str) -> str:
    """The scope of that name, or the open one that ``text`` begins; else ``text``: the API says what is wrong."""
    scopes = [scope for each in client.breakers() if each["name"] == breaker for scope in each["scopes"]]
    if text in {scope["scope"] for scope in scopes}:
        return text
    found = [str(scope["scope"]) for scope in scopes if scope["is_open"] and scope["scope"].startswith(text)]
    return found[0] if len(found) == 1 and text else text
