"""Memory of all processes of a stack, the jobs' too: the highest amount that was seen."""

import threading
from pathlib import Path
from typing import Final

from local.own_processes import processes_of

MEMORY_POLL_S: Final = 4.0
_KIB_PER_GIB: Final = 1 << 20


class MemoryWatch:
    """A check every few seconds, until closed, of the processes that work in ``folder`` or name it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ending = threading.Event()
        self._most_kib = 0
        self._thread = threading.Thread(target=self._run, name="memory-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> float:
        """End the checks; return the highest amount in GiB. Pages that processes share count once."""
        self._ending.set()
        self._thread.join()
        return self._most_kib / _KIB_PER_GIB

    def _run(self) -> None:
        while not self._ending.wait(MEMORY_POLL_S):
            self._most_kib = max(self._most_kib, sum(_used_kib(process) for process in processes_of(self._folder)))


def _used_kib(process: Path) -> int:
    """Return the proportional set size: a page that several processes map counts for each in part."""
    try:
        lines = (process / "smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
