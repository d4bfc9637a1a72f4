"""``muster key``."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

import typer

from muster.cli.framework.durations import seconds_of
from muster.cli.framework.field_help import field_help
from muster.cli.framework.list_options import ActiveOption, NamePart, OldestFirst, RoleOption
from muster.cli.framework.names import KeyId, NodeOption, TenantOption, node_named, tenant_named
from muster.cli.framework.output import Done, DryRun, Listing, Page, age, changes, moment_of, reads
from muster.cli.framework.profile import open_client
from muster.cli.framework.tables import Column, Document
from muster.documents import NewKey

app = typer.Typer(help="API keys: create, list, revoke.", no_args_is_help=True)


def _state(key: Document) -> str:
    if key["revoked_at"]:
        return "revoked"
    is_over = key["expires_at"] is not None and datetime.fromisoformat(key["expires_at"]) <= datetime.now(UTC)
    return "expired" if is_over else "open"


def _expiry(key: Document) -> str:
    return "never" if key["expires_at"] is None else moment_of(key["expires_at"])


COLUMNS: Final = (
    Column("KEY", lambda key: key["id"]),
    Column("NAME", lambda key: key["name"], is_text=True),
    Column("ROLE", lambda key: key["role"]),
    Column("STATE", _state),
    Column("USED", lambda key: age(key["last_used_at"])),
    Column("PREFIX", lambda key: key["prefix"], only_wide=True),
    Column("FOR", lambda key: key["tenant_id"] or key["node_id"], only_wide=True),
    Column("EXPIRES", _expiry, only_wide=True),
)


@changes(app, "create", example="muster key create --name ci --role tenant_member --tenant acme --expires 90d > ci.key")
def create(
    name: Annotated[str, typer.Option(help=field_help("NewApiKey.name"))],
    role: Annotated[
        str, typer.Option(help=field_help("role", "tenant_member, tenant_admin, operator, auditor or node."))
    ],
    tenant: TenantOption = None,
    node: NodeOption = None,
    expires: Annotated[
        str | None,
        typer.Option(help=field_help("expires_at", "Such as 90d; without it the key does not expire.")),
    ] = None,
    *,
    dry_run: DryRun = False,
) -> Done:
    """Make a key. Its token is shown once, so the request is never repeated."""
    seconds = seconds_of(expires, "--expires")
    with open_client(as_operator=True) as client:
        wanted: NewKey = {
            "name": name,
            "role": role,
            "tenant_id": None if tenant is None else tenant_named(client, tenant),
            "node_id": None if node is None else node_named(client, node),
        }
        if seconds is not None:
            wanted["expires_at"] = (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()
        try:
            key = client.create_key(wanted, dry_run=dry_run)
        except KeyboardInterrupt:
            words = "Interrupted: the key may have been made, and its token is lost."
            typer.echo(f"{words} `muster key list` shows it, `muster key revoke` closes it.", err=True)
            raise
    if dry_run:
        return Done(key, "")
    note = f"{key['id']} ({key['role']}): keep the token above, it is not shown again"
    return Done(key, key["token"], note)


@reads(app, "list", example="muster key list --wide")
def list_keys(
    name: NamePart = None,
    role: RoleOption = None,
    tenant: TenantOption = None,
    *,
    is_active: ActiveOption = None,
    oldest_first: OldestFirst = False,
) -> Listing:
    """List keys, the newest first; never their tokens."""
    with open_client(as_operator=True) as client:
        tenant_id = None if tenant is None else tenant_named(client, tenant)
        order = "oldest" if oldest_first else None
        found = client.keys(name=name, role=role, tenant_id=tenant_id, active=is_active, order=order)
    return Listing(found, COLUMNS, "No keys.")


@reads(app, "show", example="muster key show key_…")
def show(key_id: KeyId) -> Page:
    """Show one key: its owner, its rights, and its last use."""
    with open_client(as_operator=True) as client:
        key = client.key(key_id)
    whose = key["tenant_id"] or key["node_id"] or "the whole fleet"
    said = [
        f"{key['id']}  {key['name']}  {_state(key)}",
        f"  {key['role']} of {whose}, begins with {key['prefix']}",
        f"  made {age(key['created_at'])} ago, last used {_ago(key['last_used_at'])}",
        f"  expires {_expiry(key)}",
    ]
    return Page(key, said)


@changes(app, "revoke", example="muster key revoke key_…")
def revoke(key_id: KeyId, *, dry_run: DryRun = False) -> Done:
    """Revoke a key: from now on it opens nothing."""
    with open_client(as_operator=True) as client:
        key = client.revoke_key(key_id, dry_run=dry_run)
    return Done(key, f"{key['id']} is revoked")


def _ago(moment: str | None) -> str:
    return "never" if moment is None else f"{age(moment)} ago"
