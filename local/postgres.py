"""A private PostgreSQL: durable, without root or a port, and ended together with this process."""

import signal
import time
from pathlib import Path
from typing import Literal, TextIO
from urllib.parse import quote

import psycopg
import structlog
from psycopg import sql

from local.binaries import find_postgres, reachable_postgres
from local.errors import EmbeddedServerError
from local.postgres_cluster import SUPERUSER, Cluster
from local.processes import ORPHAN_PATIENCE_S, ServerProcess
from local.server_files import prepare_home

DEFAULT_DATABASE = "muster"
# Recovery after a crash replays at most max_wal_size.
# It names the socket, and is given to server and clients alike: PGPORT in the environment would change it for them.
_PORT = 5432
_SOCKET_NAME = f".s.PGSQL.{_PORT}.lock"
_POSTGRES_SETTINGS = {
    "port": str(_PORT),
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "100",
    # One machine shared with everything else: small, and still ample for 100,000 GPUs' latest state.
    "shared_buffers": "64MB",
    "work_mem": "4MB",
    "maintenance_work_mem": "32MB",
    "max_wal_size": "512MB",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_checkpoints": "off",
    # The file is the only log; a collector would be one more process.
    "logging_collector": "off",
}
_NOT_DURABLE = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}

StopMode = Literal["smart", "fast", "immediate"]
_STOP_SIGNALS: dict[StopMode, signal.Signals] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}

log = structlog.get_logger(__name__)


class PostgresServer:
    """One server on one folder, which holds its cluster, socket, lock and log.

    `durable=False` turns off fsync, for data that is made and thrown away.
    """

    def __init__(self, data_dir: Path, *, log_path: Path | None = None, durable: bool = True) -> None:
        self._data_dir = data_dir
        self._requested_log_path = log_path
        self._durable = durable
        self._process: ServerProcess | None = None
        self._lock: TextIO | None = None
        self._socket_dir: Path | None = None
        self._version: str | None = None

    def start(self) -> None:
        """Start the server; return once it accepts connections and the database `muster` exists.

        It recovers from a crash.
        """
        if self.is_running():
            return
        started = time.monotonic()
        home = prepare_home(self._data_dir)
        cluster = Cluster(home)
        if self._lock is None:
            self._lock = home.lock()
        try:
            binaries = reachable_postgres(find_postgres(major=cluster.major), home.owner)
            if cluster.major is None:
                cluster.make(binaries)
            self._version = binaries.version
            self._socket_dir = home.socket_directory(_SOCKET_NAME)
            self.log_path = (self._requested_log_path or home.path / "postgres.log").absolute()
            command = [str(binaries.postgres), "-D", str(cluster.path), *self._settings(self._socket_dir)]
            self._process = self._launch(cluster, command)
            self._create_if_missing(DEFAULT_DATABASE)
        except BaseException:
            self.stop("immediate")
            raise
        log.info(
            "postgres_started",
            pid=self.pid,
            version=self._version,
            folder=str(home.path),
            after_s=round(time.monotonic() - started, 3),
        )

    def _launch(self, cluster: Cluster, command: list[str]) -> ServerProcess:
        deadline = time.monotonic() + ORPHAN_PATIENCE_S
        while True:
            cluster.clear_of_others()
            home = prepare_home(self._data_dir)
            process = ServerProcess(
                command,
                owner=home.owner,
                death_signal=signal.SIGINT,
                log_path=self.log_path,
                working_dir=home.path,
            )
            try:
                if process.wait_until(
                    lambda: cluster.is_ready(process.pid),  # noqa: B023
                    expected=f"PostgreSQL, whose log is {self.log_path}",
                ):
                    return process
            except BaseException:
                process.end((signal.SIGQUIT, 5.0))
                raise
            # A server killed a moment ago has children that still release its shared memory.
            if time.monotonic() > deadline:
                raise EmbeddedServerError(f"PostgreSQL did not start; {self.log_path} ends: {self._last_words()}")
            time.sleep(0.1)

    def _settings(self, socket_dir: Path) -> list[str]:
        settings = {**_POSTGRES_SETTINGS, "unix_socket_directories": f'"{socket_dir}"'}
        if not self._durable:
            settings |= _NOT_DURABLE
        return [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]

    def _last_words(self) -> str:
        return " | ".join(self.log_path.read_text(errors="replace").splitlines()[-4:])

    def stop(self, mode: StopMode = "fast") -> None:
        """End the server in any case, and release the folder."""
        if self._process is not None:
            self._process.end((_STOP_SIGNALS[mode], 30.0), (signal.SIGQUIT, 5.0))
            self._process = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def kill(self) -> None:
        """Send SIGKILL, as a crash would: the next start recovers."""
        if self._process is not None:
            self._process.end()
            self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def is_running(self) -> bool:
        return self._process is not None and self._process.is_running()

    @property
    def pid(self) -> int:
        if self._process is None:
            raise EmbeddedServerError("PostgreSQL is not running; start it first")
        return self._process.pid

    @property
    def version(self) -> str:
        """Return the version of the running programs, such as 15.18."""
        if self._version is None:
            raise EmbeddedServerError("PostgreSQL was not started yet; its version is not known")
        return self._version

    @property
    def socket_dir(self) -> Path:
        """Return the socket's folder, which stays the same over restarts until the machine restarts."""
        if self._socket_dir is None:
            raise EmbeddedServerError("PostgreSQL was not started yet; it has no address")
        return self._socket_dir

    def url(self, database: str = DEFAULT_DATABASE) -> str:
        """Return the address for SQLAlchemy."""
        host = quote(str(self.socket_dir), safe="/")
        return f"postgresql+psycopg://{SUPERUSER}@/{quote(database)}?host={host}&port={_PORT}"

    def dsn(self, database: str = DEFAULT_DATABASE) -> str:
        """Return the address for psycopg and libpq."""
        return psycopg.conninfo.make_conninfo(host=str(self.socket_dir), port=_PORT, user=SUPERUSER, dbname=database)

    def create_database(self, name: str, template: str | None = None) -> None:
        """Create a copy of the template, which must have no connections while it is copied."""
        source = sql.Identifier(template or "template1")
        self._execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), source))

    def drop_database(self, name: str) -> None:
        """Drop the database, even where connections are open; no error where it was not there."""
        self._execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def _create_if_missing(self, name: str) -> None:
        with psycopg.connect(self.dsn("postgres"), autocommit=True) as connection:
            if connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone() is None:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))

    def _execute(self, statement: sql.Composed) -> None:
        with psycopg.connect(self.dsn("postgres"), autocommit=True) as connection:
            connection.execute(statement)
