"""``muster tenant``."""

from typing import Annotated, Final

import typer

from muster.cli import quotas
from muster.cli.output import Done, DryRun, Listing, age, changes, reads
from muster.cli.pending import once
from muster.cli.profile import open_client
from muster.cli.tables import Column

app = typer.Typer(help="Tenants and their quotas.", no_args_is_help=True)
app.add_typer(quotas.app, name="quota")
COLUMNS: Final = (
    Column("TENANT", lambda item: item["id"]),
    Column("NAME", lambda item: item["name"], is_text=True),
    Column("AGE", lambda item: age(item["created_at"])),
)


@changes(app, "create", example="muster tenant create acme")
def create(
    name: Annotated[str, typer.Argument(help="Small letters, digits and . _ -.")], *, dry_run: DryRun = False
) -> Done:
    """A new tenant."""
    with open_client(as_operator=True) as client:
        if dry_run:
            return Done(client.create_tenant(name, dry_run=True), "")
        tenant = once(
            ["tenant", name],
            {"name": name},
            lambda body, key: client.create_tenant(body["name"], idempotency_key=key),
            what="the tenant",
        )
    return Done(tenant, f"{tenant['id']}  {tenant['name']}")


@reads(app, "list", example="muster tenant list")
def list_tenants() -> Listing:
    """The tenants that this key sees."""
    with open_client(as_operator=True) as client:
        return Listing(client.tenants(), COLUMNS, "No tenants. `muster tenant create NAME` makes one.")
