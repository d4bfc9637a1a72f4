"""Time and memory of the device that a program computes on: its own host, or a GPU that runs behind the program."""

from __future__ import annotations

import os
import time
from typing import Any, Final, Protocol, cast

import torch

_MOST_BYTES: Final = 512
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def read_start(path: str) -> bytes:
    """Return the first bytes of a file of the kernel. Raises OSError.

    It needs a quarter of the time of Python's own files, and is called while a program trains.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _MOST_BYTES)
    finally:
        os.close(descriptor)


class Device(Protocol):
    """A device that marks moments and later gives the time between two of them."""

    @property
    def gpu(self) -> str | None:
        """The GPU's product name, as its driver gives it; None on a host without a GPU."""

    def mark(self) -> Any:
        """Return a mark of this moment."""

    def stream(self) -> int:
        """Return the stream of the device into which the program's work goes now; always 0 without streams."""

    def has_passed(self, mark: Any) -> bool:
        """Return whether all work before the mark is done."""

    def seconds(self, earlier: Any, later: Any) -> float:
        """Return the seconds between two marks that have passed."""

    def memory_bytes(self) -> int:
        """Return the most bytes that were allocated so far, or the bytes in use now if the device keeps no peak."""

    def used_bytes(self) -> int:
        """Return the bytes that are allocated now."""


class Host:
    """Device of a program that computes on its host's CPU."""

    gpu = None

    mark = staticmethod(time.perf_counter)

    def stream(self) -> int:
        return 0

    def has_passed(self, mark: float) -> bool:
        del mark
        return True

    def seconds(self, earlier: float, later: float) -> float:
        return later - earlier

    def memory_bytes(self) -> int:
        return int(read_start("/proc/self/statm").split()[1]) * _PAGE_BYTES

    used_bytes = memory_bytes


class Gpu:
    """Device of a program whose GPU stream runs later than the program: a mark is an event in the stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.gpu: str | None = torch.cuda.get_device_name(device)

    def mark(self) -> Any:
        event = cast("Any", torch.cuda.Event)(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def stream(self) -> int:
        return int(torch.cuda.current_stream(self._device).cuda_stream)

    def has_passed(self, mark: Any) -> bool:
        return bool(mark.query())

    def seconds(self, earlier: Any, later: Any) -> float:
        return float(earlier.elapsed_time(later)) / 1000

    def memory_bytes(self) -> int:
        return torch.cuda.max_memory_allocated(self._device)  # never reset: a program may read it too

    def used_bytes(self) -> int:
        return torch.cuda.memory_allocated(self._device)
