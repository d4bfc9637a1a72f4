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


@app.command("gateway", epilog="Example: `muster store gateway`")
def gateway() -> None:
    """Serve files of outputs in front of another S3-compatible store: it joins the chunks of one file."""
    from muster.store.service import serve as service

    settings = load_settings()
    configure_logs(settings, "store-gateway")
    require_known()
    service.run_gateway(settings)
