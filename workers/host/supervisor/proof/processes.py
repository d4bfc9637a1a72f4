"""Processes as /proc shows them: descendants of a supervisor, carriers of an attempt's mark, and their ports."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection

_PROC = Path("/proc")
_LISTENING = "0A"
_PAUSE_S = 0.01
_REMOVER = b"from multiprocessing.resource_tracker import main"


class Process:
    __slots__ = ("pid", "ppid", "start_ticks", "state")

    def __init__(self, pid: int, ppid: int, state: str, start_ticks: int) -> None:
        self.pid = pid
        self.ppid = ppid
        self.state = state
        self.start_ticks = start_ticks


def read_process(pid: int) -> Process | None:
    """Return the process, zombies included, or None. A name may hold blanks and brackets, hence the *last* bracket."""
    try:
        stat = (_PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()
    return Process(pid, int(fields[1]), fields[0].decode(), int(fields[19]))


def is_same_process(pid: int, start_ticks: int) -> bool:
    """Return whether ``pid`` still is the process that started then, and not a later one of the same number."""
    found = read_process(pid)
    return found is not None and found.state != "Z" and found.start_ticks == start_ticks


def living_processes() -> dict[int, Process]:
    """Return all processes but zombies."""
    found = (read_process(int(entry.name)) for entry in _PROC.iterdir() if entry.name.isdigit())
    return {process.pid: process for process in found if process is not None and process.state not in {"Z", "X"}}


def descendants(roots: Collection[int], processes: dict[int, Process]) -> set[int]:
    """Return every process below ``roots``, without them."""
    children: dict[int, list[int]] = {}
    for process in processes.values():
        children.setdefault(process.ppid, []).append(process.pid)
    found: set[int] = set()
    open_ends = list(roots)
    while open_ends:
        for pid in children.get(open_ends.pop(), ()):
            if pid not in found:
                found.add(pid)
                open_ends.append(pid)
    return found


def carriers(marks: Collection[str], processes: dict[int, Process]) -> set[int]:
    """Return processes whose environment holds every one of ``marks`` (``NAME=value``)."""
    wanted = {mark.encode() for mark in marks}
    found = set()
    for pid in processes:
        try:
            environment = (_PROC / str(pid) / "environ").read_bytes()
        except OSError:
            continue
        if wanted <= set(environment.split(b"\0")):
            found.add(pid)
    return found


def processes_of(uid: int, processes: Collection[int]) -> set[int]:
    """Return the processes that are this user by any of their four user numbers."""
    found = set()
    for pid in processes:
        try:
            status = (_PROC / str(pid) / "status").read_bytes()
        except OSError:
            continue
        numbers = status[status.index(b"\nUid:") :].split(b"\n", 2)[1].split()[1:]
        if str(uid).encode() in numbers:
            found.add(pid)
    return found


def removers(pids: Collection[int]) -> set[int]:
    """Return the trackers of Python's ``multiprocessing``, which remove what a program has named in shared memory.

    They do nothing else, and do it after the program has died.
    """
    found = set()
    for pid in pids:
        try:
            words = (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(word.startswith(_REMOVER) for word in words):
            found.add(pid)
    return found


def attempt_processes(marks: Collection[str], supervisor_pid: int | None) -> set[int]:
    """Return all that belongs to an attempt on this host: below its supervisor, marked, or below a marked one."""
    processes = living_processes()
    found = carriers(marks, processes)
    roots = found if supervisor_pid is None else found | {supervisor_pid}
    return (found | descendants(roots, processes)) - {supervisor_pid, os.getpid()}


def kill_all(find: Callable[[], set[int]], reap: Callable[[], None], *, patience_s: float) -> tuple[set[int], set[int]]:
    """Send SIGKILL to what ``find`` finds until it finds nothing. Returns the killed and the remaining processes.

    ``reap`` follows each round. A process that remains after ``patience_s`` hangs in the kernel: an I/O or driver call
    that no signal ends.
    """
    killed: set[int] = set()
    deadline = time.monotonic() + patience_s
    while left := find():
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            killed.add(pid)
        reap()
        if time.monotonic() > deadline:
            return killed, left
        time.sleep(_PAUSE_S)
    return killed, set()


def listening_ports(pids: Collection[int] | None = None) -> set[int]:
    """Return TCP ports with a listener on this host; with ``pids``, only the ports of these processes."""
    inodes = None if pids is None else {inode for pid in pids for inode in _sockets_of(pid)}
    ports = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = (_PROC / "net" / table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTENING and (inodes is None or fields[9] in inodes):
                ports.add(int(fields[1].rsplit(":", 1)[1], 16))
    return ports


def _sockets_of(pid: int) -> set[str]:
    found = set()
    try:
        for descriptor in (_PROC / str(pid) / "fd").iterdir():
            target = str(descriptor.readlink())
            if target.startswith("socket:["):
                found.add(target[8:-1])
    except OSError:
        return found  # it ended meanwhile
    return found
