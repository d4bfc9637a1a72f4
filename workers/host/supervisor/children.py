"""Starting a program: plain fork and exec, since the supervisor has one thread and every import costs its start."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from workers.host.supervisor.kernel import die_with_parent, enter_network, prefer_to_kill

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import NoReturn

    from workers.host.supervisor.user.job_user import JobUser

NOT_STARTED = 127
_USUAL_UMASK = 0o022
_TORCHRUN = "import gc; gc.disable(); from torch.distributed.run import main; gc.enable(); main()"
"""Code of ``python -m torch.distributed.run`` that imports torch, most of its start, without collecting garbage."""


class StartError(Exception):
    """The program could not become a process; the message has the kernel's reason."""


def start(
    program: list[str],
    environment: Mapping[str, str],
    working_dir: str,
    output: int,
    place: Callable[[int], None] | None = None,
    user: JobUser | None = None,
    network: int | None = None,
) -> int:
    """Start the program and return its pid; its output goes to ``output``. It dies with this process.

    ``place``: gets the pid before the process becomes the program, which waits for that. ``user``: the user to run as.
    ``network``: descriptor of the network that it enters.

    Raises:
        StartError: there is no such program or folder, or it may not be run.
    """
    # Close-on-exec: an empty read means that the exec has happened.
    said, says = os.pipe2(os.O_CLOEXEC)
    gate, opens_gate = os.pipe2(os.O_CLOEXEC)
    own_pid = os.getpid()
    child = os.fork()
    if child == 0:
        die_with_parent(own_pid)
        os.setsid()
        prefer_to_kill(0)
        os.close(opens_gate)
        os.read(gate, 1)  # its end: the other side is closed
        if network is not None:
            _change_network(network, says)
        if user is not None:
            _change_user(user, own_pid, says)
        become(program, environment, working_dir, output=output, on_failure=lambda fault: _report(says, fault))
    os.close(says)
    os.close(gate)
    try:
        if place is not None:
            place(child)
    finally:
        os.close(opens_gate)
    with os.fdopen(said, "rb") as pipe:
        refusal = pipe.read()
    if refusal:
        os.waitpid(child, 0)
        raise StartError(refusal.decode(errors="replace"))
    return child


def _change_network(network: int, report_fd: int) -> None:
    """Change to the network, or end: the process never continues in another one."""
    try:
        enter_network(network)
    except OSError as fault:
        _report(report_fd, fault)
        os._exit(NOT_STARTED)


def _change_user(user: JobUser, parent_pid: int, report_fd: int) -> None:
    """Change to the user, or end: the process never continues as another user."""
    try:
        user.become()
        die_with_parent(parent_pid)
    except OSError as fault:
        _report(report_fd, fault)
        os._exit(NOT_STARTED)


def become(
    program: list[str],
    environment: Mapping[str, str],
    working_dir: str,
    *,
    output: int,
    on_failure: Callable[[OSError], None],
) -> NoReturn:
    """Become the program in a fresh child, with default signals and mask. Never returns, whatever happens."""
    try:
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.umask(_USUAL_UMASK)
        # Python ignores these two, and an ignored signal stays ignored over exec.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        os.chdir(working_dir)
        os.execvpe(program[0], program, environment)  # noqa: S606  # no shell; the order names the program
    except OSError as fault:
        on_failure(fault)
    finally:
        os._exit(NOT_STARTED)


def _report(descriptor: int, fault: OSError) -> None:
    os.write(descriptor, str(fault).encode(errors="replace"))


def torchrun_command(python: str, args: list[str]) -> list[str]:
    return [python, "-c", _TORCHRUN, *args]


def torchrun_args(
    *,
    num_nodes: int,
    node_rank: int,
    ranks_per_node: int,
    host: str,
    port: int,
    log_dir: Path,
    rank_command: list[str],
) -> list[str]:
    """Return the arguments for one try with a static rendezvous: restarts are ours to decide, with a new attempt and
    fence.

    Only options that every torch 2 has are used: the tenant's environment need not have our version. The ``--`` ends
    torchrun's own options: else its parser compares each word of the program's, too, with the beginnings of its names.
    """
    return [
        f"--nnodes={num_nodes}",
        f"--node-rank={node_rank}",
        f"--nproc-per-node={ranks_per_node}",
        f"--master-addr={host}",
        f"--master-port={port}",
        "--max-restarts=0",
        f"--log-dir={log_dir}",
        "--no-python",
        "--",
        *rank_command,
    ]
