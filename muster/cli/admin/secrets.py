"""``muster secret``."""

import base64
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.field_help import field_help, parameter_help
from muster.cli.framework.list_options import NameOrder, NamePart
from muster.cli.framework.names import TenantOption, tenant_named
from muster.cli.framework.output import Done, DryRun, Listing, age, changes, reads
from muster.cli.framework.profile import open_client
from muster.cli.framework.tables import Column
from muster.documents import NewSecret, SecretValue

if TYPE_CHECKING:
    from muster.client.rest import RestClient

app = typer.Typer(help="Secrets of jobs: set, list, rotate, delete. No command shows a value.", no_args_is_help=True)
MOST_BYTES: Final = 64 << 10
COLUMNS: Final = (
    Column("NAME", lambda secret: secret["name"], is_text=True),
    Column("VERSION", lambda secret: secret["version"]),
    Column("CHANGED", lambda secret: age(secret["rotated_at"] or secret["created_at"])),
    Column("JOBS", lambda secret: ", ".join(secret["jobs"]) or "all", is_text=True),
    Column("BY", lambda secret: secret["created_by"], is_text=True, only_wide=True),
    Column("SECRET", lambda secret: secret["id"], only_wide=True),
    Column("TENANT", lambda secret: secret["tenant_id"], only_wide=True),
)
KEY_COLUMNS: Final = (
    Column("KEY", lambda key: key["key_id"], is_text=True),
    Column("STATE", lambda key: "active" if key["is_active"] else "kept" if key["is_usable"] else "missing"),
    Column("VALUES", lambda key: key["num_values"]),
)
SecretName = Annotated[str, typer.Argument(metavar="NAME", help=parameter_help("secret_id"))]
NoValue = Annotated[str | None, typer.Argument(hidden=True)]
ValueFile = Annotated[
    Path | None,
    typer.Option("--file", help="A file with the value; - for standard input. Without it you are asked for it."),
]


@changes(app, "set", example="muster secret set hf-token --file ./token")
def set_secret(
    name: SecretName,
    value: NoValue = None,
    file: ValueFile = None,
    job: Annotated[list[str] | None, typer.Option(help=field_help("NewSecret.jobs", "May be repeated."))] = None,
    tenant: TenantOption = None,
    *,
    dry_run: DryRun = False,
) -> Done:
    """Set a new secret. Its value comes from a file, standard input or a prompt, and is never shown again."""
    _refuse_typed(value)
    given = _value_from(file)
    with open_client() as client:
        owner = None if tenant is None else tenant_named(client, tenant)
        wanted: NewSecret = {**given, "name": name, "jobs": job or [], "tenant_id": owner}
        secret = client.create_secret(wanted, dry_run=dry_run)
    return Done(secret, f"{secret['name']} is set. A job names it: muster job submit --secret {secret['name']}")


@reads(app, "list", example="muster secret list")
def list_secrets(tenant: TenantOption = None, name: NamePart = None, order: NameOrder = "name") -> Listing:
    """List secrets by name, with versions and times; never their values."""
    with open_client() as client:
        of_tenant = None if tenant is None else tenant_named(client, tenant)
        found = client.secrets(tenant_id=of_tenant, name=name, order=order)
    return Listing(found, COLUMNS, "No secrets. `muster secret set` sets one.")


@changes(app, "rotate", example="muster secret rotate hf-token --file ./token")
def rotate(
    name: SecretName,
    value: NoValue = None,
    file: ValueFile = None,
    tenant: TenantOption = None,
    *,
    dry_run: DryRun = False,
) -> Done:
    """Give a secret a new value: attempts that are placed from now on get it; running ones keep theirs."""
    _refuse_typed(value)
    with open_client() as client:
        secret_id = _secret_named(client, name, tenant)
        secret = client.rotate_secret(secret_id, _value_from(file), dry_run=dry_run)
    return Done(secret, f"{secret['name']} has version {secret['version']}")


