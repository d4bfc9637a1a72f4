"""A PostgreSQL that listens on a port and asks for passwords, as operators run it."""

import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from local.binaries import find_postgres, reachable_postgres
from local.processes import ServerProcess
from local.server_files import give_to, owner_for


class TcpPostgres:
    """One cluster at ``cluster``, below a folder that is its own. Never as root."""

    def __init__(self, cluster: Path, *, port: str, superuser: str, password: str) -> None:
        self._cluster = cluster
        self._home = cluster.parent
        self._port = port
        self._superuser = superuser
        self._password = password
        self._owner = owner_for(self._home)
        self._binaries = reachable_postgres(find_postgres(), self._owner)

    @property
    def programs(self) -> Path:
        """Where psql, pg_isready and the others are."""
        return self._binaries.directory

    def make(self, options: Sequence[str]) -> None:
        """The cluster, unless it is there. ``options``: more of initdb's."""
        if self._cluster.exists():
            return
        secret = self._home / "password"
        secret.write_text(self._password)
        for path in (self._home, secret):
            give_to(path, self._owner)
        owner = self._owner
        credentials: dict[str, Any] = {"user": owner.uid, "group": owner.gid, "extra_groups": []} if owner else {}
        made = subprocess.run(
            [
                self._binaries.initdb,
                "-D",
                self._cluster,
                f"--pwfile={secret}",
                f"--username={self._superuser}",
                *options,
            ],
            capture_output=True,
            text=True,
            check=False,
            cwd=self._home,
            **credentials,
        )
        assert made.returncode == 0, made.stderr
        secret.unlink()

    def start(self, log_path: Path, *, options: Sequence[str] = (), variables: Mapping[str, str]) -> ServerProcess:
        """``options``: of the server, as its command line has them."""
        return ServerProcess(
            [
                str(self._binaries.postgres),
                *("-D", str(self._cluster), "-c", f"port={self._port}"),
                *("-c", f"unix_socket_directories={self._home}", *options),
            ],
            owner=self._owner,
            death_signal=signal.SIGINT,
            log_path=log_path,
            working_dir=self._home,
            variables=variables,
        )
