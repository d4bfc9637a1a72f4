"""The processes that a control plane is made of, each by itself."""

from typing import Annotated

import typer

from muster.cli.framework.exits import CommandError
from muster.failpoints import require_known
from muster.logs import configure_logs
from muster.settings import Settings, load_settings

worker = typer.Typer(help="Workers: of the control plane, of a GPU host.", no_args_is_help=True)


def _settings(component: str) -> Settings:
    settings = load_settings()
    configure_logs(settings, component)
    return settings


def api() -> None:
    """Serve the REST API, and the console at /console."""
    import console.app
    from api import serve

    settings = _settings("api")
    require_known()
    serve.run(settings, console.app.install)


def scheduler() -> None:
    """Run the scheduler: one is active, others stand by."""
    from workers.control import scheduler_loop

    settings = _settings("scheduler")
    require_known()
    scheduler_loop.run(settings)


@worker.command("control", epilog="Example: `muster worker control`")
def control() -> None:
    """Run sequencer, sealer, relay and reconciler."""
    from workers.control import main

    settings = _settings("worker-control")
    require_known()
    main.run(settings)


@worker.command("host", epilog="Example: `muster worker host`, on a GPU host whose agent has enrolled")
def host(
    node_id: Annotated[str | None, typer.Option(help="Its id, node_…; by default as its agent enrolled.")] = None,
) -> None:
    """Run a GPU host's launcher."""
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
