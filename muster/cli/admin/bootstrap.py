"""``muster bootstrap`` makes the first operator's key of a new control plane, before any key for the API exists."""

from pathlib import Path
from typing import Annotated

import typer

from muster.cli.framework.exits import CommandError, Exit
from muster.settings import load_settings


def bootstrap(
    key_file: Annotated[Path, typer.Argument(help="Where the key goes, mode 0600. One that still opens is kept.")],
) -> None:
    """Make the first operator's key of a new control plane.

    It also makes another one if all others were lost: MUSTER_DATABASE_URL is enough for it, and the audit records it.
    Everything else is made with that key.
    """
    from control.core.unit_of_work import UnitOfWorkFactory
    from local.bootstrap import BOOTSTRAP
    from local.bootstrap import key_file as keep_or_make
    from muster.db.engine import make_engine
    from muster.domain.principals import Role

    settings = load_settings().require("database_url")
    if not key_file.absolute().parent.is_dir():
        raise CommandError(f"there is no folder {key_file.absolute().parent}", "Make it first, mode 0700.", Exit.USAGE)
    had_one = key_file.exists()
    before = key_file.read_bytes() if had_one else b""
    if before.strip() and not before.startswith(b"mst_"):
        raise CommandError(f"{key_file} holds something else than a key", "Name another file.", Exit.USAGE)
    engine = make_engine(str(settings.database_url), application_name="muster-bootstrap")
    try:
        keep_or_make(UnitOfWorkFactory(engine), key_file, Role.OPERATOR, name="bootstrap", by=BOOTSTRAP)
    finally:
        engine.dispose()
    is_kept = had_one and key_file.read_bytes() == before
    typer.echo(f"{key_file} holds an operator's key{', as before' if is_kept else ''}")
