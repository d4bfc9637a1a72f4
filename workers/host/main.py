"""Process of ``muster worker host``: the launcher, its log relay, and the wake-up listener as a child that dies with
it.
"""

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

import structlog

from muster.client.host import HostClient
from muster.client.key_file import KeyFile
from muster.processes import Loop, run_loops, stop_on_signals
from muster.progress_file import ProgressFile
from muster.settings import Settings, SettingsError
from workers.host.bundle_order import BundlesHost, building_capabilities, package_index
from workers.host.content.keeping import BundleKeeper
from workers.host.content.own_network import can_be_made
from workers.host.identity import HostIdentity, host_identity
from workers.host.job_users import JobUsers, job_users, open_ways
from workers.host.launcher import HostConfig, Launcher
from workers.host.ledger_file import LedgerFile, current_boot_id
from workers.host.log_relay import LogRelay
from workers.host.outputs.keeper import OutputKeeper
from workers.host.progress import PROGRESS_FILE
from workers.host.wake_socket import WakeupSocket
from workers.host.watch.host_watch import HostWatch
from workers.wakeup.command import BROKER_VARIABLE, ListenerArguments

LOG_RELAY_S: Final = 0.2
LISTENER_PAUSE_S: Final = 2.0
_log = structlog.get_logger(__name__)


def run(settings: Settings, node_id: str | None = None) -> None:
    """Run until SIGTERM or SIGINT; programs continue, and the next launcher adopts them.

    Without ``node_id`` it waits for this host's agent to enrol, and acts as that node with the agent's token.

    Raises:
        SettingsError: the address of the control plane is missing, or a key that was named; or programs cannot run
            as the users that are set for them.
        LauncherIsRunningError: another launcher works in the same state folder.
    """
    settings.require("api_url")
    users = job_users(settings)
    stop = stop_on_signals()
    identity = host_identity(settings, node_id, stop)
    if identity is not None:
        _launch(settings, identity, users, stop)


def _launch(settings: Settings, identity: HostIdentity, users: JobUsers, stop: threading.Event) -> None:
    node_id = identity.node_id
    state_dir = settings.state_dir.absolute()
    ledger_file = LedgerFile(state_dir)
    open_ways(state_dir, users)
    # A connection each: neither logs nor bundles may delay a heartbeat.
    beats, logs, bundles, outputs = (_client(settings, identity.key_file) for _ in range(4))
    relay = LogRelay(state_dir, logs)
    index, has_users = package_index(settings), users.first is not None
    at = BundlesHost(
        state_dir,
        str(settings.api_url),
        identity.key_file.absolute(),
        None if settings.api_ca_file is None else settings.api_ca_file.absolute(),
        settings.bundle_cache_bytes,
        index,
        building_capabilities(index, can_isolate=has_users and can_be_made()),
        node_id=node_id,
    )
    config = HostConfig(
        node_id=node_id,
        state_dir=state_dir,
        python=str(settings.job_python or sys.executable),
        boot_id=settings.simulated_boot_id or current_boot_id(),
        is_warm=settings.warm_start,
        checkpoints_dir=None if settings.checkpoints_dir is None else settings.checkpoints_dir.absolute(),
        scratch=_scratch_of(settings),
        secrets_dir=None if settings.job_secrets_dir is None else settings.job_secrets_dir.absolute(),
        job_users=users,
        bundles=at,
    )
    launcher = Launcher(config, beats, ledger_file, relay)
    wakeup_socket = WakeupSocket(state_dir / "wakeup.sock")
    loops = [
        Loop("launcher", lambda stop: launcher.run(wakeup_socket, stop)),
        Loop("log_relay", lambda stop: _relay_logs(relay, stop)),
        Loop("watch", HostWatch(state_dir).run, is_vital=False),
        Loop("bundles", BundleKeeper(state_dir, bundles).run, is_vital=False),
        Loop("outputs", OutputKeeper(at, outputs, settings.output_wait_bytes).run, is_vital=False),
    ]
    if settings.broker_url is not None:
        listener = ListenerLoop(node_id, wakeup_socket.path, settings.broker_url)
        loops.append(Loop("wakeups", listener, is_vital=False))
    _log.info("host_worker_started", node_id=node_id, boot_id=config.boot_id)
    try:
        run_loops(loops, stop, report=ProgressFile(state_dir / PROGRESS_FILE).report)
    finally:
        wakeup_socket.close()
        ledger_file.close()


def _scratch_of(settings: Settings) -> dict[str, str]:
    """Return the variables that name the host's space for copies of datasets."""
    folder = None if settings.scratch_dir is None else settings.scratch_dir.absolute()
    told = {"MUSTER_SCRATCH_DIR": folder, "MUSTER_SCRATCH_BYTES": settings.scratch_bytes}
    return {name: str(value) for name, value in told.items() if value is not None}


def _client(settings: Settings, key_file: Path) -> HostClient:
    """Return a client that reads the token again after a refusal, since the agent renews it hourly in the file."""
    try:
        key = KeyFile(key_file)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError([f"MUSTER_API_KEY_FILE: {key_file} cannot be read ({error})"]) from error
    return HostClient(str(settings.api_url), key, ca_file=settings.api_ca_file)


def _relay_logs(relay: LogRelay, stop: threading.Event) -> None:
    while not stop.wait(LOG_RELAY_S):
        relay.drain_all()


class ListenerLoop:
    """Loop that keeps the wake-ups' Celery worker running; without a broker the host still works, a heartbeat later."""

    def __init__(self, node_id: str, wakeup_socket: Path, broker_url: str) -> None:
        self._command = ListenerArguments(node_id, wakeup_socket, os.getpid()).command()
        self._environment = {**os.environ, BROKER_VARIABLE: broker_url}

    def __call__(self, stop: threading.Event) -> None:
        listener = subprocess.Popen(self._command, env=self._environment, stdin=subprocess.DEVNULL)  # noqa: S603  # our own module, fixed arguments
        try:
            while not stop.wait(0.5):
                if listener.poll() is not None:
                    _log.warning("wakeup_listener_ended", exit_code=listener.returncode)
                    stop.wait(LISTENER_PAUSE_S)
                    return
        finally:
            if listener.poll() is None:
                listener.terminate()
                try:
                    listener.wait(3)
                except subprocess.TimeoutExpired:
                    listener.kill()
                    listener.wait()
