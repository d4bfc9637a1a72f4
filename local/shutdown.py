"""End of the stack: its processes together, then programs that still run, so that nothing stays behind.

A program is ended here in the way of a host's shutdown: SIGTERM, its grace, SIGKILL. Its attempt ends by the host's
fault, and the job runs again at the next start.
"""

import os
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from local.children import Child
from workers.host import supervisor

PATIENCE_S: Final = 10.0
_POLL_S: Final = 0.05


def stop_children(children: Sequence[Child]) -> None:
    """Stop all at once: the slowest one determines the time."""
    with ThreadPoolExecutor(max_workers=len(children)) as pool:
        tuple(pool.map(Child.stop, children))


def stop_programs(host_state_dir: Path) -> int:
    """End every program that a supervisor runs below this folder. Return how many there were."""
    running = [folder for folder in _attempts(host_state_dir) if _signal(folder, signal.SIGTERM)]
    deadline = time.monotonic() + PATIENCE_S
    left = running
    while left and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        left = [folder for folder in left if supervisor.adopt(folder).state == "running"]
    for folder in left:
        _signal(folder, signal.SIGKILL)
        time.sleep(_POLL_S)
        if supervisor.adopt(folder).state == "vanished":
            supervisor.reap_vanished(folder)
    return len(running)


def _attempts(host_state_dir: Path) -> list[Path]:
    return sorted((host_state_dir / "attempts").glob("att_*"))


def _signal(folder: Path, number: signal.Signals) -> bool:
    adoption = supervisor.adopt(folder)
    if adoption.state != "running" or adoption.pid is None:
        return False
    try:
        os.kill(adoption.pid, number)
    except ProcessLookupError:
        return False
    return True
