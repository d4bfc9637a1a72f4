"""Guarantees that only the kernel can give: we adopt orphans, and a child dies with its parent."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

_SET_PARENT_DEATH_SIGNAL = 1
_SET_CHILD_SUBREAPER = 36
_SET_NO_NEW_PRIVILEGES = 38
_REMOVE_SEGMENT = 0
_PUNCH_HOLE = 0x02 | 0x01  # FALLOC_FL_PUNCH_HOLE, which asks for FALLOC_FL_KEEP_SIZE
_NEW_NETWORK = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, argument: int) -> None:
    if _libc.prctl(option, argument, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


def adopt_orphans() -> None:
    """Adopt the daemons that the program forks off, so that none is out of reach."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent_pid: int) -> None:
    """Make a fresh child die with its parent. It stays in force across exec, and the child's children do not inherit
    it.
    """
    _prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before the line above, which no signal would report
        os._exit(1)


def refuse_new_privileges() -> None:
    """Refuse new privileges from now on: no program gains any, whatever its file allows; inherited, and never taken
    back.
    """
    _prctl(_SET_NO_NEW_PRIVILEGES, 1)


def leave_network() -> None:
    """Give this thread a network of its own, with nothing but a loopback that is down. Raises OSError: we may not."""
    if _libc.unshare(_NEW_NETWORK) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"unshare: {os.strerror(number)}")


def enter_network(descriptor: int) -> None:
    """Enter another network, with all that a fresh child starts later."""
    if _libc.setns(descriptor, _NEW_NETWORK) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")


def remove_segments_of(uid: int) -> None:
    """Remove System V's shared memory of this user: no process need hold it, and only its key names it."""
    try:
        lines = Path("/proc/sysvipc/shm").read_text(encoding="ascii").splitlines()
    except OSError:
        return  # a kernel without it
    names = lines[0].split() if lines else []
    for line in lines[1:]:
        segment = dict(zip(names, line.split(), strict=False))
        if segment.get("uid") == str(uid):
            _libc.shmctl(int(segment["shmid"]), _REMOVE_SEGMENT, None)


def let_go(descriptor: int, end: int) -> bool:
    """Punch a hole into the file before ``end``, which reads as zeros and takes no disk space. Returns whether it
    worked.
    """
    return bool(_libc.fallocate(descriptor, _PUNCH_HOLE, ctypes.c_long(0), ctypes.c_long(end)) == 0)


def prefer_to_kill(score: int) -> None:
    """Set how readily the kernel kills this process when memory runs out: -900 for us, 0 for the program."""
    try:
        Path("/proc/self/oom_score_adj").write_text(str(score), encoding="ascii")
    except OSError:
        return  # lowering it needs a privilege that a developer's machine may not give
