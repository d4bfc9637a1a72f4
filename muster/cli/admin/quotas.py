"""``muster tenant quota``."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from muster.cli.framework.field_help import field_help, parameter_help
from muster.cli.framework.list_options import TierOption
from muster.cli.framework.names import TenantName, tenant_named
from muster.cli.framework.output import Done, DryRun, Listing, age, changes, reads
from muster.cli.framework.profile import open_client
from muster.cli.framework.tables import Column

app = typer.Typer(help="Quotas: how many GPUs a tenant may hold in a tier.", no_args_is_help=True)


def _limit(number: int | None) -> str:
    return "-" if number is None else str(number)


COLUMNS: Final = (
    Column("TIER", lambda item: item["tier"]),
    Column("GUARANTEED", lambda item: item["guaranteed_gpus"]),
    Column("BORROWABLE", lambda item: _limit(item["borrowable_gpus"])),
    Column("CEILING", lambda item: _limit(item["ceiling_gpus"])),
    Column("ASSIGNED", lambda item: item["assigned_gpus"]),
    Column("LENT", lambda item: item.get("lent_gpus", 0), only_wide=True),
    Column("SET", lambda item: age(item["updated_at"]), only_wide=True),
)


@changes(app, "set", example="muster tenant quota set acme spot 16 --guaranteed 8 --reason 'their contract'")
def set_quota(
    tenant: TenantName,
    tier: Annotated[str, typer.Argument(help=parameter_help("tier", "Such as on_demand."))],
    reason: Annotated[str, typer.Option(help=field_help("reason"))],
    ceiling: Annotated[
        int | None,
        typer.Argument(min=0, help=field_help("NewQuota.ceiling_gpus", "A lower limit than in use stops no job.")),
    ] = None,
    *,
    guaranteed: Annotated[int, typer.Option(min=0, help=field_help("NewQuota.guaranteed_gpus"))] = 0,
    borrowable: Annotated[int | None, typer.Option(min=0, help=field_help("NewQuota.borrowable_gpus"))] = None,
    dry_run: DryRun = False,
) -> Done:
    """Set all three numbers of a tenant with all below it; from now on no placement passes a limit."""
    with open_client(as_operator=True) as client:
        quota = client.set_quota(
            tenant_named(client, tenant),
            tier,
            ceiling,
            reason,
            guaranteed_gpus=guaranteed,
            borrowable_gpus=borrowable,
            dry_run=dry_run,
        )
    return Done(quota, f"{quota['tenant_id']}: {_limits_text(quota)} in the tier {quota['tier']}{_lent_text(quota)}")


def _lent_text(quota: Mapping[str, Any]) -> str:
    lent = quota.get("lent_gpus", 0)  # a server of 0.1.0 does not say
    if not lent:
        return ""
    back = "as these end or are reclaimed"
    return f"; {lent} of the guaranteed GPUs are in use by jobs of others now, and come back {back}"


def _limits_text(quota: Mapping[str, Any]) -> str:
    words = []
    if quota["guaranteed_gpus"]:
        words.append(f"{quota['guaranteed_gpus']} GPUs guaranteed")
    if quota["borrowable_gpus"] is not None:
        words.append(f"{quota['borrowable_gpus']} more to borrow")
    words.append("no ceiling" if quota["ceiling_gpus"] is None else f"at most {quota['ceiling_gpus']} GPUs")
    return ", ".join(words)


@reads(app, "list", example="muster tenant quota list acme")
def list_quotas(
    tenant: Annotated[
        str | None, typer.Argument(metavar="TENANT", help=parameter_help("tenant_id", "Without one, all."))
    ] = None,
    tier: TierOption = None,
) -> Listing:
    """List quotas, of one tenant or of all; a tier that is not listed has none. `-`: no limit.

    ASSIGNED: with all below it, now.
    """
    with open_client(as_operator=True) as client:
        tenant_id = None if tenant is None else tenant_named(client, tenant)
        found = client.all_quotas(tenant_id=tenant_id, tier=tier)
        names = {each["id"]: each["name"] for each in client.tenants()} if tenant is None else {}
    own = (Column("TENANT", lambda item: names.get(item["tenant_id"], item["tenant_id"])),) if tenant is None else ()
    return Listing(found, (*own, *COLUMNS), "No quotas are set.")
