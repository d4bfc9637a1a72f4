"""Accounts of a soak: how much of the time was training that counted, and what was left behind."""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import psutil

from local.own_processes import processes_of
from local.tour.world import Document, World
from workers.host.supervisor.cgroup.place import find_place

SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108  # looked at, not written to
PROCESSES: Final = "processes"
PORTS: Final = "ports"
FOLDERS: Final = "folders"
SEGMENTS: Final = "shared memory"
DESCRIPTORS: Final = "descriptors"
GROUPS: Final = "groups"
_SHOWN: Final = 5
_OF_ATTEMPTS: Final = "/attempts/att_"
_ATTEMPT: Final = b"MUSTER_ATTEMPT_ID="


def effective_ratio(steps: Sequence[Document], *, submitted_s: float, ended_s: float) -> float:
    """Return the ETTR: the time of the steps that counted, each once, over the time from submission to end.

    Queueing, starts, saves and steps that had to be trained again count as lost (Kokolis et al. 2024, section II).
    """
    return float(sum(step["step_s"] or 0.0 for step in steps)) / (ended_s - submitted_s)


class Leftovers:
    """Remains of a job's attempts on this machine since this was made, searched once the job has ended."""

    def __init__(
        self, world: World, *, shared_memory: Path = SHARED_MEMORY, groups_below: Sequence[Path] | None = None
    ) -> None:
        """Note the present state.

        ``groups_below``: the folders of attempts' cgroups; None: where this machine allows them.
        """
        self._world = world
        self._shared_memory = shared_memory
        self._groups_below = list(find_place().folders.values()) if groups_below is None else groups_below
        self._groups_before = self._groups()
        self._ports = self._listening()
        self._segments_before = set(shared_memory.iterdir())

    def found(self) -> dict[str, list[str]]:
        """Return kind → remains, of every kind: empty where nothing is left."""
        return {
            PROCESSES: [str(pid) for pid in self._programs()],
            PORTS: [str(port) for port in sorted(self._listening() - self._ports)],
            FOLDERS: [str(path) for path in self._folders()],
            SEGMENTS: [str(path) for path in self._segments()],
            DESCRIPTORS: self._descriptors(),
            GROUPS: [str(path) for path in sorted(self._groups() - self._groups_before) if _is_empty(path)],
        }

    def _programs(self) -> list[int]:
        found = []
        for process in processes_of(self._world.state_dir):
            try:
                is_of_attempt = _ATTEMPT in (process / "environ").read_bytes()
            except OSError:  # it has just ended
                continue
            if is_of_attempt:
                found.append(int(process.name))
        return found

    def _listening(self) -> set[int]:
        """Return ports on which the stack's processes listen."""
        ports: set[int] = set()
        for process in processes_of(self._world.state_dir):
            try:
                sockets = psutil.Process(int(process.name)).net_connections("inet")
            except psutil.Error:  # it has just ended
                continue
            ports |= {one.laddr.port for one in sockets if one.status == psutil.CONN_LISTEN}
        return ports

    def _folders(self) -> list[Path]:
        """Return folders of attempts that hosts should have forgotten, and of unfinished saves."""
        of_attempts = [path for host in self._world.hosts for path in (host.folder / "attempts").glob("att_*")]
        return of_attempts + list((self._world.state_dir / "checkpoints").rglob(".gen-*.partial"))

    def _descriptors(self) -> list[str]:
        """Return descriptors by which a process of the stack still holds an attempt's file.

        Such a file keeps its space on the disk.
        """
        found = []
        for process in processes_of(self._world.state_dir):
            held = sorted(str(path) for path in files_of(int(process.name)) if _OF_ATTEMPTS in str(path))
            found += [f"{path} of process {process.name}" for path in held]
        return found

    def _groups(self) -> set[Path]:
        """Return all attempts' cgroups. One with a process in it does not belong to a job that has ended."""
        return {path for folder in self._groups_below for path in folder.glob("muster-att_*")}

    def _segments(self) -> list[Path]:
        """Return segments newer than the beginning that no living process has open or mapped."""
        return sorted(orphaned(set(self._shared_memory.iterdir()) - self._segments_before))


def text_of(found: Mapping[str, Sequence[str]]) -> str:
    """Return the remains as text, a few of each kind."""
    few = (f"{kind}: {', '.join(which[:_SHOWN])}" for kind, which in found.items() if which)
    return "; ".join(few) or "no process, port, folder, shared memory, descriptor or group"


def _is_empty(group: Path) -> bool:
    try:
        return not (group / "cgroup.procs").read_text(encoding="ascii").split()
    except OSError:  # it has just gone
        return False


def orphaned(segments: Iterable[Path]) -> set[Path]:
    """Return those files in shared memory that no process has open or mapped, but none of PostgreSQL.

    A PostgreSQL that was killed leaves its own until its next start, and no attempt has a file of that name.
    """
    files = {path for path in segments if path.is_file() and not path.name.startswith("PostgreSQL.")}
    return files - _files_in_use() if files else files


def _files_in_use() -> set[Path]:
    """Return the files of all processes that we may read."""
    return {path for pid in psutil.pids() for path in files_of(pid)}


def files_of(pid: int) -> set[Path]:
    """Return files that the process has open or mapped; none for one that has just ended.

    It reads the map alone: psutil reads ``smaps``, for which the kernel walks through all of a process's pages.
    """
    process = Path(f"/proc/{pid}")
    try:
        maps = (process / "maps").read_text(encoding="utf-8", errors="surrogateescape")
        descriptors = list((process / "fd").iterdir())
    except OSError:
        return set()
    found = {Path(fields[5]) for line in maps.splitlines() if len(fields := line.split(maxsplit=5)) == 6}
    for descriptor in descriptors:
        with contextlib.suppress(OSError):  # closed meanwhile
            found.add(descriptor.readlink())
    return found
