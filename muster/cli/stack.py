"""``muster up`` and the processes that it is made of."""

from pathlib import Path
from typing import Annotated

import typer

from muster.cli.exits import CommandError, Exit
from muster.failpoints import require_known
from muster.logs import configure_logs
from muster.settings import Settings, load_settings

worker = typer.Typer(help="Workers: of the control plane, of a GPU host.", no_args_is_help=True)


def _settings(component: str) -> Settings:
    settings = load_settings()
    configure_logs(settings, component)
    return settings


def up(
    state_dir: Annotated[Path, typer.Option(help="Where everything is kept.")] = Path(".muster"),
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8420,
    gpus: Annotated[int, typer.Option(min=1, max=72, help="Simulated GPUs of this machine.")] = 8,
    *,
    exit_when_held: Annotated[
        bool, typer.Option("--exit", help="Run a job through, then stop; exit code 0 if it held.")
    ] = False,
) -> int:
    """Start the whole control plane on this machine, with one simulated host."""
    from muster.embedded.errors import EmbeddedServerError
    from muster.embedded.stack import StackError, run_stack

    _settings("up")
    try:
        return run_stack(state_dir=state_dir, port=port, exit_when_held=exit_when_held, num_gpus=gpus)
    except (StackError, EmbeddedServerError) as error:
        raise CommandError(str(error), f"Logs are in {state_dir / 'logs'}.", Exit.FAILED) from error


def api() -> None:
    """The REST API."""
    from api import serve

    settings = _settings("api")
    require_known()
    serve.run(settings)


def scheduler() -> None:
    """The scheduler: one active, others stand by."""
    from scheduler import loop

    settings = _settings("scheduler")
    require_known()
    loop.run(settings)


@worker.command("control")
def control() -> None:
    """Sequencer, sealer, relay, reconciler."""
    from workers.control import main

    settings = _settings("worker-control")
    require_known()
    main.run(settings)


@worker.command("host")
def host(
    node_id: Annotated[
        str | None, typer.Option(help="Its id, node_…; by default as its agent enrolled.")
    ] = None,
) -> None:
    """A GPU host's launcher."""
    from workers.host import main
    from workers.host.ledger_file import LauncherIsRunningError

    settings = _settings("worker-host")
    require_known()
    try:
        main.run(settings, node_id)
    except LauncherIsRunningError as error:
        raise CommandError(str(error)) from error


def migrate() -> None:
    """Bring the database to this version's revision."""
    from muster.db import migrate as migrations

    settings = _settings("migrate").require("database_url")
    migrations.upgrade(str(settings.database_url))
    typer.echo(f"the database is at revision {migrations.current(str(settings.database_url))}")
