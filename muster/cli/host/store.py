"""``muster store``: our own content store."""

import typer

from muster.failpoints import require_known
from muster.logs import configure_logs
from muster.settings import load_settings

app = typer.Typer(help="Our own content store: chunks of bundles and outputs.", no_args_is_help=True)


@app.command("serve", epilog="Example: `muster store serve`")
def serve() -> None:
    """Serve the content store: chunks of bundles and outputs, on a folder of this machine."""
    from muster.store.service import serve as service

    settings = load_settings()
    configure_logs(settings, "store")
    require_known()
    service.run(settings)


@app.callback()
def store() -> None:
    """Keep `serve` a word of its own: a group of one command would take its place."""
