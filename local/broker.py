"""A private Valkey or Redis for wake-ups; PostgreSQL keeps the state, yet the broker loses at most its last second.

It listens on a Unix socket only. Celery works over `redis+socket://` as fast as over TCP, and a private folder is a
better lock than a password: there is no port to race for and no secret to keep.
"""

import signal
import time
from pathlib import Path
from typing import TextIO
from urllib.parse import quote

import psutil
import redis
import structlog

from local.binaries import BROKER_NAMES, find_broker, reachable_broker
from local.errors import EmbeddedServerError
from local.processes import ServerProcess, end_orphan
from local.server_files import ServerHome, prepare_home

_SOCKET_NAME = "broker.sock"
_BROKER_SETTINGS = {
    "port": "0",
    "unixsocketperm": "700",
    "appendonly": "yes",
    "appendfsync": "everysec",
    # A kill in the middle of a write leaves half a command at the end; the whole ones before it are loaded.
    "aof-load-truncated": "yes",
    "save": "",
    # A broker that drops messages to free space is worse than one that reports that it is full.
    "maxmemory-policy": "noeviction",
    "maxmemory": "512mb",
    "daemonize": "no",
}

log = structlog.get_logger(__name__)


class BrokerServer:
    """One server on one folder, which holds its append-only file, socket, lock and log."""

    def __init__(self, data_dir: Path, *, log_path: Path | None = None) -> None:
        self._data_dir = data_dir
        self._requested_log_path = log_path
        self._process: ServerProcess | None = None
        self._lock: TextIO | None = None
        self._socket: Path | None = None
        self._version: str | None = None

    def start(self) -> None:
        """Start the server; return once it answers with its data loaded."""
        if self.is_running():
            return
        started = time.monotonic()
        home = prepare_home(self._data_dir)
        if self._lock is None:
            self._lock = home.lock()
        try:
            binary = reachable_broker(find_broker(), home.owner)
            self._version = binary.version
            self._socket = home.socket_directory(_SOCKET_NAME) / _SOCKET_NAME
            self.log_path = (self._requested_log_path or home.path / "broker.log").absolute()
            self._process = self._launch(home, str(binary.path))
        except BaseException:
            self.stop()
            raise
        log.info(
            "broker_started",
            pid=self.pid,
            version=self._version,
            folder=str(home.path),
            after_s=round(time.monotonic() - started, 3),
        )

    def _launch(self, home: ServerHome, program: str) -> ServerProcess:
        data = home.sub_directory("data")
        _end_orphans(data)
        self.socket.unlink(missing_ok=True)
        settings = {**_BROKER_SETTINGS, "dir": str(data), "unixsocket": str(self.socket)}
        process = ServerProcess(
            [program, *(part for name, value in settings.items() for part in (f"--{name}", value))],
            owner=home.owner,
            death_signal=signal.SIGTERM,
            log_path=self.log_path,
            working_dir=home.path,
        )
        try:
            if process.wait_until(self._answers, expected=f"the broker, whose log is {self.log_path}"):
                return process
        except BaseException:
            process.end((signal.SIGTERM, 5.0))
            raise
        last_words = " | ".join(self.log_path.read_text(errors="replace").splitlines()[-4:])
        raise EmbeddedServerError(f"the broker did not start; {self.log_path} ends: {last_words}")

    def _answers(self) -> bool:
        if not self.socket.exists():
            return False
        try:
            with redis.Redis(unix_socket_path=str(self.socket)) as client:
                return bool(client.ping())
        except redis.RedisError:
            # Refused, or still loading.
            return False

    def stop(self) -> None:
        """End the server with its data flushed, and release the folder."""
        if self._process is not None:
            self._process.end((signal.SIGTERM, 15.0))
            self._process = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def kill(self) -> None:
        """Send SIGKILL, as a crash would: up to a second of messages may be lost."""
        if self._process is not None:
            self._process.end()
            self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def is_running(self) -> bool:
        return self._process is not None and self._process.is_running()

    def flush_all(self) -> None:
        """Empty all of its databases."""
        with redis.Redis(unix_socket_path=str(self.socket)) as client:
            client.flushall()

    @property
    def pid(self) -> int:
        if self._process is None:
            raise EmbeddedServerError("the broker is not running; start it first")
        return self._process.pid

    @property
    def version(self) -> str:
        if self._version is None:
            raise EmbeddedServerError("the broker was not started yet; its version is not known")
        return self._version

    @property
    def socket(self) -> Path:
        if self._socket is None:
            raise EmbeddedServerError("the broker was not started yet; it has no address")
        return self._socket

    @property
    def url(self) -> str:
        """Return the address for Celery and kombu."""
        return f"redis+socket://{quote(str(self.socket), safe='/')}?virtual_host=0"


def _end_orphans(data: Path) -> None:
    """End a server whose starter is dead: it has its parent-death signal already, so it mostly needs a moment."""
    for process in psutil.process_iter(["name", "cwd"]):
        # It works in its data folder, and nothing else of that name does.
        if process.info["name"] not in BROKER_NAMES or process.info["cwd"] != str(data.resolve()):
            continue
        end_orphan(process, signal.SIGTERM)
