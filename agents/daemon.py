"""The agent's process, ``muster agent run``: samples on an interval, events at once, one uplink for both.

The sampler, the watcher, the inspector and, on a real host, the reader of the kernel log put reports into the spool and
wake the uplink, each in a thread of its own; burn-ins ask and report by themselves. Nothing else is shared: when the
control plane, the disk or a GPU does not answer, the others continue. So only the sampler and the uplink are vital: a
restart for another loop that hangs in the driver would take the whole agent away, since such a process does not end.
"""

import random
import secrets
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from agents import host_facts
from agents.burn_in.bench_process import Bench
from agents.burn_in.measuring import Measuring
from agents.burn_in.server import HttpBurnInServer
from agents.burn_in.worker import BurnInWorker
from agents.dcgm.diagnosing import DcgmDiag
from agents.host.events import HostPlaces
from agents.host.inventory import PORTS_FILE
from agents.host.ports import rdma_ports_under
from agents.host.throughput import PortMeter
from agents.identity import (
    EnrolmentClient,
    IdentityError,
    enrol,
    enrolled_gpus,
    enrolled_ports,
    join_token_from,
    stored_identity,
)
from agents.inspector import inspector_of
from agents.kernel_log.log_reading import EARLY_PAUSE_S, EVENT_WAIT_S, LogReading, log_source_of
from agents.observer import Clocks, Observer, ReadPorts
from agents.pair_probes.worker import HttpPairProbeServer, PairProbeWorker
from agents.probes.interface import Probe
from agents.probes.simulated_ports import simulated_ports
from agents.repairs.actions import AllowedRepairs, Hands
from agents.repairs.journal import Journal
from agents.repairs.server import HttpRepairServer
from agents.repairs.worker import RepairWorker
from agents.spool.spool import Spool, SpoolLimits
from agents.telemetry_client import TelemetryClient
from agents.tokens import NodeIdentity, NoTokenError, TokenKeeper
from agents.uplink import Uplink
from muster.client.transport import Problem, UnreachableError
from muster.processes import Loop, run_loops, state_waiting, stop_on_signals
from muster.progress_file import ProgressFile
from muster.settings import Settings, SettingsError
from muster.wire.enrolment import AGENT_FOLDER, PROGRESS_FILE, TOKEN_FILE

JITTER: Final = 0.1
ENROL_RETRY_S: Final = 5.0
BURN_IN_STALLED_S: Final = 3_600.0
"""A diagnosis, a burn-in or a repair in progress asks little: none takes an hour."""
REPAIR_FILE: Final = "repair.json"
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Joining:
    """Enrolment of a host that has none: by the token in this file, under this name or the machine's own."""

    token_file: Path | None = None
    host_name: str | None = None


@dataclass(frozen=True, slots=True)
class AgentProcess:
    """One process of the agent, from its start to its end. ``folder``: the agent's own in the state folder."""

    settings: Settings
    probe: Probe
    folder: Path
    boot_id: str
    clocks: Clocks
    rng: random.Random
    stop: threading.Event
    host_root: Path | None


