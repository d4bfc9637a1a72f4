"""Facts of the host itself for the agent: its boot, its clocks, its own load."""

import socket
import time
from pathlib import Path
from typing import Final

import psutil

BOOT_ID_FILE: Final = Path("/proc/sys/kernel/random/boot_id")
_PID_NAMESPACE: Final = Path("/proc/self/ns/pid")
_INITIAL_PID_NAMESPACE: Final = 0xEFFFFFFC
"""PROC_PID_INIT_INO of the Linux kernel."""
_NS_PER_MS: Final = 1_000_000


def current_boot_id() -> str:
    return BOOT_ID_FILE.read_text(encoding="ascii").strip()


def boottime_ms() -> int:
    """Return milliseconds since the boot, suspended time too: it only grows within a boot."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // _NS_PER_MS


def monotonic_s() -> float:
    """Return the clock of the kernel's log, in seconds since the boot without suspended time."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def wall_ms() -> int:
    return time.time_ns() // _NS_PER_MS


def host_name() -> str:
    return socket.gethostname().lower()


def sees_every_process() -> bool:
    """Return whether the agent is in the initial PID namespace.

    In another one the driver may leave programs out of its lists.
    """
    try:
        return _PID_NAMESPACE.stat().st_ino == _INITIAL_PID_NAMESPACE
    except OSError:
        return False


def cpu_percent() -> float:
    """Return the CPU load since the last call."""
    return min(100.0, max(0.0, float(psutil.cpu_percent(interval=None))))


def memory_used_mib() -> float:
    return float(psutil.virtual_memory().used) / (1 << 20)
