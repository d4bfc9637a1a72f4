"""``muster audit`` lists changes with their actors, and verifies that no entry was changed."""

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.field_help import parameter_help
from muster.cli.framework.installed import Part, has
from muster.cli.framework.list_options import Limit, WithinOptions
from muster.cli.framework.names import TenantOption, tenant_named
from muster.cli.framework.output import Listing, Page, age, changes, reads
from muster.cli.framework.profile import open_client
from muster.cli.framework.tables import Column

if TYPE_CHECKING:
    from control.core.sealer import AuditVerification

app = typer.Typer(help="The audit: list changes, and verify the record.", no_args_is_help=True)
COLUMNS: Final = (
    Column("POSITION", lambda item: item["position"]),
    Column("AGE", lambda item: age(item["at"]), wide=lambda item: item["at"]),
    Column("WHO", lambda item: item["actor"].split(" of ")[0], wide=lambda item: item["actor"]),
    Column("ACTION", lambda item: item["action"]),
    Column("WHAT", lambda item: _short(item["subject_id"]), wide=lambda item: item["subject_id"]),
    Column("REASON", lambda item: item["reason"], only_wide=True),
    Column("FROM", lambda item: item["address"], only_wide=True),
    Column("HASH", lambda item: item["hash"], only_wide=True),
)
StateDir = Annotated[Path, typer.Option(help="The local stack's state, where MUSTER_DATABASE_URL is not set.")]


@changes(app, "verify", example="muster audit verify --json", hidden=not has(Part.WHOLE))
def verify(state_dir: StateDir = Path(".muster")) -> Page:
    """Verify the whole chain in the database. The exit code is 1 if it is broken."""
    from control.core.sealer import verify_audit
    from control.core.unit_of_work import UnitOfWorkFactory
    from muster.db.engine import NO_LIMITS, make_engine

    engine = make_engine(_database_url(state_dir), application_name="muster-audit", limits=NO_LIMITS)
    try:
        with UnitOfWorkFactory(engine).read() as session:
            return _verdict(verify_audit(session))
    finally:
        engine.dispose()


@reads(app, "list", example="muster audit list --action gpu.retire --limit 50")
def list_entries(
    within: WithinOptions,
    actor: Annotated[str | None, typer.Option(help=parameter_help("actor"))] = None,
    action: Annotated[list[str] | None, typer.Option(help=parameter_help("action", "May be repeated."))] = None,
    about: Annotated[str | None, typer.Option(help=parameter_help("list_audit.subject"))] = None,
    tenant: TenantOption = None,
    limit: Limit = 20,
) -> Listing:
    """List changes with their actors, the newest first."""
    with open_client(as_operator=True) as client:
        tenant_id = None if tenant is None else tenant_named(client, tenant)
        entries = client.audit_entries(
            actor=actor, action=action, subject=about, tenant_id=tenant_id, limit=min(limit, 200), **within.query()
        )
        found = list(islice(entries, limit))
    return Listing(found, COLUMNS, "No entry is like that.")


def _verdict(found: "AuditVerification") -> Page:
    anchor, fault = found.anchor, found.first_fault
    document = {
        "ok": found.ok,
        "entries": found.entries,
        "sealed_to": found.sealed_to,
        "unsealed_tail": found.unsealed_tail,
        "anchor": {"position": anchor.position, "hash": anchor.hash.hex()},
        "first_fault": None if fault is None else {"position": fault.position, "what": fault.what},
    }
    if fault is not None:
        return Page(document, [f"the chain is BROKEN at position {fault.position}: {fault.what}"], Exit.FAILED)
    said = [
        f"the chain holds: {found.entries} entries, sealed to {found.sealed_to}",
        f"unsealed tail: {found.unsealed_tail}; anchor {anchor.position}:{anchor.hash.hex()}",
    ]
    return Page(document, said, Exit.OK if found.ok else Exit.FAILED)


def _short(subject_id: str) -> str:
    return subject_id if len(subject_id) <= 16 else f"{subject_id[:10]}..{subject_id[-4:]}"


def _database_url(state_dir: Path) -> str:
    from muster.settings import load_settings

    settings = load_settings()
    if settings.database_url is not None:
        return settings.database_url
    try:
        return (state_dir / "database.url").read_text(encoding="utf-8").strip()
    except OSError as error:
        message = f"no database is named: MUSTER_DATABASE_URL is not set and no stack runs in {state_dir}"
        raise CommandError(message, "", Exit.USAGE) from error
