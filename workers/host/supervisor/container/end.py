"""A container's end: the meaning of its engine's exit code, and the proof that the engine has removed it."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from workers.host.supervisor import files
from workers.host.supervisor.children import StartError
from workers.host.supervisor.container.containers import (
    CONTAINER_ID,
    CONTAINER_PID,
    ENROOT,
    PODMAN,
    container_name,
    engine_environment,
    find_engine,
)
from workers.host.supervisor.missing import ENGINE, IMAGE
from workers.host.supervisor.record.exit_record import HOST, PROGRAM

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from workers.host.supervisor.container.containers import Engine
    from workers.host.supervisor.order import Order

ENGINE_FAILED, NOT_RUN, NOT_FOUND = 125, 126, 127
"""Exit codes of podman and docker: no container was made; its program may not be run; the image has no such program.

Any program may end with them, and an engine with 126 where its runtime was refused something else."""
_KILLED = 128 + signal.SIGKILL
_ENGINE_PREFIXES = ("Error: ", "docker: ")
_TENANTS_FAULT = re.compile(
    r"manifest unknown|name unknown|no such image|short-name|duplicate mount|repository does not exist"
    r"|(manifest|image|repository)\b.*\bnot found|exec: \"|executable file|open executable|workdir|chdir to cwd",
    re.IGNORECASE,
)
_NO_DAEMON = re.compile(
    r"(cannot|failed to) connect to (the docker|podman)|permission denied while trying to connect to the docker",
    re.IGNORECASE,
)
"""The words of docker's and podman's clients without a daemon that answers them."""
_DOCKER_REFUSED = "docker: Error response from daemon"
_NONE_THERE = re.compile(rb"no such container|no container with name", re.IGNORECASE)


def has_own_group(order: Order) -> bool:
    """Return whether an engine runs the program in a group of its own: ours then holds only the engine's client."""
    return _engine(order) is not None


def _engine(order: Order) -> Engine | None:
    """Return the engine that keeps containers; enroot keeps none, its program is our child."""
    if order.container is None:
        return None
    try:
        engine = find_engine(order.container)
    except StartError:
        return None
    return None if engine.kind == ENROOT else engine


def was_made(folder: Path) -> bool:
    return _is_written(folder / CONTAINER_ID)


def _has_begun(engine: Engine, folder: Path, by_engine: Sequence[str]) -> bool:
    """Return whether the container's program ran: by podman's file; for docker, by its client's last line."""
    if engine.kind == PODMAN:
        return _is_written(folder / CONTAINER_PID)
    return was_made(folder) and not (by_engine and by_engine[-1].startswith(_DOCKER_REFUSED))


def _is_written(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def code_of_program(order: Order, code: int | None) -> int | None:
    """Return the code as ``os.waitstatus_to_exitcode`` does: the engine's client reports SIGKILL as a code."""
    return -signal.SIGKILL if code == _KILLED and has_own_group(order) else code


def why_not_started(
    order: Order, folder: Path, exit_code: int | None, stated: str
) -> tuple[str, str, str | None] | None:
    """Return why the container's program never ran, whose fault that is, and the missing part if a person has to supply
    it: by the engine's code, files and output.

    None if it ran.
    """
    engine = _engine(order)
    if exit_code not in {ENGINE_FAILED, NOT_RUN, NOT_FOUND} or engine is None:
        return None
    lines = stated.strip().splitlines()
    by_engine = [line.strip() for line in lines if line.startswith(_ENGINE_PREFIXES)]
    words = (by_engine or lines or [f"its engine ended with code {exit_code}"])[-1].strip()
    is_tenants = any(_TENANTS_FAULT.search(line) for line in by_engine)
    if not _has_begun(engine, folder, by_engine) and not (
        is_tenants and order.is_torchrun and exit_code != ENGINE_FAILED
    ):
        if is_tenants:
            return f"the container was not started: {words}", PROGRAM, IMAGE
        return f"the container was not started: {words}", HOST, ENGINE if _NO_DAEMON.search(words) else None
    has_ranks = any((folder / files.RANKS / f"{rank}.json").exists() for rank in order.local_ranks)
    if exit_code == ENGINE_FAILED or not order.is_torchrun or has_ranks:
        return None
    return f"the container could not run {order.python}: {words}", PROGRAM, IMAGE


def remove(order: Order, folder: Path, timeout_s: float) -> bool:
    """End and remove what the engine still has; return whether it has nothing any more, as the engine itself reports.

    An engine that does not answer in time, or refuses, may still have it; but not if none was ever made.
    """
    engine = _engine(order)
    if engine is None:
        return True
    import subprocess  # noqa: PLC0415  # only here, and after the program
    import tempfile  # noqa: PLC0415

    environment = engine_environment(engine, order, {})
    for mark in order.marks:  # else the engine's client would be killed with the attempt's processes
        environment.pop(mark.split("=", 1)[0])
    with tempfile.TemporaryFile() as said:
        try:
            ended = subprocess.run(  # noqa: S603  # the engine's own command, no shell
                removal(engine, container_name(order)),
                env=environment,
                timeout=timeout_s,
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        said.seek(0)
        return ended.returncode == 0 or bool(_NONE_THERE.search(said.read(1 << 16))) or not was_made(folder)


def removal(engine: Engine, name: str) -> list[str]:
    """Return the command that ends its processes at once, and succeeds if there is no container."""
    return [engine.path, "rm", "--force", *(("--time=0", "--ignore") if engine.kind == PODMAN else ()), name]
