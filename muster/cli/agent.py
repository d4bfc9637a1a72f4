"""``muster agent``: what runs on a GPU host beside its jobs."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.exits import CommandError, Exit
from muster.cli.output import AsJson, json_of, say
from muster.logs import configure_logs
from muster.settings import load_settings

if TYPE_CHECKING:
    from agents.probes.interface import Probe
    from agents.scan import ScanReport

app = typer.Typer(help="The agent of a GPU host: what its GPUs say.", no_args_is_help=True)


class SimulatedModel(StrEnum):
    H100 = "h100"
    A100 = "a100"
    H200 = "h200"


@app.callback()
def root() -> None:
    """Commands of a GPU host."""


@app.command("scan", epilog="Example: `muster agent scan`, or without a GPU: `muster agent scan --simulated h100`")
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
    """Look once at every GPU of this host, and at what its kernel has logged since the boot.

    Exit code 0: no fault; 1: a fault; 3: there is no driver to ask.
    """
    if simulated is None and (faults is not None or gpus is not None):
        raise CommandError("--gpus and --faults are for simulated GPUs", "Add --simulated h100.", Exit.USAGE)
    configure_logs(load_settings(), "agent-scan")
    num_simulated = None if simulated is None else gpus or 8
    probe = open_probe(num_simulated, model=simulated or SimulatedModel.H100, faults=faults)
    report = _look(probe, listen, is_real=simulated is None)
    if as_json:
        from agents.scan import as_document

        say(json_of(as_document(report), indent=2))
    else:
        from muster.cli.scan_table import print_report

        print_report(report)
    return Exit.OK if report.is_healthy else Exit.FAILED


def _look(probe: "Probe", listen_s: float, *, is_real: bool) -> "ScanReport":
    """``is_real``: the kernel log knows of these GPUs."""
    from agents.host_facts import current_boot_id, wall_ms
    from agents.kernel_log import logged_until_now
    from agents.probes.interface import ProbeError
    from agents.scan import scan as look

    try:
        if is_real:
            boot_id = current_boot_id()
            report = look(
                probe, now_ms=wall_ms(), listen_s=listen_s, logged=lambda found: logged_until_now(found, boot_id)
            )
        else:
            report = look(probe, now_ms=wall_ms(), listen_s=listen_s)
    except ProbeError as error:
        raise CommandError(str(error), error.suggestion, Exit.NOT_FOUND) from error
    finally:
        probe.close()
    if not report.gpus and not report.inventory.nameless:
        raise CommandError("the NVIDIA driver lists no GPU", "Look at `lspci` and the kernel log.", Exit.NOT_FOUND)
    return report


def open_probe(
    num_simulated: int | None = None,
    *,
    model: SimulatedModel = SimulatedModel.H100,
    faults: Path | None = None,
    seed: int = 0,
) -> "Probe":
    """This host's GPUs, or so many simulated ones. Raises CommandError with words and advice."""
    if num_simulated is not None:
        return _open_simulated(model, num_simulated, faults, seed)
    from agents.probes.interface import ProbeError
    from agents.probes.nvml import open_nvml_probe

    try:
        return open_nvml_probe()
    except ProbeError as error:
        raise CommandError(str(error), error.suggestion, Exit.NOT_FOUND) from error


def _open_simulated(model: SimulatedModel, num_gpus: int, faults: Path | None, seed: int) -> "Probe":
    from agents.probes.faults import FaultFileError, read_faults
    from agents.probes.profiles import PROFILES
    from agents.probes.simulated import SimulatedProbe, simulated_uuids

    if faults is not None:
        try:
            read_faults(faults)
        except FaultFileError as error:
            raise CommandError(str(error), code=Exit.USAGE) from error
    return SimulatedProbe(PROFILES[model], simulated_uuids(num_gpus, seed), seed=seed, faults_path=faults)
