"""Processes of ranks as /proc shows them: state, processor time, bytes read and written, caught signals."""

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from watch.reports import ProcessState

_PROC: Final = Path("/proc")
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_STATE_OF_LETTER: Final = {
    "R": ProcessState.RUNNING,
    "S": ProcessState.SLEEPING,
    "I": ProcessState.SLEEPING,
    "D": ProcessState.BLOCKED,
    "T": ProcessState.STOPPED,
    "t": ProcessState.STOPPED,
    "Z": ProcessState.ZOMBIE,
    "X": ProcessState.GONE,
}
_BYTE_COUNTERS: Final = frozenset({b"rchar:", b"wchar:", b"read_bytes:", b"write_bytes:"})


@dataclass(frozen=True, slots=True)
class Usage:
    """What some processes have used since their begin. ``is_io_known`` False: bytes of some may not be read."""

    cpu_s: float = 0.0
    io_bytes: int = 0
    is_io_known: bool = True


def state_of(pid: int) -> ProcessState:
    """Return the state of a process; GONE if there is none of that number."""
    try:
        stat = (_PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return ProcessState.GONE
    return _STATE_OF_LETTER.get(stat[stat.rindex(b")") + 2 :][:1].decode("ascii", "replace"), ProcessState.UNKNOWN)


def usage_of(pids: Collection[int]) -> Usage:
    """Return the sum over the processes that still live. Bytes are 0 where this user may not read them."""
    cpu_ticks = io_bytes = 0
    is_io_known = True
    for pid in pids:
        try:
            stat = (_PROC / str(pid) / "stat").read_bytes()
        except OSError:
            continue
        fields = stat[stat.rindex(b")") + 2 :].split()
        cpu_ticks += int(fields[11]) + int(fields[12])
        try:
            io_bytes += _io_bytes(pid)
        except PermissionError:
            is_io_known = False
    return Usage(cpu_ticks / _TICKS_PER_S, io_bytes, is_io_known)


def _io_bytes(pid: int) -> int:
    try:
        lines = (_PROC / str(pid) / "io").read_bytes().splitlines()
    except PermissionError:
        raise
    except OSError:
        return 0
    return sum(int(words[1]) for line in lines if (words := line.split())[0] in _BYTE_COUNTERS)


def catches(pid: int, number: int) -> bool:
    """Return whether the process has a handler for the signal: without one, the signal would end it."""
    try:
        status = (_PROC / str(pid) / "status").read_bytes()
    except OSError:
        return False
    mask = next((line.split()[1] for line in status.splitlines() if line.startswith(b"SigCgt:")), b"0")
    return bool(int(mask, 16) >> (number - 1) & 1)
