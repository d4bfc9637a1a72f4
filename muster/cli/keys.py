"""``muster key`` and ``muster tenant``."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from muster.cli.durations import seconds_of
from muster.cli.output import AsJson, age, print_json, print_table
from muster.cli.profile import open_client

app = typer.Typer(help="API keys: create, list, revoke.", no_args_is_help=True)
tenants = typer.Typer(help="Tenants: create, list.", no_args_is_help=True)


@app.command("create")
def create(
    name: Annotated[str, typer.Option(help="What it is for.")],
    role: Annotated[str, typer.Option(help="tenant_member, tenant_admin, operator, auditor or node.")],
    tenant: Annotated[str | None, typer.Option(help="For a tenant's role.")] = None,
    node: Annotated[str | None, typer.Option(help="For the role node.")] = None,
    expires: Annotated[str | None, typer.Option(help="Such as 90d; without it the key does not expire.")] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Make a key. Its token is shown once."""
    seconds = seconds_of(expires)
    wanted: dict[str, Any] = {"name": name, "role": role, "tenant_id": tenant, "node_id": node}
    if seconds is not None:
        wanted["expires_at"] = (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()
    with open_client(as_operator=True) as client:
        key = client.create_key(wanted)
    if as_json:
        print_json(key)
        return
    typer.echo(key["token"])
    typer.echo(f"{key['id']} ({key['role']}): keep the token above, it is not shown again", err=True)


@app.command("list")
def list_keys(*, as_json: AsJson = False) -> None:
    """Keys, the newest first; never their tokens."""
    with open_client(as_operator=True) as client:
        found = client.keys()
    if as_json:
        print_json(found)
        return
    rows = [
        (key["id"], key["name"], key["role"], "revoked" if key["revoked_at"] else "open", age(key["last_used_at"]))
        for key in found
    ]
    print_table(("KEY", "NAME", "ROLE", "STATE", "USED"), rows, empty="No keys.")


@app.command("revoke")
def revoke(key_id: Annotated[str, typer.Argument(help="key_…")]) -> None:
    """From now on it opens nothing."""
    with open_client(as_operator=True) as client:
        key = client.revoke_key(key_id)
    typer.echo(f"{key['id']} is revoked")


@tenants.command("create")
def create_tenant(name: Annotated[str, typer.Argument()], *, as_json: AsJson = False) -> None:
    """A new tenant."""
    with open_client(as_operator=True) as client:
        tenant = client.create_tenant(name)
    if as_json:
        print_json(tenant)
    else:
        typer.echo(f"{tenant['id']}  {tenant['name']}")


@tenants.command("list")
def list_tenants(*, as_json: AsJson = False) -> None:
    """The tenants that this key sees."""
    with open_client(as_operator=True) as client:
        found = client.tenants()
    if as_json:
        print_json(found)
    else:
        print_table(("TENANT", "NAME"), [(item["id"], item["name"]) for item in found], empty="No tenants.")