def run(
    settings: Settings,
    probe: Probe,
    *,
    joining: Joining = Joining(),
    kernel_log: Path | None = None,
    host_root: Path | None = None,
    dcgm_level: int | None = None,
    hands: Hands | None = None,
) -> None:
    """Run the agent until SIGTERM or SIGINT. Reports left in the spool are sent by the next process.

    ``kernel_log``: /dev/kmsg, or None where the GPUs are simulated and the kernel knows nothing of them. ``host_root``:
    where the host's /proc and /sys are, or None where nothing is reported about the host beneath the GPUs.
    ``dcgm_level``: of `dcgmi diag` in burn-ins, None: without. ``hands``: carries out repairs, of the verbs that the
    settings allow; None: there are none. With ``api_key_file`` set that key is used; else the host's own identity,
    which ``joining`` gives once.

    Raises:
        SettingsError: no address of the control plane.
        IdentityError: the host has not enrolled, and no join token is named.
        SpoolInUseError: another agent works in the same state folder.
        Problem: the server refuses the enrolment.
    """
    stop = stop_on_signals()
    settings.require("api_url")
    agent = AgentProcess(
        settings,
        probe,
        folder=settings.state_dir.absolute() / AGENT_FOLDER,
        boot_id=settings.simulated_boot_id or host_facts.current_boot_id(),
        clocks=Clocks(),
        rng=random.Random(secrets.randbits(64)),  # noqa: S311  # jitter, no secret
        stop=stop,
        host_root=host_root,
    )
    spool = Spool(agent.folder / "spool", SpoolLimits(), monotonic_ms=agent.clocks.boottime_ms)
    try:
        client = _client(agent, joining)
        if client is not None:
            source = None if kernel_log is None else log_source_of(settings.kernel_log, kernel_log)
            reading = None if source is None else LogReading(probe, agent.folder, agent.boot_id, source)
            diag = None if dcgm_level is None else DcgmDiag(dcgm_level)
            bench = Bench(str(settings.job_python or sys.executable))
            measuring = Measuring(probe, bench, wall_ms=agent.clocks.wall_ms, diag=diag)
            _observe(agent, spool, client, _background_loops(agent, client, measuring, hands), reading)
            client.close()
    finally:
        spool.close()
        probe.close()
    _log.info("agent_ended", num_reports_kept=spool.state().num_reports)


def _background_loops(
    agent: AgentProcess, client: TelemetryClient, measuring: Measuring, hands: Hands | None
) -> Sequence[Loop]:
    """Return the loops that use the host's GPUs in addition to observation, one at a time."""
    turn_taking = threading.Lock()
    burn_ins = BurnInWorker(HttpBurnInServer(client.post), measuring, agent.boot_id, agent.rng, turn_taking)
    loops = [Loop("burn_in", burn_ins.run, is_vital=False, stalled_s=BURN_IN_STALLED_S)]
    if hands is None:
        return loops
    repairs = RepairWorker(
        HttpRepairServer(client.post),
        agent.probe,
        AllowedRepairs(hands, frozenset(agent.settings.repair_verbs)),
        Journal(agent.folder / REPAIR_FILE),
        agent.boot_id,
        rng=agent.rng,
        turn_taking=turn_taking,
    )
    return [*loops, Loop("repair", repairs.run, is_vital=False, stalled_s=BURN_IN_STALLED_S)]


def _places(agent: AgentProcess) -> HostPlaces | None:
    """Return the host's places; None where nothing is reported about the host beneath the GPUs."""
    if agent.host_root is None:
        return None
    folders, file, ports = tuple(_written_to(agent.settings)), agent.folder / PORTS_FILE, enrolled_ports(agent.folder)
    return HostPlaces(root=agent.host_root, folders=folders, ports_file=file, enrolled_ports=ports)


def _ports(agent: AgentProcess) -> ReadPorts:
    """Return the reader of the host's network ports; where its GPUs are simulated, its ports are too."""
    if agent.host_root is None:
        return simulated_ports
    meter, boottime_ms = PortMeter(agent.host_root / "sys"), agent.clocks.boottime_ms
    return lambda _checks: meter.read(boottime_ms() / 1000)


def _written_to(settings: Settings) -> Iterator[Path]:
    for folder in (settings.state_dir, settings.checkpoints_dir, settings.scratch_dir):
        if folder is not None:
            yield folder.absolute()


