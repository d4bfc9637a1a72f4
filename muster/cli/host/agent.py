"""``muster agent`` runs the agent of a GPU host, which works in addition to its jobs."""

from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.output import AsJson, json_of, print_line
from muster.cli.host.agent_options import Faults, NumSimulated, Simulated, SimulatedModel, num_simulated
from muster.logs import configure_logs
from muster.settings import Settings, load_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from agents.host.events import HostTeller
    from agents.probes.interface import HostInventory, Probe, ProbeEvent
    from agents.scan.scan import ScanReport
    from muster.domain.policy.health import HealthPolicy

app = typer.Typer(help="The agent of a GPU host: what its GPUs say.", no_args_is_help=True)


class FailOn(StrEnum):
    """The least finding of a scan that makes its exit code 1."""

    WARNING = "warning"
    FAULT = "fault"


@app.callback()
def root() -> None:
    """Commands of a GPU host."""


@app.command("scan", epilog="Example: `muster agent scan`, or without a GPU: `muster agent scan --simulated h100`")
def scan(
    simulated: Simulated = None,
    gpus: NumSimulated = None,
    faults: Faults = None,
    listen: Annotated[float, typer.Option(min=0, max=3600, help="Seconds between the two looks.")] = 1.0,
    dcgm_exporter: Annotated[
        str | None, typer.Option(metavar="URL", help="A dcgm-exporter for readings that NVML lacks.")
    ] = None,
    host_root: Annotated[
        Path, typer.Option(exists=True, file_okay=False, help="Where this host's /proc and /sys are.")
    ] = Path("/"),
    policy: Annotated[Path | None, typer.Option(help="A policy document instead of the built-in one.")] = None,
    fail_on: Annotated[
        FailOn, typer.Option(help="The least finding that makes the exit code 1: a warning only lowers the score.")
    ] = FailOn.FAULT,
    *,
    as_json: AsJson = False,
) -> int:
    """Check every GPU of this host twice, the host itself, and its kernel log since the boot.

    The server's detectors judge the result. A finding that only counts if it lasts is shown as waiting and decides
    nothing. With --json one object on one line.

    Exit code 0: no fault, warnings at most (none with --fail-on warning); 1: a fault, or a GPU that does not answer; 3:
    there is no driver, or it lists no GPU (readings of the host itself are shown all the same).
    """
    count = num_simulated(simulated, gpus, faults)
    exporter = None if dcgm_exporter is None else http_address("--dcgm-exporter", dcgm_exporter)
    rules = _rules(policy)
    settings = load_settings()
    configure_logs(settings, "agent-scan")
    report = _checked(
        lambda: _opened(count, simulated or SimulatedModel.H100, faults, exporter),
        listen,
        rules,
        settings,
        host_root if simulated is None else None,
    )
    if as_json:
        from agents.scan.document import as_document

        print_line(json_of(as_document(report)))
    else:
        from muster.cli.host.scan_table import print_report

        print_report(report)
    if report.no_driver is not None:
        raise CommandError(str(report.no_driver), report.no_driver.suggestion, Exit.NOT_FOUND)
    if not report.gpus and not report.inventory.nameless:
        raise CommandError("the NVIDIA driver lists no GPU", "Look at `lspci` and the kernel log.", Exit.NOT_FOUND)
    fails = not report.is_healthy or (fail_on is FailOn.WARNING and report.has_warnings)
    return Exit.FAILED if fails else Exit.OK


def _rules(policy: Path | None) -> "HealthPolicy":
    """Return the rules of a policy's document, or the built-in ones. Raises CommandError with every fault."""
    if policy is None:
        from muster.domain.policy.document import DEFAULT_POLICY

        return DEFAULT_POLICY.health
    from muster.cli.framework.policy_files import policy_of_file

    return policy_of_file(policy).health


