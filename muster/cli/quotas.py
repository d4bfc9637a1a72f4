"""``muster tenant quota``."""

from typing import Annotated, Final

import typer

from muster.cli.names import TenantName, tenant_named
from muster.cli.output import Done, DryRun, Listing, age, changes, reads
from muster.cli.profile import open_client
from muster.cli.tables import Column

app = typer.Typer(help="Quotas: how many GPUs a tenant may hold in a tier.", no_args_is_help=True)
COLUMNS: Final = (
    Column("TIER", lambda item: item["tier"]),
    Column("CEILING", lambda item: item["ceiling_gpus"]),
    Column("SET", lambda item: age(item["updated_at"]), only_wide=True),
)


@changes(app, "set", example="muster tenant quota set acme spot 16 --reason 'their contract'")
def set_quota(
    tenant: TenantName,
    tier: Annotated[str, typer.Argument(help="Such as on_demand.")],
    ceiling: Annotated[int, typer.Argument(min=0, help="GPUs; one below what is held stops nothing.")],
    reason: Annotated[str, typer.Option(help="Why; it stands in the audit.")],
    *,
    dry_run: DryRun = False,
) -> Done:
    """From now on no placement passes it."""
    with open_client(as_operator=True) as client:
        quota = client.set_quota(tenant_named(client, tenant), tier, ceiling, reason, dry_run=dry_run)
    return Done(quota, f"{quota['tenant_id']}: {quota['ceiling_gpus']} GPUs in the tier {quota['tier']}")


@reads(app, "list", example="muster tenant quota list acme")
def list_quotas(tenant: TenantName) -> Listing:
    """A tenant's ceilings; a tier that is not listed has none."""
    with open_client(as_operator=True) as client:
        return Listing(client.quotas(tenant_named(client, tenant)), COLUMNS, "No ceilings are set.")
