"""``muster tenant budget``."""

from typing import Annotated, Any

import typer

from muster.cli.framework.field_help import field_help
from muster.cli.framework.moments import moment_in
from muster.cli.framework.names import TenantName, tenant_named
from muster.cli.framework.output import Done, DryRun, Page, changes, moment_of, reads
from muster.cli.framework.profile import open_client

app = typer.Typer(help="Budgets: how much a tenant may spend, and what follows then.", no_args_is_help=True)


@reads(app, "show", example="muster tenant budget show acme")
def show(tenant: TenantName) -> Page:
    """Show a tenant's budget and what is spent of it."""
    with open_client() as client:
        found = client.tenant_budget(tenant_named(client, tenant))
    return Page(found, _lines(found))


@changes(app, "set", example="muster tenant budget set acme 25000 --action no_new_jobs --reason 'contract of 2027'")
def set_budget(
    tenant: TenantName,
    amount: Annotated[str, typer.Argument(help=field_help("NewTenantBudget.amount"))],
    reason: Annotated[str, typer.Option(help=field_help("reason"))],
    action: Annotated[str, typer.Option(help=field_help("NewTenantBudget.action"))] = "notify",
    until: Annotated[str | None, typer.Option(help=field_help("NewTenantBudget.ends_at"))] = None,
    notice: Annotated[list[int] | None, typer.Option(help=field_help("NewTenantBudget.shares"))] = None,
    *,
    dry_run: DryRun = False,
) -> Done:
    """Set a tenant's budget for each month, or until a time. It counts all below the tenant too."""
    ends_at = None if until is None else moment_in(until, "--until")
    with open_client(as_operator=True) as client:
        found = client.set_tenant_budget(
            tenant_named(client, tenant),
            amount,
            reason,
            action=action,
            shares=notice or (50, 80, 100),
            ends_at=ends_at,
            dry_run=dry_run,
        )
    note = "it is spent already: its action holds from now on" if found["is_spent"] else ""
    return Done(found, "; ".join(_lines(found)), note)


@changes(app, "lift", example="muster tenant budget lift acme --reason 'the month is paid'")
def lift(
    tenant: TenantName, reason: Annotated[str, typer.Option(help=field_help("reason"))], *, dry_run: DryRun = False
) -> Done:
    """End a tenant's budget: it refuses and stops nothing more. Jobs that it held are released one by one."""
    with open_client(as_operator=True) as client:
        found = client.lift_tenant_budget(tenant_named(client, tenant), reason, dry_run=dry_run)
    return Done(found, f"the budget of {found['amount']} {found['currency']} counts no more")


def _lines(found: Any) -> list[str]:
    money, until = found["currency"], moment_of(found["ends_at"])
    lines = [f"{found['spent']} of {found['amount']} {money} are spent ({found['share']} %), until {until}"]
    shares = ", ".join(f"{share} %" for share in found["shares"])
    lines.append(f"once it is spent: {found['action']}; notices at {shares or '100 %'}")
    if float(found["unpriced_gpu_hours"]):
        lines.append(f"{float(found['unpriced_gpu_hours']):,.2f} GPU-hours have no price and count for nothing")
    if found["fault"]:
        lines.append(f"it is not judged: {found['fault']}")
    return lines