def _opened(num_simulated: int | None, model: SimulatedModel, faults: Path | None, exporter: str | None) -> "Probe":
    """Return the probe. Raises ProbeError: no driver answers."""
    if num_simulated is not None:
        probe = _open_simulated(model, num_simulated, faults, 0)
    else:
        from agents.probes.nvml import open_nvml_probe

        probe = open_nvml_probe()
    return probe if exporter is None else with_dcgm(probe, exporter)


def _checked(
    opened: "Callable[[], Probe]", listen_s: float, rules: "HealthPolicy", settings: Settings, host_root: Path | None
) -> "ScanReport":
    """Return the scan's report. ``host_root`` None: these GPUs have no kernel log and no host."""
    from agents.host_facts import current_boot_id, wall_ms
    from agents.kernel_log.kernel_log import logged_until_now
    from agents.probes.interface import ProbeError
    from agents.scan.scan import scan as look
    from agents.scan.scan import scan_without_driver

    if host_root is None:
        with closing(opened()) as probe:
            return look(probe, now_ms=wall_ms(), listen_s=listen_s, policy=rules)
    boot_id, root = current_boot_id(), host_root

    def logged(found: "HostInventory") -> "Iterable[ProbeEvent] | None":
        return logged_until_now(found, boot_id)

    def host_of(num_gpus: int | None) -> "HostTeller":
        return _host_teller(settings, num_gpus, root)

    try:
        with closing(opened()) as probe:
            return look(probe, now_ms=wall_ms(), listen_s=listen_s, logged=logged, host_of=host_of, policy=rules)
    except ProbeError as error:
        return scan_without_driver(
            error, now_ms=wall_ms(), listen_s=listen_s, logged=logged, host_of=host_of, policy=rules
        )


def _host_teller(settings: Settings, num_gpus: int | None, root: Path) -> "HostTeller":
    """Return the reader of the host. Without access to the agent's state it lacks the GPUs and ports that were
    enrolled.
    """
    from agents.events.naming import Naming
    from agents.host.events import HostPlaces, HostTeller
    from agents.identity import IdentityError, enrolled_gpus, enrolled_ports
    from muster.wire.enrolment import AGENT_FOLDER

    counts = {} if num_gpus is None else {"found_gpus": float(num_gpus)}
    folder = settings.state_dir.absolute()
    try:
        enrolled, ports = enrolled_gpus(folder / AGENT_FOLDER), enrolled_ports(folder / AGENT_FOLDER)
    except (IdentityError, OSError):
        enrolled, ports = None, frozenset()
    if enrolled is not None:
        counts["expected_gpus"] = float(enrolled)
    folders = (next(each for each in (folder, *folder.parents) if each.exists()),)  # where it would be made
    places = HostPlaces(root=root, folders=folders, enrolled_ports=ports)
    return HostTeller(Naming("host"), places, gpus=lambda: counts)


def open_probe(
    num_simulated: int | None = None,
    *,
    model: SimulatedModel = SimulatedModel.H100,
    faults: Path | None = None,
    seed: int = 0,
) -> "Probe":
    """Return a probe of this host's GPUs, or of simulated ones. Raises CommandError with text and advice."""
    if num_simulated is not None:
        return _open_simulated(model, num_simulated, faults, seed)
    from agents.probes.interface import ProbeError
    from agents.probes.nvml import open_nvml_probe

    try:
        return open_nvml_probe()
    except ProbeError as error:
        raise CommandError(str(error), error.suggestion, Exit.NOT_FOUND) from error


def http_address(option: str, text: str) -> str:
    """Return the address. Raises CommandError if it is no HTTP address."""
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(text)
        is_one = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none
        is_one = False
    if not is_one:
        raise CommandError(f"{option} {text}: must be http://HOST:PORT/PATH", code=Exit.USAGE)
    return text


def with_dcgm(probe: "Probe", url: str) -> "Probe":
    """Return the probe with a dcgm-exporter's readings. ``url``: of the exporter's metrics."""
    from agents.dcgm.exporter import Exporter, ProbeWithDcgm

    return ProbeWithDcgm(probe, Exporter(url))


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
