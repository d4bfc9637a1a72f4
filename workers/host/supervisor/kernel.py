"""What only the kernel can promise: orphans come to us, and a child dies with its parent."""

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
_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, argument: int) -> None:
    if _libc.prctl(option, argument, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


def adopt_orphans() -> None:
    """Daemons that the program forks off become our children, so that none is out of reach."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent_pid: int) -> None:
    """To be called in a fresh child. It stays in force across exec, and is not inherited by the child's children."""
    _prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before the line above, and nobody would ever tell us
        os._exit(1)


def refuse_new_privileges() -> None:
    """From here on no program that is run gains any, whatever its file allows; inherited, and never taken back."""
    _prctl(_SET_NO_NEW_PRIVILEGES, 1)


def remove_segments_of(uid: int) -> None:
    """System V's shared memory of this user: no process need hold it, and only its key names it."""
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
    """Whether the file's bytes before ``end`` became a hole, which reads as zeros and takes no room on the disk."""
    return bool(_libc.fallocate(descriptor, _PUNCH_HOLE, ctypes.c_long(0), ctypes.c_long(end)) == 0)


def prefer_to_kill(score: int) -> None:
    """How readily the kernel takes this process when memory runs out: -900 for us, 0 for the program."""
    try:
        Path("/proc/self/oom_score_adj").write_text(str(score), encoding="ascii")
    except OSError:
        return  # lowering it needs a privilege that a developer's machine may not give


def oom_kills() -> tuple[int | None, int | None]:
    """Kernel counts of memory kills so far: in our cgroup (None where it does not tell), and on the whole host."""
    return _cgroup_oom_kills(), counter(Path("/proc/vmstat"))


def _cgroup_oom_kills() -> int | None:
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        number, controllers, group = line.split(":", 2)
        if number == "0" and not controllers:
            paths = [Path("/sys/fs/cgroup" + group, "memory.events")]
        elif "memory" in controllers.split(","):
            paths = [
                Path("/sys/fs/cgroup/memory" + group, "memory.oom_control"),
                Path("/sys/fs/cgroup/memory/memory.oom_control"),
            ]
        else:
            continue
        for path in paths:
            if (count := counter(path)) is not None:
                return count
    return None


def counter(path: Path) -> int | None:
    """What the file of the kernel counts as ``oom_kill``; None where it does not."""
    try:
        text = path.read_text(encoding="ascii")
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return None
