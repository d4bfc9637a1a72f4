"""One child server: started with dropped privileges, ended together with this process, stopped for certain."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import psutil
import structlog

from local.errors import EmbeddedServerError
from local.progress import Patience, work_of
from local.server_files import Owner

POLL_S = 0.005
# A killed server's own children, and a server that shuts down because its parent died, have ended within this.
ORPHAN_PATIENCE_S = 3.0
log = structlog.get_logger(__name__)
_SHIM = Path(__file__).with_name("die_with_parent.py")


@cache
def _forking_thread() -> ThreadPoolExecutor:
    """Return the one thread all servers are forked from.

    The kernel sends the parent-death signal when the forking *thread* ends, so a server started from a short-lived
    thread would die with it. This one ends with the interpreter, which is when servers that were not stopped should
    stop.
    """
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="embedded-servers")


class ServerProcess:
    """A running child. `death_signal` is what it gets when this process dies in whatever way."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        owner: Owner | None,
        death_signal: signal.Signals,
        log_path: Path,
        working_dir: Path,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        uid, gid = (owner.uid, owner.gid) if owner else (-1, -1)
        shim = [sys.executable, "-I", "-S", str(_SHIM), str(os.getpid()), str(int(death_signal)), str(uid), str(gid)]
        environment = {**os.environ, **(variables or {})}

        def fork() -> subprocess.Popen[bytes]:
            with log_path.open("ab") as log:
                return subprocess.Popen(  # noqa: S603  # our own program and arguments, no shell
                    [*shim, *command],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=working_dir,
                    env=environment,
                    # A Ctrl-C at the terminal is for this process: it stops the servers after their clients.
                    start_new_session=True,
                )

        self._child = _forking_thread().submit(fork).result()

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def exit_status(self) -> int | None:
        """Return None while it runs; minus the signal's number where one ended it."""
        return self._child.poll()

    def is_running(self) -> bool:
        return self.exit_status is None

    def wait_until(self, is_ready: Callable[[], bool], *, expected: str) -> bool:
        """Return True once ready, False where the process ended first. It is waited for as long as it works.

        Raises:
            EmbeddedServerError: it hangs. ``expected`` names what was waited for.
        """
        patience = Patience(expected, lambda: work_of(self.pid), report=lambda words: log.info("waiting", words=words))
        while self.is_running():
            if is_ready():
                return True
            patience.require_progress()
            time.sleep(POLL_S)
        return False

    def end(self, *steps: tuple[signal.Signals, float]) -> None:
        """Send each signal and wait so many seconds for its effect, until one works; SIGKILL is always the last."""
        for number, patience_s in (*steps, (signal.SIGKILL, 10.0)):
            if not self.is_running():
                return
            self._child.send_signal(number)
            try:
                self._child.wait(timeout=patience_s)
            except subprocess.TimeoutExpired:
                continue
        if self.is_running():
            raise EmbeddedServerError(f"process {self.pid} survived SIGKILL; it hangs in the kernel")


def end_orphan(process: psutil.Process, *signals: signal.Signals) -> None:
    """End a server that another, dead process started: wait, then send each signal and wait again."""
    for number in (None, *signals, signal.SIGKILL):
        try:
            if number is not None:
                process.send_signal(number)
        except psutil.NoSuchProcess:
            return
        if _is_gone_within(process, ORPHAN_PATIENCE_S):
            return
    raise EmbeddedServerError(f"the orphaned server {process.pid} survived SIGKILL; it hangs in the kernel")


def _is_gone_within(process: psutil.Process, patience_s: float) -> bool:
    """Return whether the process ends in time. A zombie counts as ended.

    In a container whose first process reaps no children it stays in the table without end.
    """
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(POLL_S)
    return False