@changes(app, "delete", example="muster secret delete hf-token")
def delete(name: SecretName, tenant: TenantOption = None, *, dry_run: DryRun = False) -> Done:
    """Delete a secret with all its values. A job that names it ends before its program starts."""
    with open_client() as client:
        secret = client.delete_secret(_secret_named(client, name, tenant), dry_run=dry_run)
    return Done(secret, f"{secret['name']} is deleted")


@reads(app, "keys", example="muster secret keys")
def list_keys() -> Listing:
    """List the keys that protect secrets, for operators: the active one first, and how many values need each."""
    with open_client(as_operator=True) as client:
        return Listing(client.secret_keys(), KEY_COLUMNS, "No keys.")


@changes(app, "rewrap", example="muster secret rewrap")
def rewrap(*, dry_run: DryRun = False) -> Done:
    """Bring all secrets under the active key, for operators. Interrupted, the same command continues."""
    num_rewrapped = 0
    with open_client(as_operator=True) as client:
        while True:
            done = client.rewrap_secrets(dry_run=dry_run)
            num_rewrapped += done["num_rewrapped"]
            if dry_run or not done["num_left"] or not done["num_rewrapped"]:
                break
    found = {**done, "num_rewrapped": num_rewrapped}
    left = f"; {done['num_left']} have another one still" if done["num_left"] else ", and no value has another one"
    if done["num_unusable"]:
        keys = ", ".join(done["needed_keys"])
        left += f". {done['num_unusable']} cannot be opened, by the key {keys}: muster secret keys"
    return Done(found, f"{num_rewrapped} values were brought under the key {done['key_id']}{left}")


def _refuse_typed(value: str | None) -> None:
    if value is not None:
        words = (
            "a value is not taken from the command line: shells keep it in a history, and `ps` shows it to every user"
        )
        raise CommandError(words, "Leave it out to be asked for it, or pass --file PATH or --file -.", Exit.USAGE)


def _value_from(file: Path | None) -> SecretValue:
    """Return the value of a file, of standard input, or as it is typed unseen. Raises ``CommandError``."""
    content = _bytes_from(file)
    if not content:
        raise CommandError("the value is empty", "A secret has at least one byte.", Exit.USAGE)
    if len(content) > MOST_BYTES:
        words = f"the value has more than {MOST_BYTES:,} bytes, which is the most that a secret may have"
        raise CommandError(words, "Pass larger data as a dataset: muster job submit --dataset.", Exit.USAGE)
    return {"value": base64.b64encode(content).decode(), "encoding": "base64"}


def _bytes_from(file: Path | None) -> bytes:
    if file is not None and str(file) != "-":
        try:
            with file.open("rb") as opened:
                return opened.read(MOST_BYTES + 1)
        except OSError as fault:
            raise CommandError(f"{file} cannot be read: {fault.strerror}", "", Exit.USAGE) from None
    if file is not None or not sys.stdin.isatty():
        return sys.stdin.buffer.read(MOST_BYTES + 1)
    import getpass

    typed = getpass.getpass("value (not shown): ")
    if typed != getpass.getpass("again: "):
        raise CommandError("the two values differ", "Type the command again; nothing was changed.", Exit.USAGE)
    return typed.encode()


def _secret_named(client: "RestClient", name: str, tenant: str | None) -> str:
    """Return the id of the secret of that id or name. Raises ``CommandError``, which lists the names that there are."""
    of_tenant = None if tenant is None else tenant_named(client, tenant)
    there = client.secrets(tenant_id=of_tenant)
    found = [secret["id"] for secret in there if secret["name"] == name]
    if len(found) == 1:
        return found[0]
    if found:
        words = f"{len(found)} tenants have a secret {name}"
        raise CommandError(words, "Name the tenant by --tenant, or give the id that `list --wide` shows.", Exit.USAGE)
    if name.startswith("sec_"):  # a name may begin so too
        return name
    names = ", ".join(secret["name"] for secret in there[:20]) or "none"
    raise CommandError(f"there is no secret {name}; there is: {names}", "", Exit.NOT_FOUND)
