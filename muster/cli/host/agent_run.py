"""``muster agent run``. ``agent_group`` registers it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.framework.exits import CommandError, Exit
from muster.cli.host.agent import http_address, open_probe, with_dcgm
from muster.cli.host.agent_options import DcgmLevel, Faults, NumSimulated, Simulated, SimulatedModel, num_simulated
from muster.logs import configure_logs
from muster.settings import load_settings

if TYPE_CHECKING:
    from agents.probes.interface import Probe
    from agents.repairs.actions import Hands


def run(
    *,
    join_token_file: Annotated[
        Path | None, typer.Option(help="Once, on a new host: the file, mode 0600, that holds its join token.")
    ] = None,
    simulated: Simulated = None,
    gpus: NumSimulated = None,
    faults: Faults = None,
    seed: Annotated[
        int, typer.Option(min=0, max=65535, help="Of simulated GPUs: each host of a fleet has another.")
    ] = 0,
    host_root: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            file_okay=False,
            help="Where this host's /proc and /sys are, such as /host in a container. Default: /; none if simulated.",
        ),
    ] = None,
    dcgm_exporter: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="A dcgm-exporter for readings that NVML lacks: http://127.0.0.1:9400/metrics."
        ),
    ] = None,
    dcgm_diag: DcgmLevel = None,
    host_name: Annotated[str | None, typer.Option(help="To enrol as; by default this machine's name.")] = None,
) -> None:
    """Watch this host's GPUs and report, until SIGTERM."""
    from agents import daemon
    from agents.kernel_log.kernel_log import KMSG

    count = num_simulated(simulated, gpus, faults, dcgm_diag)
    exporter = None if dcgm_exporter is None else http_address("--dcgm-exporter", dcgm_exporter)
    settings = load_settings()
    configure_logs(settings, "agent")
    probe = open_probe(count, model=simulated or SimulatedModel.H100, faults=faults, seed=seed)
    hands = _hands_for(probe, faults)
    if exporter is not None:
        probe = with_dcgm(probe, exporter)
    with _agent_errors():
        daemon.run(
            settings,
            probe,
            joining=daemon.Joining(join_token_file, host_name),
            kernel_log=KMSG if simulated is None else None,
            host_root=Path("/") if simulated is None and host_root is None else host_root,
            dcgm_level=dcgm_diag,
            hands=hands,
        )


@contextmanager
def _agent_errors() -> Iterator[None]:
    """Raise the errors that end an agent as the command's, with their exit codes."""
    from agents.identity import IdentityError
    from agents.probes.interface import ProbeError
    from agents.spool.spool import SpoolInUseError

    try:
        yield
    except ProbeError as error:
        raise CommandError(str(error), error.suggestion, Exit.NOT_FOUND) from error
    except (IdentityError, SpoolInUseError) as error:
        raise CommandError(str(error), code=Exit.USAGE) from error


def _hands_for(probe: "Probe", faults: Path | None) -> "Hands":
    """Return the object that carries out repairs of these GPUs."""
    from agents.probes.nvml import NvmlProbe
    from agents.repairs.actions import HostHands
    from agents.repairs.simulated import SimulatedHands

    if isinstance(probe, NvmlProbe):
        return HostHands(probe.released)
    return SimulatedHands(frozenset(gpu.uuid for gpu in probe.identify().gpus), faults)
