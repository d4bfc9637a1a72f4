"""One all-gather of a group, seen from a host: the process that does it may hang, crash or say nothing."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from muster.wire.pairwise import CALLED_OFF, Meet

_ROOT: Final = str(Path(__file__).resolve().parents[3])
_START: Final = (
    "import sys; sys.path.insert(0, sys.argv[1]); from muster.train import pairwise; del sys.path[0]; pairwise.main()"
)
"""Our folder is on its path only while our own package is found: torch and all beneath it are the interpreter's."""
_FAILPOINT: Final = "MUSTER_TRAIN_FAILPOINT"
_WORDS: Final = 500
_LOOK_UP_S: Final = 0.25


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What the process says: a rate, or why there is none."""

    rate_bytes_per_s: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class _Order:
    """As ``muster.train.pairwise`` reads it."""

    key: str
    hosts: tuple[str, ...]
    rank: int
    address: str
    port: int
    listen_fd: int | None
    device: str
    gather_bytes: int
    num_gathers: int
    timeout_s: float


def meet(told: Meet, python: str, listening: socket.socket, is_called_off: Callable[[], bool]) -> Found:
    """``python``: an interpreter with torch. ``listening``: on the port that this host named, of use to rank 0 alone.

    ``is_called_off`` is asked several times a second.
    """
    descriptor = listening.fileno() if told.rank == 0 else None
    try:
        process = subprocess.Popen(  # noqa: S603  # our own program, by an interpreter that the host's owner names
            [python, "-I", "-c", _START, _ROOT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_environment(),
            pass_fds=() if descriptor is None else (descriptor,),
            start_new_session=True,
        )
    except OSError as fault:
        return Found(why=f"{python} cannot be started: {fault.strerror or fault}")
    with process:
        try:
            return _outcome(process, _order(told, descriptor), told.timeout_s, is_called_off)
        finally:
            _end(process)


def _order(told: Meet, descriptor: int | None) -> bytes:
    return msgspec.json.encode(
        _Order(
            key=told.key,
            hosts=told.hosts,
            rank=told.rank,
            address=told.address,
            port=told.port,
            listen_fd=descriptor,
            device=told.device,
            gather_bytes=told.gather_bytes,
            num_gathers=told.num_gathers,
            timeout_s=told.timeout_s,
        )
    )


def _outcome(
    process: "subprocess.Popen[bytes]", order: bytes, timeout_s: float, is_called_off: Callable[[], bool]
) -> Found:
    until = time.monotonic() + timeout_s
    given: bytes | None = order  # the first time alone
    while True:
        try:
            said, errors = process.communicate(given, timeout=_LOOK_UP_S)
        except subprocess.TimeoutExpired:
            given = None
            if is_called_off():
                return Found(why=CALLED_OFF)
            if time.monotonic() >= until:
                return Found(why=f"it did not end within {timeout_s:g} s")
        else:
            return _found(process.returncode, said, errors)


def _environment() -> dict[str, str]:
    """As jobs see it, NCCL's and gloo's settings among it; nothing of ours but a fault on purpose."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_") or name == _FAILPOINT}
    return {"OMP_NUM_THREADS": "1", **kept}


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _found(code: int, said: bytes, errors: bytes) -> Found:
    try:
        return msgspec.json.decode(said, type=Found)
    except msgspec.MsgspecError:
        ended = f"its process ended by signal {-code}" if code < 0 else f"its process ended with exit code {code}"
        last = errors.decode("utf-8", "replace").strip().rsplit("\n", 1)[-1][:_WORDS]
        return Found(why=f"{ended}: {last}" if last else ended)
