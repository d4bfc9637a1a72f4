"""``muster audit``: whether anybody has touched the past."""

from pathlib import Path
from typing import Annotated

import typer

from muster.cli.exits import CommandError, Exit
from muster.cli.output import AsJson, print_json

app = typer.Typer(help="The audit chain.", no_args_is_help=True)
StateDir = Annotated[Path, typer.Option(help="The local stack's state, where MUSTER_DATABASE_URL is not set.")]


@app.command("verify")
def verify(state_dir: StateDir = Path(".muster"), *, as_json: AsJson = False) -> int:
    """Walk the whole chain in the database; exit code 1 when it does not hold."""
    from muster.db.engine import NO_LIMITS, make_engine
    from muster.services.sealer import verify_audit
    from muster.services.unit_of_work import UnitOfWorkFactory

    engine = make_engine(_database_url(state_dir), application_name="muster-audit", limits=NO_LIMITS)
    try:
        with UnitOfWorkFactory(engine).read() as session:
            found = verify_audit(session)
    finally:
        engine.dispose()
    if as_json:
        fault = None if found.first_fault is None else vars_of(found.first_fault)
        print_json(
            {
                "ok": found.ok,
                "entries": found.entries,
                "sealed_to": found.sealed_to,
                "unsealed_tail": found.unsealed_tail,
                "anchor": {"position": found.anchor.position, "hash": found.anchor.hash.hex()},
                "first_fault": fault,
            }
        )
    elif found.first_fault is None:
        typer.echo(f"the chain holds: {found.entries} entries, sealed to {found.sealed_to}")
        typer.echo(f"unsealed tail: {found.unsealed_tail}; anchor {found.anchor.position}:{found.anchor.hash.hex()}")
    else:
        typer.echo(f"the chain is BROKEN at position {found.first_fault.position}: {found.first_fault.what}")
    return Exit.OK if found.ok else Exit.FAILED


def vars_of(fault: object) -> dict[str, object]:
    return {name: getattr(fault, name) for name in ("position", "what")}


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
