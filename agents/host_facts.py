"""What the agent asks of the host itself: its boot, its clocks, its own load."""

import socket
import time
from pathlib import Path
from typing import Final

import psutil

BOOT_ID_FILE: Final = Path("/proc/sys/kernel/random/boot_id")
_NS_PER_MS: Final = 1_000_000


def current_boot_id() -> str:
    return BOOT_ID_FILE.read_text(encoding="ascii").strip()


def boottime_ms() -> int:
    """Milliseconds since the boot, suspended time too: it only grows within a boot."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // _NS_PER_MS


def wall_ms() -> int:
    return time.time_ns() // _NS_PER_MS


def host_name() -> str:
    return socket.gethostname().lower()


def cpu_percent() -> float:
    """Since the last call."""
    return min(100.0, max(0.0, float(psutil.cpu_percent(interval=None))))


def memory_used_mib() -> float:
    return float(psutil.virtual_memory().used) / (1 << 20)
