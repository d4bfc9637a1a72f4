"""``muster agent``: what runs on a GPU host beside its jobs."""

import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.exits import CommandError, Exit
from muster.cli.output import AsJson, console, print_json
from muster.logs import configure_logs
from muster.settings import load_settings

if TYPE_CHECKING:
    from agents.probes.interface import Probe

app = typer.Typer(help="The agent of a GPU host: what its GPUs say.", no_args_is_help=True)


class SimulatedModel(StrEnum):
    H100 = "h100"
    A100 = "a100"
    H200 = "h200"


@app.callback()
def root() -> None:
    """Commands of a GPU host."""


@app.command("scan")
def scan(
    simulated: Annotated[
        SimulatedModel | None, typer.Option(help="GPUs that do not exist, in place of this host's.")
    ] = None,
    gpus: Annotated[int | None, typer.Option(min=1, max=72, help="How many simulated GPUs (8).")] = None,
    faults: Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="File of simulated faults.")] = None,
    listen: Annotated[float, typer.Option(min=0, max=3600, help="Seconds to listen for XIDs.")] = 1.0,
    *,
    as_json: AsJson = False,
) -> int:
    """Look once at every GPU of this host. Exit code 0: no fault; 1: a fault; 3: there is no driver to ask."""
    from agents.probes.interface import ProbeError
    from agents.scan import as_document
    from agents.scan import scan as look

    configure_logs(load_settings(), "agent-scan")
    try:
        probe = _open(simulated, gpus, faults)
        try:
            report = look(probe, now_ms=time.time_ns() // 1_000_000, listen_s=listen)
        finally:
            probe.close()
    except ProbeError as error:
        raise CommandError(str(error), error.suggestion, Exit.NOT_FOUND) from error
    if not report.gpus and not report.inventory.nameless:
        raise CommandError("the NVIDIA driver lists no GPU", "Look at `lspci` and the kernel log.", Exit.NOT_FOUND)
    if as_json:
        print_json(as_document(report))
    else:
        from muster.cli.scan_table import print_report

        print_report(report, console())
    return Exit.OK if report.is_healthy else Exit.FAILED


def _open(simulated: SimulatedModel | None, num_gpus: int | None, faults: Path | None) -> "Probe":
    if simulated is not None:
        return _open_simulated(simulated, num_gpus or 8, faults)
    if faults is not None or num_gpus is not None:
        raise CommandError("--gpus and --faults are for simulated GPUs", "Add --simulated h100.", Exit.USAGE)

    from agents.probes.nvml import open_nvml_probe

    return open_nvml_probe()


def _open_simulated(model: SimulatedModel, num_gpus: int, faults: Path | None) -> "Probe":
    from agents.probes.faults import FaultFileError, read_faults
    from agents.probes.profiles import PROFILES
    from agents.probes.simulated import SimulatedProbe, simulated_uuids

    if faults is not None:
        try:
            read_faults(faults)
        except FaultFileError as error:
            raise CommandError(str(error), code=Exit.USAGE) from error
    return SimulatedProbe(PROFILES[model], simulated_uuids(num_gpus), faults_path=faults)
