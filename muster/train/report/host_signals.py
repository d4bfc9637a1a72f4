"""Readings of this process and its host that explain why a rank is slow, once a report.

| field | |
|---|---|
| ``cpu_wait_s`` | seconds of a step for which the main thread was ready and had no processor |
| ``gc_s`` | seconds of a step in Python's garbage collection |
| ``threads_s`` | processor seconds of a step of the process's other threads |
| ``io_wait_s`` | seconds of a step for which the main thread waited for a disk, if the kernel counts it |
| ``steal_share`` | the share of the host's processor time that its hypervisor gave to others |
| ``switches_per_s`` | times a second that the process lost its processor before its time |
| ``read_bytes_per_s`` | bytes a second that the process read from disks |

A reading that the kernel does not offer is left out.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import time
from typing import Final

from muster.train.runtime.devices import read_start

_SECONDS: Final = ("cpu_wait_s", "gc_s", "threads_s", "io_wait_s")
_NANO: Final = 1e-9
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_BLOCK_TICKS: Final = 39
"""Position in ``/proc/PID/stat`` after the name in parentheses: field 42."""
_STEAL: Final = 7


class HostSignals:
    """The readings of one process. Counters are read once a report, and their differences reported."""

    def __init__(self) -> None:
        self._gc_s = 0.0
        self._gc_began: float | None = None
        self._is_watching = False
        self._before = self._read()
        self._before_s = time.monotonic()

    def watch(self) -> None:
        """Measure garbage collection, until ``leave``."""
        if not self._is_watching:
            self._is_watching = True
            gc.callbacks.append(self._collects)

    def leave(self) -> None:
        if self._is_watching:
            self._is_watching = False
            with contextlib.suppress(ValueError):  # the program has cleared the list
                gc.callbacks.remove(self._collects)

    def word(self, num_steps: int) -> dict[str, float]:
        """Return means over the steps since the last call."""
        now, now_s = self._read(), time.monotonic()
        more = {name: now[name] - self._before[name] for name in now if name in self._before}
        elapsed_s = max(now_s - self._before_s, 1e-9)
        self._before, self._before_s = now, now_s
        steps = max(num_steps, 1)
        found: dict[str, float] = {name: more[name] / steps for name in _SECONDS if name in more}
        found |= {f"{name}_per_s": more[name] / elapsed_s for name in ("switches", "read_bytes") if name in more}
        if more.get("all_ticks", 0.0) > 0:  # kernel counters are read one after another, and may even go back
            found["steal_share"] = min(more["steal_ticks"] / more["all_ticks"], 1.0)
        return {name: round(max(value, 0.0), 6) for name, value in found.items()}

    def _collects(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            self._gc_began = time.perf_counter()
        elif self._gc_began is not None:
            self._gc_s += time.perf_counter() - self._gc_began
            self._gc_began = None

    def _read(self) -> dict[str, float]:
        own_s = time.thread_time()
        found = {
            "gc_s": self._gc_s,
            "threads_s": time.process_time() - own_s,
            "switches": float(resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw),
        }
        for path, read in _FILES:
            with contextlib.suppress(OSError, ValueError, IndexError):
                found |= read(read_start(path))
        return found


def _of_scheduler(content: bytes) -> dict[str, float]:
    return {"cpu_wait_s": int(content.split()[1]) * _NANO}


def _of_thread(content: bytes) -> dict[str, float]:
    return {"io_wait_s": int(content.rpartition(b")")[2].split()[_BLOCK_TICKS]) / _TICKS}


def _of_disk(content: bytes) -> dict[str, float]:
    _, _, rest = content.partition(b"\nread_bytes: ")
    return {"read_bytes": float(int(rest.split()[0]))}


def _of_host(content: bytes) -> dict[str, float]:
    ticks = [int(each) for each in content.split(b"\n", 1)[0].split()[1 : _STEAL + 2]]
    return {"all_ticks": float(sum(ticks)), "steal_ticks": float(ticks[_STEAL])}


_FILES: Final = (
    ("/proc/thread-self/schedstat", _of_scheduler),
    ("/proc/thread-self/stat", _of_thread),
    ("/proc/self/io", _of_disk),
    ("/proc/stat", _of_host),
)
