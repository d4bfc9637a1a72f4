"""A PostgreSQL data folder on disk: making it, reading its lock file, deciding whose server holds it."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import psutil

from local.binaries import PostgresBinaries
from local.errors import EmbeddedServerError
from local.processes import end_orphan
from local.server_files import ServerHome, give_to

SUPERUSER = "muster"
_STATUS_LINE = 7
# Trust is safe behind a socket in a folder of mode 0700. The files reach the disk with the first checkpoint's second:
# nothing is guaranteed about a cluster that is not yet made.
_INITDB_OPTIONS = ["-U", SUPERUSER, "-A", "trust", "--no-locale", "-E", "UTF8", "--no-sync"]


class Cluster:
    """The folder `cluster` within a server's home."""

    def __init__(self, home: ServerHome) -> None:
        self._home = home
        self.path = home.path / "cluster"
        self._lock_path = self.path / "postmaster.pid"

    @property
    def major(self) -> int | None:
        """Return the major version that made it; None where there is none yet."""
        try:
            return int((self.path / "PG_VERSION").read_text())
        except FileNotFoundError:
            return None

    def make(self, binaries: PostgresBinaries) -> None:
        """Run initdb in a temporary folder and rename it: one killed half way leaves nothing that looks whole."""
        for left_over in self._home.path.glob("cluster.making*"):
            shutil.rmtree(left_over)
        making = self._home.path / f"cluster.making-{os.getpid()}"
        making.mkdir(mode=0o700)
        give_to(making, self._home.owner)
        owner = self._home.owner
        made = subprocess.run(  # noqa: S603  # our own program and arguments, no shell
            [str(binaries.initdb), "-D", str(making), *_INITDB_OPTIONS],
            cwd=self._home.path,
            capture_output=True,
            text=True,
            check=False,
            user=owner.uid if owner else None,
            group=owner.gid if owner else None,
            extra_groups=[] if owner else None,
        )
        if made.returncode != 0:
            raise EmbeddedServerError(f"initdb failed in {making}: {made.stderr.strip() or made.stdout.strip()}")
        making.rename(self.path)

    def is_ready(self, pid: int) -> bool:
        """Return whether that server accepts connections: its lock file states it, which needs no connection."""
        lines = self._lock_lines()
        return len(lines) > _STATUS_LINE and lines[0] == str(pid) and lines[_STATUS_LINE].strip() == "ready"

    def clear_of_others(self) -> None:
        """End an orphaned server of this folder, and remove the lock of one that has ended.

        Called with the home's lock held, so a server found here has lost the process that started it. PostgreSQL itself
        judges a lock by whether *any* process has that number, which after a reboot some other process does.
        """
        if orphan := self._server():
            # It most likely shuts down already, having got its parent-death signal; so it is first given time.
            end_orphan(orphan, signal.SIGINT, signal.SIGQUIT)
        self._lock_path.unlink(missing_ok=True)
        for socket_lock in (self._home.path / "socket").glob(".s.PGSQL.*"):
            socket_lock.unlink()

    def _server(self) -> psutil.Process | None:
        lines = self._lock_lines()
        if not lines or not lines[0].lstrip("-").isdigit():
            return None
        try:
            process = psutil.Process(abs(int(lines[0])))
            # Every postmaster works in its data folder; a stranger with its number does not.
            return process if Path(process.cwd()) == self.path.resolve() else None
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return None

    def _lock_lines(self) -> list[str]:
        try:
            return self._lock_path.read_text().splitlines()
        except FileNotFoundError:
            return []
