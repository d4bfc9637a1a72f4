"""``muster agent run``. ``agent_group`` registers it."""

from pathlib import Path
from typing import Annotated

import typer

from muster.cli.agent import SimulatedModel, open_probe
from muster.cli.exits import CommandError, Exit
from muster.logs import configure_logs
from muster.settings import load_settings


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
    from agents.kernel_log import KMSG
    from agents.probes.interface import ProbeError
    from agents.spool import SpoolInUseError

    if simulated is None and (faults is not None or gpus is not None):
        raise CommandError("--gpus and --faults are for simulated GPUs", "Add --simulated h100.", Exit.USAGE)
    settings = load_settings()
    configure_logs(settings, "agent")
    num_simulated = None if simulated is None else gpus or 8
    probe = open_probe(num_simulated, model=simulated or SimulatedModel.H100, faults=faults, seed=seed)
    kernel_log = KMSG if simulated is None else None
    try:
        daemon.run(settings, probe, joining=daemon.Joining(join_token_file, host_name), kernel_log=kernel_log)
    except ProbeError as error:
        raise CommandError(str(error), error.suggestion, Exit.NOT_FOUND) from error
    except (IdentityError, SpoolInUseError) as error:
        raise CommandError(str(error), code=Exit.USAGE) from error
