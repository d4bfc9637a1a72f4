"""A torchrun that has done its imports before there is a job: a child of a supervisor that waits for its order."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
from pathlib import Path

from workers.host.supervisor import children, files, supervise
from workers.host.supervisor.order import passed_on_environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from workers.host.supervisor.order import Order
    from workers.host.supervisor.user.job_user import JobUser

_WARM_TORCHRUN = Path(__file__).with_name("warm_torchrun.py")
_READY_PATIENCE_MS = 30_000
"""Patience with one that still imports, which takes long on a busy host: it has less to do than a new one."""
_READ_AT_IMPORT = ("PYTHON", "LD_", "TORCH", "LOGLEVEL")
"""Beginnings of names that torchrun and its interpreter read before there is an order."""


class Standby:
    """One warm torchrun, for one attempt at most. It dies with the process that made it."""

    def __init__(self, python: str) -> None:
        """Start it. Raises StartError or OSError if it cannot be started."""
        self._python = python
        self._environment = {"PATH": os.defpath, "OMP_NUM_THREADS": "1", **passed_on_environment()}
        self._channel, other = socket.socketpair()
        nothing = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        other.set_inheritable(True)
        try:
            command = [python, str(_WARM_TORCHRUN), str(other.fileno())]
            self.pid = children.start(command, self._environment, "/", nothing)
        finally:
            other.close()
            os.close(nothing)

    def fits(self, order: Order) -> bool:
        """Return whether it fits: the program brings no other interpreter, and no settings that count from the first
        import on.
        """
        return (
            order.is_torchrun
            and order.container is None
            and not order.has_environment
            and order.python == self._python
            and not any(name.startswith(_READ_AT_IMPORT) for name in (*order.env, *order.secrets.variables))
        )

    def run(
        self,
        args: list[str],
        environment: Mapping[str, str],
        working_dir: str,
        output: int,
        place: Callable[[int], None],
        user: JobUser,
    ) -> bool:
        """Become torchrun with these, after ``place`` got its pid.

        False if it has died or hangs; then it is discarded, and nothing was started.
        """
        if self._is_ready():
            place(self.pid)
            said = {"args": args, "env": dict(environment), "working_dir": working_dir, "user": user.message()}
            message = json.dumps(said).encode() + b"\n"
            try:
                sent = socket.send_fds(self._channel, [message], [output])
                # It runs the program from the last byte on and closes its end. Sending nothing there would fail, and a
                # second torchrun would start the same ranks again.
                if sent < len(message):
                    self._channel.sendall(message[sent:])
            except OSError:
                self.discard()
                return False
            self._channel.close()
            return True
        self.discard()
        return False

    def _is_ready(self) -> bool:
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        return bool(poll.poll(_READY_PATIENCE_MS)) and self._channel.recv(1) == b"r"

    def discard(self) -> None:
        self._channel.close()
        os.kill(self.pid, signal.SIGKILL)  # our child and not reaped yet: the number is its own
        os.waitpid(self.pid, 0)


def main(python: str) -> int:
    """Wait on standard input, a socket, for the folder of an attempt, answer with our pid and be its supervisor.

    If the launcher's end closes first, no folder will come: then all of this ends.
    """
    channel = socket.socket(fileno=os.dup(0))
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123  # only its number is needed
        os.dup2(nothing.fileno(), 0)
    warm = Standby(python)
    folder = channel.recv(4096).decode()
    if not folder:
        warm.discard()
        return 0
    log = os.open(Path(folder) / files.SUPERVISOR_LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    for number in (1, 2):
        os.dup2(log, number)
    os.close(log)
    with contextlib.suppress(OSError):  # the launcher has ended or has given us up: the attempt's lock decides
        channel.sendall(str(os.getpid()).encode())
    channel.close()
    return supervise.main(folder, warm)
