"""The end of an attempt whose test has ended: no process of it lives on, and no group of the kernel's."""

import contextlib
import os
import signal
from pathlib import Path

from tests.waiting import wait_until
from workers.host import supervisor
from workers.host.supervisor import files
from workers.host.supervisor.lock import is_locked
from workers.host.supervisor.proof.processes import attempt_processes


def bury(folder: Path) -> None:
    wait_until(lambda: _is_gone(folder), pause_s=0.005)
    supervisor.prove_clean(folder)


def _is_gone(folder: Path) -> bool:
    """A supervisor that was just spawned may hold no lock yet: it is kept from starting, or killed a moment later."""
    for pid in (supervisor.adopt(folder).pid, *_programs_of(folder)):
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    if supervisor.refuse_start(folder, "its test has ended"):
        return True
    return not is_locked(folder / files.LOCK) and any((folder / name).exists() for name in (files.IDENTITY, files.EXIT))


def _programs_of(folder: Path) -> set[int]:
    order = files.read_json(folder / files.ORDER)
    if order is None:
        return set()
    marks = (f"MUSTER_ATTEMPT_ID={order.get('attempt_id')}", f"MUSTER_NODE_ID={order.get('node_id')}")
    return attempt_processes(marks, None)
