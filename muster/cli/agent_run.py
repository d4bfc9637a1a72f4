"""``muster agent run`` and ``muster join-token create``.

The root registers them: ``agent.app.command("run")(agent_run.run)`` and the group ``agent_run.join_tokens``.
"""

from pathlib import Path
from typing import Annotated

import typer

from muster.cli.agent import SimulatedModel, open_probe
from muster.cli.durations import seconds_of
from muster.cli.exits import CommandError, Exit
from muster.cli.output import AsJson, print_json
from muster.cli.profile import open_client
from muster.logs import configure_logs
from muster.settings import load_settings

join_tokens = typer.Typer(help="Join tokens, by which hosts enrol.", no_args_is_help=True)


def run(
    *,
    join_token_file: Annotated[
        Path | None, typer.Option(help="Once, on a new host: the file, mode 0600, that holds its join token.")
    ] = None,
    simulated: Annotated[
        SimulatedModel | None, typer.Option(help="GPUs that do not exist, in place of this host's.")
    ] = None,
    gpus: Annotated[int | None, typer.Option(min=1, max=72, help="How many simulated GPUs (8).")] = None,
    faults: Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="File of simulated faults.")] = None,
    seed: Annotated[
        int, typer.Option(min=0, max=65535, help="Of simulated GPUs: each host of a fleet has another.")
    ] = 0,
    host_name: Annotated[str | None, typer.Option(help="To enrol as; by default this machine's name.")] = None,
) -> None:
    """Watch this host's GPUs and report, until SIGTERM."""
    from agents import daemon
    from agents.identity import IdentityError
    from agents.probes.interface import ProbeError
    from agents.spool import SpoolInUseError

    if simulated is None and (faults is not None or gpus is not None):
        raise CommandError("--gpus and --faults are for simulated GPUs", "Add --simulated h100.", Exit.USAGE)
    settings = load_settings()
    configure_logs(settings, "agent")
    num_simulated = None if simulated is None else gpus or 8
    probe = open_probe(num_simulated, model=simulated or SimulatedModel.H100, faults=faults, seed=seed)
    try:
        daemon.run(settings, probe, joining=daemon.Joining(join_token_file, host_name))
    except ProbeError as error:
        raise CommandError(str(error), error.suggestion, Exit.NOT_FOUND) from error
    except (IdentityError, SpoolInUseError) as error:
        raise CommandError(str(error), code=Exit.USAGE) from error


@join_tokens.command("create")
def create(
    host_name: Annotated[str, typer.Argument(help="The host that may enrol by it.")],
    expires: Annotated[str, typer.Option(help="Such as 15m; a day at most.")] = "15m",
    address: Annotated[str | None, typer.Option(help="Where ranks meet; by default where it enrols from.")] = None,
    rack: Annotated[str | None, typer.Option(help="Its place.")] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Let one host enrol, once. The token is shown once."""
    seconds = round(seconds_of(expires) or 0)
    wanted = {"host_name": host_name.lower(), "expires_in_s": seconds, "address": address, "rack": rack}
    with open_client(as_operator=True) as client:
        made = client.create_join_token({name: value for name, value in wanted.items() if value is not None})
    if as_json:
        print_json(made)
        return
    typer.echo(made["token"])
    typer.echo(f"for {made['host_name']}, once, until {made['expires_at']}; it is not shown again", err=True)
