"""``muster breaker``."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from muster.cli.framework.field_help import field_help, parameter_help
from muster.cli.framework.output import Done, DryRun, Listing, age, changes, reads
from muster.cli.framework.profile import open_client
from muster.cli.framework.tables import Column

if TYPE_CHECKING:
    from muster.client.rest import RestClient

app = typer.Typer(help="The circuit breaker: how much rules have taken out.", no_args_is_help=True)
COLUMNS: Final = (
    Column("BREAKER", lambda item: item["breaker"]),
    Column("SCOPE", lambda item: item["scope"], is_text=True),
    Column("STATE", lambda item: "OPEN" if item["is_open"] else "closed"),
    Column("OUT", lambda item: f"{item['num_quarantined']} of {item['cap']}"),
    Column("PROPOSED", lambda item: str(item.get("num_proposed", ""))),  # a server of the release before sends none
    Column("SINCE", lambda item: age(item["opened_at"]) if item["is_open"] else ""),
)


@reads(app, "list", example="muster breaker list")
def list_breakers() -> Listing:
    """List the breaker's scopes: open ones first, then the fullest."""
    with open_client(as_operator=True) as client:
        found = client.breakers()
    scopes = [{"breaker": breaker["name"], **scope} for breaker in found for scope in breaker["scopes"]]
    return Listing(scopes, COLUMNS, "There are no breakers.")


@changes(app, "close", example="muster breaker close cohort --reason 'the driver is rolled back'")
def close(
    scope: Annotated[str, typer.Argument(help=field_help("BreakerClosing.scope"))],
    reason: Annotated[str, typer.Option(help=field_help("BreakerClosing.reason"))],
    breaker: Annotated[str, typer.Option(help=parameter_help("close_breaker.name"))] = "quarantine",
    *,
    dry_run: DryRun = False,
) -> Done:
    """Let rules act in a scope again. Transitions that waited for it are applied within a minute."""
    with open_client(as_operator=True) as client:
        found = client.close_breaker(breaker, _named(client, breaker, scope), reason, dry_run=dry_run)
    return Done(found, f"{breaker} is closed in {scope}")


def _named(client: "RestClient", breaker: str, text: str) -> str:
    """Return the scope of that name, or the open one that ``text`` begins; else ``text``, which the API then
    refuses.
    """
    scopes = [scope for each in client.breakers() if each["name"] == breaker for scope in each["scopes"]]
    if text in {scope["scope"] for scope in scopes}:
        return text
    found = [str(scope["scope"]) for scope in scopes if scope["is_open"] and scope["scope"].startswith(text)]
    return found[0] if len(found) == 1 and text else text
