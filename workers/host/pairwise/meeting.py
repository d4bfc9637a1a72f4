"""One all-gather of a group on a host that attends a check: it waits for the process that does it."""

import os
import socket
import time
from collections.abc import Callable
from typing import Final

import msgspec

from muster.wire.meeting import CALLED_OFF, PairwiseOrder
from workers.host.supervisor.meeting import Meeting

_FAILPOINT: Final = "MUSTER_TRAIN_FAILPOINT"
_POLL_S: Final = 0.05


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Result from the process: a rate, or why there is none."""

    rate_bytes_per_s: float | None = None
    why: str = ""


def meet(order: PairwiseOrder, python: str, listening: socket.socket, is_called_off: Callable[[], bool]) -> Found:
    """Run the process. ``python``: an interpreter with torch. ``listening``: on the port that this host named.

    Only rank 0 uses ``listening``. ``is_called_off`` is called several times a second.
    """
    descriptor = listening.fileno() if order.rank == 0 else None
    try:
        meeting = Meeting(python, msgspec.to_builtins(order), descriptor, _environment())
    except OSError as fault:
        return Found(why=f"{python} cannot be started: {fault.strerror or fault}")
    try:
        while (found := meeting.outcome()) is None:
            if is_called_off():
                return Found(why=CALLED_OFF)
            time.sleep(_POLL_S)
    finally:
        meeting.end()
    return msgspec.convert(found, Found)


def _environment() -> dict[str, str]:
    """Return the environment as jobs see it, with NCCL's and gloo's settings, and none of Muster's variables except a
    fault.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_") or name == _FAILPOINT}
    return {"OMP_NUM_THREADS": "1", **kept}
