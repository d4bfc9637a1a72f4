"""``muster tenant``."""

from typing import Annotated, Final

import typer

from muster.cli.admin import budgets, quotas, residency
from muster.cli.framework.field_help import field_help, parameter_help
from muster.cli.framework.list_options import NameOrder, NamePart
from muster.cli.framework.names import TenantName, tenant_named
from muster.cli.framework.output import Done, DryRun, Listing, Page, age, changes, reads
from muster.cli.framework.pending import once
from muster.cli.framework.profile import open_client
from muster.cli.framework.tables import Column

app = typer.Typer(help="Tenants and their quotas.", no_args_is_help=True)
app.add_typer(quotas.app, name="quota")
app.add_typer(budgets.app, name="budget")
app.add_typer(residency.app, name="residency")
COLUMNS: Final = (
    Column("TENANT", lambda item: item["id"]),
    Column("NAME", lambda item: item["name"], is_text=True),
    Column("UNDER", lambda item: item["parent_id"] or "-", only_wide=True),
    Column("WEIGHT", lambda item: f"{item['weight']:g}", only_wide=True),
    Column("RESIDENCY", lambda item: residency.words_of(item.get("residency")), is_text=True, only_wide=True),
    Column("AGE", lambda item: age(item["created_at"])),
)

LIMIT_COLUMNS: Final = (
    Column("LIMIT", lambda item: item["field"]),
    Column("USED", lambda item: f"{item['used']:,}"),
    Column("MOST", lambda item: f"{item['most']:,}"),
)


@changes(app, "create", example="muster tenant create acme")
def create(
    name: Annotated[str, typer.Argument(help=field_help("name", "Small letters, digits and . _ -."))],
    *,
    dry_run: DryRun = False,
) -> Done:
    """Create a tenant."""
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


@changes(app, "place", example="muster tenant place vision --under research --weight 2 --reason 'their share'")
def place(
    tenant: TenantName,
    reason: Annotated[str, typer.Option(help=field_help("reason"))],
    under: Annotated[str | None, typer.Option(help=field_help("TenantPlace.parent_id"))] = None,
    weight: Annotated[float, typer.Option(min=0.001, help=field_help("TenantPlace.weight"))] = 1.0,
    *,
    dry_run: DryRun = False,
) -> Done:
    """Put a tenant, with all below it, under another one, and set its weight there."""
    with open_client(as_operator=True) as client:
        parent_id = None if under is None else tenant_named(client, under)
        placed = client.place_tenant(
            tenant_named(client, tenant), parent_id=parent_id, weight=weight, reason=reason, dry_run=dry_run
        )
    where = f"under {placed['parent_id']}" if placed["parent_id"] else "under no tenant"
    return Done(placed, f"{placed['id']}: {where}, of weight {placed['weight']:g}")


@reads(app, "list", example="muster tenant list")
def list_tenants(
    name: NamePart = None,
    parent: Annotated[str | None, typer.Option(help=parameter_help("parent_id", "Its name or ten_…."))] = None,
    order: NameOrder = "name",
) -> Listing:
    """List the tenants that this key sees."""
    with open_client(as_operator=True) as client:
        parent_id = None if parent is None else tenant_named(client, parent)
        found = client.tenants(name=name, parent_id=parent_id, order=order)
    none = "No tenants. `muster tenant create NAME` makes one."
    return Listing(found, COLUMNS, none if name is None and parent is None else "No tenant is like that.")


@reads(app, "show", example="muster tenant show acme")
def show(tenant: TenantName) -> Page:
    """Show a tenant: its place, its residency rule, and what is outside of that rule now."""
    with open_client(as_operator=True) as client:
        found = client.tenant_residency(tenant_named(client, tenant))
        names = {each["id"]: each["name"] for each in client.tenants()}
    above = found["parent_id"]
    where = "under no tenant" if above is None else f"under {names.get(above, above)}"
    own = residency.words_of(found["residency"])
    lines = [f"{found['id']}  {found['name']}", f"{where}, of weight {found['weight']:g}"]
    if found["residency"] != found["holds"] and own != residency.words_of(found["holds"]):
        lines.append(f"its own rule: {own}; with those above it:")
    return Page(found, [*lines, *residency.lines_of(found)])


@reads(app, "limits", example="muster tenant limits acme")
def list_limits(tenant: TenantName) -> Listing:
    """List how many jobs and bytes a tenant has open, and how many the policy allows (`limits.tenant`)."""
    with open_client(as_operator=True) as client:
        return Listing(client.tenant_limits(tenant_named(client, tenant)), LIMIT_COLUMNS, "There are no limits.")
