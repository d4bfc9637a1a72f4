"""``muster route``."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.field_help import field_help, parameter_help
from muster.cli.framework.names import TenantOption, tenant_named
from muster.cli.framework.output import Done, DryRun, Listing, Page, age, changes, reads
from muster.cli.framework.profile import open_client
from muster.cli.framework.tables import Column
from muster.documents import NewNotificationRoute, NotificationRouteChange, RouteTarget

if TYPE_CHECKING:
    from muster.client.rest import RestClient

app = typer.Typer(help="Routes: where notifications go, by webhook, mail, Slack or pager.", no_args_is_help=True)


def _state(route: Any) -> str:
    if route["off_reason"] is not None:
        return f"off: {route['off_reason']}"
    return f"away, {route['num_failures']} tries" if route["num_failures"] else "on"


COLUMNS: Final = (
    Column("NAME", lambda route: route["name"], is_text=True),
    Column("KIND", lambda route: route["kind"]),
    Column("TO", lambda route: route["target"], is_text=True),
    Column("EVENTS", lambda route: ", ".join(route["kinds"]), is_text=True),
    Column("STATE", _state),
    Column("LEAST", lambda route: route["least"], only_wide=True),
    Column("TENANT", lambda route: route["tenant_id"] or "operators", only_wide=True),
    Column("ROUTE", lambda route: route["id"], only_wide=True),
)
SENT_COLUMNS: Final = (
    Column("CREATED", lambda row: age(row["created_at"])),
    Column("STATE", lambda row: row["state"]),
    Column("TRIES", lambda row: row["num_tries"]),
    Column("TITLE", lambda row: row["title"], is_text=True),
    Column("NEWEST TRY", lambda row: row["last_words"] or "none yet", is_text=True),
    Column("NOTIFICATION", lambda row: row["id"]),
)
RouteName = Annotated[str, typer.Argument(metavar="NAME", help=parameter_help("route_id"))]
Events = Annotated[list[str] | None, typer.Option("--event", help=field_help("NewRoute.kinds", "May be repeated."))]
Least = Annotated[Literal["page", "ticket", "info"] | None, typer.Option(help=field_help("NewRoute.least"))]
_ONE_RECEIVER: Final = "Name one: --webhook URL, --email ADDRESS, --slack-file, --pagerduty-file or --alertmanager URL."


@dataclass(frozen=True, slots=True)
class ReceiverOptions:
    """The options of which one names the receiver."""

    webhook: Annotated[str | None, typer.Option(metavar="URL", help="An address that takes signed webhooks.")] = None
    email: Annotated[list[str] | None, typer.Option(metavar="ADDRESS", help="A mail address. May be repeated.")] = None
    slack_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A file with the address of a Slack webhook, which is a secret; - for standard input."
        ),
    ] = None
    pagerduty_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A file with a routing key of PagerDuty; - for standard input.")
    ] = None
    alertmanager: Annotated[str | None, typer.Option(metavar="URL", help="The base address of an Alertmanager.")] = None

    def target(self) -> RouteTarget | None:
        """Return the one receiver that is named, if any is. Raises ``CommandError``: several are."""
        given = (self.webhook, self.email, self.slack_file, self.pagerduty_file, self.alertmanager)
        if sum(each is not None for each in given) > 1:
            raise CommandError("several receivers are named", f"{_ONE_RECEIVER} Make a route for each.", Exit.USAGE)
        if self.webhook is not None:
            return {"kind": "webhook", "url": self.webhook}
        if self.email is not None:
            return {"kind": "email", "to": self.email}
        if self.slack_file is not None:
            return {"kind": "slack", "url": _secret_in(self.slack_file)}
        if self.pagerduty_file is not None:
            return {"kind": "pagerduty", "routing_key": _secret_in(self.pagerduty_file)}
        return None if self.alertmanager is None else {"kind": "alertmanager", "url": self.alertmanager}


def _secret_in(file: Path) -> str:
    try:
        return (sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")).strip()
    except (OSError, UnicodeDecodeError) as fault:
        words = fault.strerror if isinstance(fault, OSError) else "it is no text"
        raise CommandError(f"{file} cannot be read: {words}", "Name a file with the one line.", Exit.USAGE) from fault


@changes(app, "create", example="muster route create team-mail --email team@example.org")
def create(
    name: RouteName,
    receiver: ReceiverOptions,
    event: Events = None,
    least: Least = None,
    tenant: TenantOption = None,
    *,
    dry_run: DryRun = False,
) -> Done:
    """Create a route: it takes events from now on. The secret that signs webhooks is shown once."""
    target = receiver.target()
    if target is None:
        raise CommandError("no receiver is named", _ONE_RECEIVER, Exit.USAGE)
    with open_client() as client:
        wanted: NewNotificationRoute = {"name": name, "target": target, "kinds": event or []}
        if least is not None:
            wanted["least"] = least
        if tenant is not None:
            wanted["tenant_id"] = tenant_named(client, tenant)
        route = client.create_notification_route(wanted, dry_run=dry_run)
    return Done(route, _stated(route, "created"))


@reads(app, "list", example="muster route list")
def list_routes(tenant: TenantOption = None) -> Listing:
    """List routes, the operators' first, with what each takes and whether its receiver answers."""
    with open_client() as client:
        of_tenant = None if tenant is None else tenant_named(client, tenant)
        return Listing(
            client.notification_routes(tenant_id=of_tenant), COLUMNS, "No routes. `muster route create` makes one."
        )