def _observe(
    agent: AgentProcess, spool: Spool, client: TelemetryClient, background: Sequence[Loop], reading: LogReading | None
) -> None:
    """Observe the GPUs until the agent is asked to stop. ``reading``: of the kernel log, if there is one."""
    probe, boot_id, clocks, rng = agent.probe, agent.boot_id, agent.clocks, agent.rng
    uplink = Uplink(
        spool,
        client,
        boot_id,
        monotonic_ms=clocks.boottime_ms,
        wall_ms=clocks.wall_ms,
        rng=rng,
    )
    observer = Observer(
        probe,
        spool,
        boot_id,
        clocks=clocks,
        wake=lambda is_urgent: uplink.wake(is_urgent=is_urgent),
        ports=_ports(agent),
    )
    uplink.on_interval = observer.set_interval
    inspector = inspector_of(
        observer,
        probe,
        client,
        clocks=clocks,
        rng=rng,
        places=_places(agent),
        expected_gpus=enrolled_gpus(agent.folder),
    )
    loops = [
        Loop("sampler", lambda ending: keep_sampling(observer, ending, rng)),
        Loop("watcher", lambda ending: keep_watching(observer, ending), is_vital=False),
        Loop("inspector", lambda ending: inspector.run(observer.has_sampled, ending), is_vital=False),
        Loop("uplink", uplink.run),
        *background,
    ]
    if reading is not None:
        loops.append(Loop("kernel_log", lambda ending: reading.run(observer, ending), is_vital=False))
    port = agent.settings.pair_probe_port
    if port is not None:
        server = HttpPairProbeServer(client.post)
        pairs = PairProbeWorker(server, port, boot_id, clocks=clocks, rng=rng, keep=observer.keep)
        loops.append(Loop("pair_probes", pairs.run, is_vital=False))
    _log.info("agent_started", boot_id=boot_id, num_reports_kept=spool.state().num_reports)
    run_loops(loops, agent.stop, report=ProgressFile(agent.folder / PROGRESS_FILE).report)


def keep_sampling(observer: Observer, stop: threading.Event, rng: random.Random) -> None:
    """Sample on the interval with jitter, so that a fleet started at once does not report at once."""
    while not stop.is_set():
        observer.sample()
        stop.wait(observer.interval_s * rng.uniform(1 - JITTER, 1 + JITTER))


def keep_watching(observer: Observer, stop: threading.Event) -> None:
    while not stop.is_set():
        began_s = time.monotonic()
        if observer.watch(EVENT_WAIT_S) == 0 and time.monotonic() - began_s < EVENT_WAIT_S / 2:
            stop.wait(EARLY_PAUSE_S)


def _client(agent: AgentProcess, joining: Joining) -> TelemetryClient | None:
    """Return the client; None where the agent was asked to stop before the host had enrolled."""
    settings = agent.settings
    api_url = str(settings.api_url)
    if settings.api_key_file is not None:
        key_file = settings.api_key_file
        try:
            _read_key(key_file)
        except NoTokenError as fault:
            raise SettingsError([f"MUSTER_API_KEY_FILE: {fault}"]) from fault
        return TelemetryClient(api_url, token=lambda: _read_key(key_file), ca_file=settings.api_ca_file)
    enrolment = EnrolmentClient(api_url, ca_file=settings.api_ca_file)
    identity = stored_identity(agent.folder) or _enrolled(agent, enrolment, joining)
    if identity is None:
        return None
    keeper = TokenKeeper(
        identity,
        enrolment.ask_token,
        agent.boot_id,
        monotonic_ms=agent.clocks.boottime_ms,
        wall_ms=agent.clocks.wall_ms,
        rng=agent.rng,
        token_file=agent.folder / TOKEN_FILE,
    )
    return TelemetryClient(api_url, token=keeper.token, invalidate=keeper.invalidate, ca_file=settings.api_ca_file)


def _read_key(path: Path) -> str:
    """Return the key, read at each call: a renewed file takes effect at once."""
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise NoTokenError(f"{path} cannot be read ({error})") from error


def _enrolled(agent: AgentProcess, client: EnrolmentClient, joining: Joining) -> NodeIdentity | None:
    if joining.token_file is None:
        raise IdentityError(
            "this host has not enrolled yet: ask an operator for `muster join-token create <host name>`, put the token"
            " into a file, mode 0600, and name it with --join-token-file"
        )
    join_token = join_token_from(joining.token_file)
    host_name = joining.host_name or host_facts.host_name()
    inventory = agent.probe.identify()
    ports = rdma_ports_under(agent.host_root)
    while not agent.stop.is_set():
        state_waiting("waits until this host can enrol")
        try:
            return enrol(
                agent.folder, client, join_token=join_token, host_name=host_name, inventory=inventory, rdma_ports=ports
            )
        except (UnreachableError, Problem) as fault:
            if isinstance(fault, Problem) and not (fault.status >= 500 or fault.status in {408, 425, 429}):
                raise
            _log.warning("enrolment_waits", fault=str(fault), retry_s=ENROL_RETRY_S)
            agent.stop.wait(ENROL_RETRY_S)
    return None
