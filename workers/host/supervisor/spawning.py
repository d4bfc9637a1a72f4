"""Start of a supervisor that does not depend on its starter: own session, own parent, no descriptors."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from pathlib import Path

from workers.host.supervisor import files
from workers.host.supervisor.order import passed_on_environment

_ENTRY = Path(__file__).with_name("entry.py")
_HAND_OVER_PATIENCE_S = 2.0


def spawn_supervisor(attempt_dir: Path) -> int:
    """Start the supervisor of the order in ``attempt_dir``; returns its pid after it has left our tree.

    Whether it runs the program is a question for ``adopt``.

    Raises:
        OSError: the host cannot start processes, or the folder does not exist.
    """
    return _spawn([str(attempt_dir.resolve())], attempt_dir / files.SUPERVISOR_LOG, standard_input=None)


class WaitingSupervisor:
    """Supervisor without an attempt yet, with a torchrun that has done its imports. It ends with its starter."""

    def __init__(self, python: str, log: Path) -> None:
        """Start it. Raises OSError if the host cannot start processes."""
        self._channel, other = socket.socketpair()
        try:
            self.pid = _spawn(["--standby", python], log, standard_input=other.fileno())
        except OSError:
            self._channel.close()
            raise
        finally:
            other.close()

    def take(self, attempt_dir: Path) -> bool:
        """Return whether it is now that attempt's supervisor. False if it had died: then the attempt needs another.

        One that is only late takes the attempt all the same, or finds another on it: the attempt's lock admits one.
        """
        self._channel.settimeout(_HAND_OVER_PATIENCE_S)
        try:
            self._channel.sendall(str(attempt_dir.resolve()).encode())
            return bool(self._channel.recv(32))
        except OSError:
            return False
        finally:
            self._channel.close()

    def close(self) -> None:
        self._channel.close()


def _spawn(arguments: list[str], log: Path, standard_input: int | None) -> int:
    """Start it by posix_spawn, since forking a process with threads is unsafe; the second fork is the
    supervisor's own.
    """
    said, says = os.pipe2(os.O_CLOEXEC)
    log_flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    read_from = (
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
        if standard_input is None
        else (os.POSIX_SPAWN_DUP2, standard_input, 0)
    )
    try:
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", str(_ENTRY), *arguments],
            passed_on_environment(),
            file_actions=[
                read_from,
                (os.POSIX_SPAWN_DUP2, says, 1),
                (os.POSIX_SPAWN_OPEN, 2, str(log), log_flags, 0o600),
            ],
            setsid=True,
            setsigmask=(),
        )
    finally:
        os.close(says)
    with os.fdopen(said, "rb") as pipe:
        answer = pipe.read()
    with contextlib.suppress(ChildProcessError):  # if this process lets the kernel reap its children
        os.waitpid(pid, 0)
    if not answer:
        raise OSError(f"the supervisor did not start; see {log}")
    return int(answer)
