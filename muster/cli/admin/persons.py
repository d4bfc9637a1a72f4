"""``muster person``."""

from typing import Annotated, Final

import typer

from muster.cli.framework.field_help import field_help
from muster.cli.framework.list_options import ActiveOption, NameOrder, NamePart, RoleOption
from muster.cli.framework.names import PersonName, TenantOption, person_named, tenant_named
from muster.cli.framework.output import Done, DryRun, Listing, age, changes, reads
from muster.cli.framework.profile import open_client
from muster.cli.framework.tables import Column, Document
from muster.documents import NewPerson

app = typer.Typer(help="Persons, who sign in to the console.", no_args_is_help=True)
COLUMNS: Final = (
    Column("PERSON", lambda item: item["id"]),
    Column("NAME", lambda item: item["name"], is_text=True),
    Column("ROLE", lambda item: item["role"]),
    Column("STATE", lambda item: "disabled" if item["disabled_at"] else "open"),
    Column("AGE", lambda item: age(item["created_at"])),
    Column("TENANT", lambda item: item["tenant_id"], only_wide=True),
)


@reads(app, "list", example="muster person list")
def list_persons(
    name: NamePart = None,
    role: RoleOption = None,
    tenant: TenantOption = None,
    order: NameOrder = "name",
    *,
    is_active: ActiveOption = None,
) -> Listing:
    """List all persons with an account, also disabled ones."""
    with open_client(as_operator=True) as client:
        tenant_id = None if tenant is None else tenant_named(client, tenant)
        found = client.persons(name=name, role=role, tenant_id=tenant_id, active=is_active, order=order)
    is_all = name is None and not role and tenant is None and is_active is None
    none = "There are no persons. `muster person create NAME` adds one."
    return Listing(found, COLUMNS, none if is_all else "No person is like that.")


@changes(app, "create", example="muster person create ann --role operator")
def create(
    name: Annotated[str, typer.Argument(help=field_help("NewPerson.name"))],
    role: Annotated[str, typer.Option(help=field_help("role", "tenant_member, tenant_admin, operator or auditor."))],
    tenant: TenantOption = None,
    *,
    dry_run: DryRun = False,
) -> Done:
    """Add a person who may sign in to the console. The password is shown once, so the request is never repeated."""
    with open_client(as_operator=True) as client:
        wanted: NewPerson = {"name": name, "role": role}
        if tenant is not None:
            wanted["tenant_id"] = tenant_named(client, tenant)
        made = client.create_person(wanted, dry_run=dry_run)
    return _with_password(made, dry_run=dry_run)


@changes(app, "reset-password", example="muster person reset-password ann")
def reset_password(person: PersonName, *, dry_run: DryRun = False) -> Done:
    """Set a new password, shown once, and end every session of the person."""
    with open_client(as_operator=True) as client:
        made = client.reset_password(person_named(client, person), dry_run=dry_run)
    return _with_password(made, dry_run=dry_run)


@changes(app, "disable", example="muster person disable ann")
def disable(person: PersonName, *, dry_run: DryRun = False) -> Done:
    """Disable a person: they cannot sign in any more, and every session ends."""
    with open_client(as_operator=True) as client:
        found = client.disable_person(person_named(client, person), dry_run=dry_run)
    return Done(found, f"{found['name']} can no longer sign in")


def _with_password(made: Document, *, dry_run: bool) -> Done:
    if dry_run:
        return Done(made, "")
    note = f"{made['id']} ({made['name']}, {made['role']}): the password above is not shown again"
    return Done(made, made["password"], note)
