"""``muster join-token``."""

from typing import Annotated

import typer

from muster.cli.framework.durations import seconds_of
from muster.cli.framework.field_help import field_help
from muster.cli.framework.output import Done, DryRun, changes, moment_of
from muster.cli.framework.profile import open_client
from muster.documents import NewJoinToken

app = typer.Typer(help="Join tokens, by which hosts enrol.", no_args_is_help=True)


@changes(app, "create", example="muster join-token create gpu-07 --rack r2 > gpu-07.token")
def create(
    host_name: Annotated[str, typer.Argument(help=field_help("WantedJoinToken.host_name"))],
    expires: Annotated[str, typer.Option(help=field_help("expires_in_s", "Such as 15m; a day at most."))] = "15m",
    address: Annotated[str | None, typer.Option(help=field_help("WantedJoinToken.address"))] = None,
    rack: Annotated[str | None, typer.Option(help=field_help("rack"))] = None,
    *,
    dry_run: DryRun = False,
) -> Done:
    """Let one host enrol, once. The token is shown once; a lost one expires by itself."""
    expires_in_s = round(seconds_of(expires, "--expires") or 0)
    wanted: NewJoinToken = {"host_name": host_name.lower(), "expires_in_s": expires_in_s}
    if address is not None:
        wanted["address"] = address
    if rack is not None:
        wanted["rack"] = rack
    with open_client(as_operator=True) as client:
        made = client.create_join_token(wanted, dry_run=dry_run)
    if dry_run:
        return Done(made, "")
    note = f"for {made['host_name']}, once, until {moment_of(made['expires_at'])}; it is not shown again"
    return Done(made, made["token"], note)
