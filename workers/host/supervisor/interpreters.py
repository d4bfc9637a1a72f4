"""Check of a tenant's virtual environment before its program starts, with the missing part in one sentence."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from pathlib import Path

from workers.host.supervisor import children
from workers.host.supervisor.missing import ENVIRONMENT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from workers.host.supervisor.order import Order
    from workers.host.supervisor.user.job_user import JobUser

LEAST_TORCH = 2
"""Least major version of torch: from it on, torchrun has all options that we use."""
_PATIENCE_S = 15.0
"""Patience with a shared file system slow to load an interpreter. No lease is read meanwhile: a usual one is longer."""
_MOST_BYTES = 1 << 16
_MARK = "muster-environment:"
_QUESTION = f"""
import importlib.metadata, importlib.util, json, sys
def version(name):
    try: return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError: return None
def is_there(name):
    try: return importlib.util.find_spec(name) is not None
    except ImportError: return False
found = {{"python": sys.version.split()[0], "torch": version("torch"), "train": is_there("muster.train")}}
print({_MARK!r} + json.dumps(found))
"""


class UnfitEnvironmentError(Exception):
    """The job's environment cannot run its program: the tenant's to fix."""

    lacks: str | None = ENVIRONMENT


class SilentInterpreterError(UnfitEnvironmentError):
    """The interpreter does not answer in time, as on a slow file system: a later start may succeed."""

    lacks = None


def check_venv(order: Order, environment: Mapping[str, str], place: Callable[[int], None]) -> str | None:
    """Check the virtual environment and return advice for the reader of the launcher's log, or None.

    Nothing is imported: torch's own import takes longer than all else of a start.

    Raises:
        UnfitEnvironmentError: it is no virtual environment, its interpreter does not run, or torchrun has no torch.
    """
    venv = Path(str(order.venv))
    if not (venv / "pyvenv.cfg").is_file():
        raise UnfitEnvironmentError(f"{venv} is no virtual environment on this host: it has no pyvenv.cfg")
    found = _ask(order.python, environment, place, order.user)
    if not order.is_torchrun:
        return None
    torch = found.get("torch")
    if not isinstance(torch, str):
        raise UnfitEnvironmentError(
            f"the virtual environment {venv} has no torch, and torchrun is part of it; install torch there, or let"
            " launcher command run the program without torchrun"
        )
    if _major(torch) < LEAST_TORCH:
        raise UnfitEnvironmentError(f"the virtual environment {venv} has torch {torch}; torchrun needs 2.0 or newer")
    if not found.get("train"):
        return (
            f"{venv} (Python {found.get('python')}, torch {torch}) has no muster.train: a program that imports it needs"
            " the wheel muster-train there; one that does not runs, and is restarted from its own files"
        )
    return None


def _major(version: str) -> int:
    head = version.split(".", 1)[0]
    return int(head) if head.isdecimal() else 0


def _ask(
    python: str, environment: Mapping[str, str], place: Callable[[int], None], user: JobUser | None
) -> dict[str, Any]:
    """Query the interpreter as the job's user, since it is the tenant's as much as the program."""
    reads, writes = os.pipe2(os.O_CLOEXEC)
    try:
        pid = children.start([python, "-c", _QUESTION], environment, "/", writes, place, user)
    except children.StartError as fault:
        raise UnfitEnvironmentError(f"the interpreter {python} cannot be run: {fault}") from fault
    finally:
        os.close(writes)
    with os.fdopen(reads, "rb") as pipe:
        said = _read(pipe.fileno())
    os.kill(pid, signal.SIGKILL)  # our child and not reaped yet: the number is its own; its output has been read
    os.waitpid(pid, 0)
    if said is None:
        raise SilentInterpreterError(f"the interpreter {python} did not answer within {_PATIENCE_S:.0f} s")
    lines = said.decode(errors="replace").strip().splitlines()
    for line in lines:
        if line.startswith(_MARK):
            with contextlib.suppress(ValueError, RecursionError):
                found = json.loads(line[len(_MARK) :])
                if isinstance(found, dict):
                    return found
    words = lines or ["nothing"]
    raise UnfitEnvironmentError(f"the interpreter {python} does not work; it printed: {words[-1][:300]}")


def _read(descriptor: int) -> bytes | None:
    """Return its output until its end, or until it exceeds an answer; None if it takes too long."""
    until = time.monotonic() + _PATIENCE_S
    said = b""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while poll.poll(max(0, round((until - time.monotonic()) * 1000))):
        piece = os.read(descriptor, _MOST_BYTES)
        said += piece
        if not piece or len(said) > _MOST_BYTES:
            return said
    return None
