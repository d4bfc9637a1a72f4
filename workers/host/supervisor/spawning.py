"""Starting a supervisor so that nothing of it hangs on who started it: own session, own parent, no descriptors."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from workers.host.supervisor.order import passed_on_environment

_ENTRY = Path(__file__).with_name("entry.py")
_LOG = "supervisor.log"


def spawn_supervisor(attempt_dir: Path) -> int:
    """Start the supervisor of the order that lies in ``attempt_dir``; returns its pid once it has left our tree.

    posix_spawn, since forking a process with threads is a gamble; the second fork is the supervisor's own. That it
    runs the program is not said here: ``adopt`` tells.

    Raises:
        OSError: the host cannot start processes, or the folder is gone.
    """
    said, says = os.pipe2(os.O_CLOEXEC)
    log_flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    try:
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", str(_ENTRY), str(attempt_dir.resolve())],
            passed_on_environment(),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, says, 1),
                (os.POSIX_SPAWN_OPEN, 2, str(attempt_dir / _LOG), log_flags, 0o600),
            ],
            setsid=True,
            setsigmask=(),
        )
    finally:
        os.close(says)
    with os.fdopen(said, "rb") as pipe:
        answer = pipe.read()
    with contextlib.suppress(ChildProcessError):  # where this process lets the kernel reap its children
        os.waitpid(pid, 0)
    if not answer:
        raise OSError(f"the supervisor of {attempt_dir.name} did not start; see its {_LOG}")
    return int(answer)
