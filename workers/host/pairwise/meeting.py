"""One all-gather of a group, seen from a host that attends a check: it waits for the process that does it."""

import os
import socket
import time
from collections.abc import Callable
from typing import Final

import msgspec

from muster.wire.meeting import CALLED_OFF, Meet
from workers.host.supervisor.meeting import Meeting

_FAILPOINT: Final = "MUSTER_TRAIN_FAILPOINT"
_LOOK_UP_S: Final = 0.05


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What the process says: a rate, or why there is none."""

    rate_bytes_per_s: float | None = None
    why: str = ""


def meet(told: Meet, python: str, listening: socket.socket, is_called_off: Callable[[], bool]) -> Found:
    """``python``: an interpreter with torch. ``listening``: on the port that this host named, of use to rank 0 alone.

    ``is_called_off`` is asked several times a second.
    """
    descriptor = listening.fileno() if told.rank == 0 else None
    try:
        meeting = Meeting(python, msgspec.to_builtins(told), descriptor, _environment())
    except OSError as fault:
        return Found(why=f"{python} cannot be started: {fault.strerror or fault}")
    try:
        while (found := meeting.outcome()) is None:
            if is_called_off():
                return Found(why=CALLED_OFF)
            time.sleep(_LOOK_UP_S)
    finally:
        meeting.end()
    return msgspec.convert(found, Found)


def _environment() -> dict[str, str]:
    """As jobs see it, NCCL's and gloo's settings among it; nothing of ours but a fault on purpose."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_") or name == _FAILPOINT}
    return {"OMP_NUM_THREADS": "1", **kept}
