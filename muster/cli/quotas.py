"""``muster tenant quota``."""

from typing import Annotated

import typer

from muster.cli.output import AsJson, print_json, print_table
from muster.cli.profile import open_client

app = typer.Typer(help="Quotas: how many GPUs a tenant may hold in a tier.", no_args_is_help=True)
TenantId = Annotated[str, typer.Argument(help="ten_…")]


@app.command("set")
def set_quota(
    tenant: TenantId,
    tier: Annotated[str, typer.Argument(help="Such as on_demand.")],
    ceiling: Annotated[int, typer.Argument(min=0, help="GPUs; one below what is held stops nothing.")],
    reason: Annotated[str, typer.Option(help="Why; it stands in the audit.")],
    *,
    as_json: AsJson = False,
) -> None:
    """From now on no placement passes it."""
    with open_client(as_operator=True) as client:
        quota = client.set_quota(tenant, tier, ceiling, reason)
    if as_json:
        print_json(quota)
    else:
        typer.echo(f"{quota['tenant_id']}: {quota['ceiling_gpus']} GPUs in the tier {quota['tier']}")


@app.command("list")
def list_quotas(tenant: TenantId, *, as_json: AsJson = False) -> None:
    """A tenant's ceilings; a tier that is not listed has none."""
    with open_client() as client:
        found = client.quotas(tenant)
    if as_json:
        print_json(found)
    else:
        rows = [(item["tier"], item["ceiling_gpus"]) for item in found]
        print_table(("TIER", "CEILING"), rows, empty="No ceilings are set.")