@changes(app, "change", example="muster route change team-mail --event job.failed")
def change(
    name: RouteName,
    receiver: ReceiverOptions,
    event: Events = None,
    least: Least = None,
    tenant: TenantOption = None,
    *,
    new_secret: Annotated[
        bool, typer.Option("--new-secret", help="Sign webhooks by a new secret too, which is shown once.")
    ] = False,
    dry_run: DryRun = False,
) -> Done:
    """Change a route, which turns it on. What is not named stays."""
    wanted: NotificationRouteChange = {"new_secret": new_secret}
    target = receiver.target()
    if target is not None:
        wanted["target"] = target
    if event is not None:
        wanted["kinds"] = event
    if least is not None:
        wanted["least"] = least
    with open_client() as client:
        route = client.change_notification_route(_route_named(client, name, tenant), wanted, dry_run=dry_run)
    return Done(route, _stated(route, "changed"))


@changes(app, "delete", example="muster route delete team-mail")
def delete(name: RouteName, tenant: TenantOption = None, *, dry_run: DryRun = False) -> Done:
    """Delete a route with its notifications."""
    with open_client() as client:
        route = client.delete_notification_route(_route_named(client, name, tenant), dry_run=dry_run)
    return Done(route, f"{route['name']} is deleted")


@changes(app, "test", example="muster route test team-mail")
def send_test(name: RouteName, tenant: TenantOption = None, *, dry_run: DryRun = False) -> Done:
    """Send a test over a route, as any event goes."""
    with open_client() as client:
        route = client.test_notification_route(_route_named(client, name, tenant), dry_run=dry_run)
    return Done(route, f"a test goes to {route['target']}: muster route sent {route['name']}")


@reads(app, "sent", example="muster route sent team-mail")
def sent(
    name: RouteName,
    state: Annotated[
        Literal["PENDING", "DELIVERED", "GIVEN_UP"] | None, typer.Option(help=parameter_help("state"))
    ] = None,
    tenant: TenantOption = None,
) -> Listing:
    """List what went out over a route, the newest first, with how the newest try ended."""
    with open_client() as client:
        found = client.notifications(_route_named(client, name, tenant), state=state)
        return Listing(found, SENT_COLUMNS, "Nothing yet. `muster route test` sends a test.")


@reads(app, "show", example="muster route show team-mail ntf_01j9z")
def show(
    name: RouteName,
    notification: Annotated[str, typer.Argument(metavar="NOTIFICATION", help=parameter_help("notification_id"))],
    tenant: TenantOption = None,
) -> Page:
    """Show one notification with its text and each try."""
    with open_client() as client:
        found = client.notification(_route_named(client, name, tenant), notification)
    tries = [f"  {one['at']}  {one['outcome']} in {one['took_ms']} ms: {one['words']}" for one in found["tries"]]
    text = found["text"].split("\n")
    lines = [found["title"], *text, f"{found['state']} after {found['num_tries']} tries", *tries]
    return Page(found, lines)


@changes(app, "resend", example="muster route resend team-mail ntf_01j9z")
def resend(
    name: RouteName,
    notification: Annotated[str, typer.Argument(metavar="NOTIFICATION", help=parameter_help("notification_id"))],
    tenant: TenantOption = None,
    *,
    dry_run: DryRun = False,
) -> Done:
    """Send a notification again, with the same id."""
    with open_client() as client:
        found = client.resend_notification(_route_named(client, name, tenant), notification, dry_run=dry_run)
    return Done(found, f"{found['id']} is sent again")


def _stated(route: Any, what: str) -> str:
    """Return the answer to a new or changed route, with a new secret. ``what``: became of it."""
    secret = route.get("secret")
    shown = "" if secret is None else f"\nIts webhooks are signed by this secret, which is not shown again:\n{secret}"
    return f"{route['name']} is {what}: {', '.join(route['kinds'])} to {route['target']}{shown}"


def _route_named(client: "RestClient", name: str, tenant: str | None) -> str:
    """Return the id of a route by its name or id. Raises ``CommandError``: there is none, or there are several."""
    if name.startswith("rte_"):
        return name
    of_tenant = None if tenant is None else tenant_named(client, tenant)
    routes = list(client.notification_routes(tenant_id=of_tenant))
    found = [route for route in routes if route["name"] == name]
    if len(found) == 1:
        return found[0]["id"]
    if found:
        raise CommandError(f"several owners have a route {name}", "Name its tenant by --tenant, or its id.", Exit.USAGE)
    names = ", ".join(sorted({route["name"] for route in routes})) or "none"
    raise CommandError(
        f"there is no route {name}; there is: {names}", "`muster route list` lists them.", Exit.NOT_FOUND
    )
