"""What a program computes on, as far as time and memory are asked of it: its own host, or a GPU that runs behind it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Protocol, cast

import torch


class Device(Protocol):
    """What computes: it marks moments, and says later how far two are apart."""

    @property
    def gpu(self) -> str | None:
        """The GPU's product name, as its driver gives it."""

    def mark(self) -> Any:
        """This moment."""

    def has_passed(self, mark: Any) -> bool:
        """Whether all work before the moment is done."""

    def seconds(self, earlier: Any, later: Any) -> float:
        """Between two moments that have passed."""

    def memory_bytes(self) -> int:
        """The most that was held so far; where nobody counts that, what is held."""

    def held_bytes(self) -> int:
        """What is held now."""


class Host:
    """Of a program that computes where it runs."""

    gpu = None

    def mark(self) -> float:
        return time.perf_counter()

    def has_passed(self, mark: float) -> bool:
        del mark
        return True

    def seconds(self, earlier: float, later: float) -> float:
        return later - earlier

    def memory_bytes(self) -> int:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")

    held_bytes = memory_bytes


class Gpu:
    """The stream of the model's GPU is behind the program: a moment is an event that it passes."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.gpu: str | None = torch.cuda.get_device_name(device)

    def mark(self) -> Any:
        event = cast("Any", torch.cuda.Event)(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def has_passed(self, mark: Any) -> bool:
        return bool(mark.query())

    def seconds(self, earlier: Any, later: Any) -> float:
        return float(earlier.elapsed_time(later)) / 1000

    def memory_bytes(self) -> int:
        return torch.cuda.max_memory_allocated(self._device)  # never reset: a program may read it too

    def held_bytes(self) -> int:
        return torch.cuda.memory_allocated(self._device)
