"""One attempt's processes as a control group: limited, counted, killed and proved absent, whatever they do.

A program can clear its environment and leave its session, its parent and its process group, but not its cgroup. The
supervisor stays outside: it must outlive a program that runs out of memory in there.
"""

from __future__ import annotations

import os
from pathlib import Path

from workers.host.supervisor.cgroup.block_devices import block_devices
from workers.host.supervisor.cgroup.oom_counts import counter
from workers.host.supervisor.cgroup.place import NONE, V1, V1_DEVICES, V1_IO, V2, find_place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from workers.host.supervisor.cgroup.place import Place
    from workers.host.supervisor.order_parts import HostLimits

_MEMBERS = "cgroup.procs"
_PERIOD_US = 100_000
_LEAST_QUOTA_US = 1_000
"""Least quota of the kernel: a hundredth of a CPU."""
_ENABLED = ("memory", "pids")
"""Controllers of version 2 that are on without limits too: one counts memory kills, one can forbid new processes."""
_OOM_COUNTS = ("memory.events", "memory.oom_control")
_NO_LIMITS = frozenset({"memory.swap.max", "memory.memsw.limit_in_bytes", "cpu.shares", "cpu.weight"})
"""Files that accompany a limit and may be missing in a kernel: no swap, and a share by the CPUs given."""


class Group:
    """Group of an attempt. ``kind``: ``v2``, ``v1`` or ``none``. ``reason``: why none, or which limit is not in force.

    ``folders``: the group's own, by controller; of version 2 one for all, under the empty name.
    """

    def __init__(self, kind: str, folders: dict[str, Path], reasons: tuple[str, ...] = ()) -> None:
        self.kind = kind
        self.folders = folders
        self._reasons = list(reasons)

    @property
    def reason(self) -> str | None:
        return "; ".join(self._reasons) or None

    def note(self, reason: str) -> None:
        """Record something that this host does not support."""
        self._reasons.append(reason)

    def identity(self) -> dict[str, Any]:
        """Return the data by which ``find_group`` finds it after our death."""
        return {"kind": self.kind, "folders": {name: str(folder) for name, folder in self.folders.items()}}

    def place(self, pid: int) -> None:
        """Put a process into it that does not run its program yet. If the kernel refuses, it runs without."""
        for name, folder in tuple(self.folders.items()):
            try:
                _write(folder / _MEMBERS, str(pid))
            except ProcessLookupError:  # it has died, and the process that replaces it needs the group
                return
            except OSError as fault:
                self.note(f"{folder}: no process may be put there: {fault.strerror}")
                _delete_tree(folder)
                del self.folders[name]
        if not self.folders:
            self.kind = NONE

    def processes(self) -> set[int]:
        """Return the processes in it or below it; zombies have left it already."""
        return {pid for folder in self.folders.values() for below in _tree(folder) for pid in _members(below)}

    def oom_kills(self) -> int | None:
        """Return how many of its processes the kernel has killed for lack of memory; None if the kernel does not count
        them.
        """
        counts = [counter(folder / name) for folder in self.folders.values() for name in _OOM_COUNTS]
        return next((count for count in counts if count is not None), None)

    def forbid_forks(self) -> None:
        """Forbid new processes, so that killing one by one ends, however fast the others multiply."""
        for folder in self.folders.values():
            _try_write(folder / "pids.max", "0")

    def kill(self) -> None:
        """Kill all at once, if the kernel can: version 2 since Linux 5.14."""
        for folder in self.folders.values():
            _try_write(folder / "cgroup.kill", "1")

    def remove(self) -> bool:
        """Remove it, and return whether nothing is left. The kernel removes no group with a process in it."""
        left = [folder for folder in self.folders.values() if not _delete_tree(folder)]
        return not left


def group_name(attempt_id: str, node_id: str) -> str:
    """Return the name. It holds the node because simulated hosts may share a machine, each with a part of
    one attempt.
    """
    name = f"muster-{attempt_id}-{node_id}"
    return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in name)


def make_group(place: Place, name: str, limits: HostLimits, *, bars_devices: bool = False) -> Group:
    """Make a new group with these limits. A limit that this host does not support is named in ``reason``, without an
    error.

    ``bars_devices``: devices are to be barred, for which version 1 needs a folder.
    """
    folders = {}
    reasons = [] if place.reason is None else [place.reason]
    # A CPU group of version 1 weighs as much as one process outside, however many threads are in it.
    is_idle = {"cpu": limits.cpus is None, V1_IO: not limits.has_io, V1_DEVICES: not bars_devices}
    for controller, parent in place.folders.items():
        if is_idle.get(controller, False):
            continue
        if place.kind == V2:
            _enable(parent, limits)
        try:
            _create(parent / name)
        except OSError as fault:
            reasons.append(f"{parent}: no group can be made: {fault.strerror}")
            continue
        folders[controller] = parent / name
    group = Group(place.kind if folders else NONE, folders, tuple(reasons))
    _limit(group, limits)
    return group


def find_group(identity: dict[str, Any] | None, name: str) -> Group:
    """Find the group of a supervisor that has ended: by its identity, else by the place where we would make it."""
    try:
        said = (identity or {})["cgroup"]
        folders = {str(controller): Path(folder) for controller, folder in said["folders"].items()}
        kind = str(said["kind"])
    except (KeyError, TypeError, AttributeError):
        place = find_place()
        would_be = {controller: parent / name for controller, parent in place.folders.items()}
        folders = {controller: folder for controller, folder in would_be.items() if folder.is_dir()}
        kind = place.kind
    own = {controller: folder for controller, folder in folders.items() if folder.name == name}
    return Group(kind if own else NONE, own)


def _limit(group: Group, limits: HostLimits) -> None:
    wanted = _v2_settings(limits) if group.kind == V2 else _v1_settings(limits)
    if limits.has_io and not block_devices():
        group.note("the limit of input and output is not in force: the kernel lists no disk")
    if group.kind == NONE and wanted:
        group.note("no limit is in force")
        return
    for controller, file, value in wanted:
        folder = group.folders.get(controller if group.kind == V1 else "")
        if folder is None:
            group.note(f"the limit {file}={value} is not in force: there is no group for {controller}")
            continue
        try:
            _write(folder / file, value)
        except OSError as fault:
            if file not in _NO_LIMITS:
                group.note(f"the limit {file}={value} is not in force: {fault.strerror}")


def _v1_settings(limits: HostLimits) -> list[tuple[str, str, str]]:
    """Return controller, file and value of each setting."""
    settings: list[tuple[str, str, str]] = []
    if limits.memory_bytes is not None:  # the first caps memory, the second memory and swap: so there is no swap
        settings.append(("memory", "memory.limit_in_bytes", str(limits.memory_bytes)))
        settings.append(("memory", "memory.memsw.limit_in_bytes", str(limits.memory_bytes)))
    if limits.pids is not None:
        settings.append(("pids", "pids.max", str(limits.pids)))
    if limits.cpus is not None:
        settings.append(("cpu", "cpu.cfs_period_us", str(_PERIOD_US)))
        settings.append(("cpu", "cpu.cfs_quota_us", str(_quota_us(limits.cpus))))
        settings.append(("cpu", "cpu.shares", str(min(262_144, max(2, round(1_024 * limits.cpus))))))
    for way, limit in (("read", limits.io_read_bytes_per_s), ("write", limits.io_write_bytes_per_s)):
        if limit is not None:
            file = f"blkio.throttle.{way}_bps_device"
            settings.extend((V1_IO, file, f"{device} {limit}") for device in block_devices())
    return settings


def _v2_settings(limits: HostLimits) -> list[tuple[str, str, str]]:
    """Return the same for version 2, whose controllers share one folder."""
    settings: list[tuple[str, str, str]] = []
    if limits.memory_bytes is not None:
        settings.append(("memory", "memory.max", str(limits.memory_bytes)))
        settings.append(("memory", "memory.swap.max", "0"))
    if limits.pids is not None:
        settings.append(("pids", "pids.max", str(limits.pids)))
    if limits.cpus is not None:
        settings.append(("cpu", "cpu.max", f"{_quota_us(limits.cpus)} {_PERIOD_US}"))
        settings.append(("cpu", "cpu.weight", str(min(10_000, max(1, round(100 * limits.cpus))))))
    ways = (("rbps", limits.io_read_bytes_per_s), ("wbps", limits.io_write_bytes_per_s))
    said = " ".join(f"{way}={limit}" for way, limit in ways if limit is not None)
    if said:
        settings.extend(("io", "io.max", f"{device} {said}") for device in block_devices())
    return settings


def _quota_us(cpus: float) -> int:
    return max(_LEAST_QUOTA_US, round(cpus * _PERIOD_US))


def _enable(parent: Path, limits: HostLimits) -> None:
    """Enable the controllers in the parent, as version 2 requires.

    The kernel refuses it if the parent holds processes; the limits then report so.
    """
    for controller in (*_ENABLED, *(() if limits.cpus is None else ("cpu",)), *(("io",) if limits.has_io else ())):
        _try_write(parent / "cgroup.subtree_control", f"+{controller}")


def _create(folder: Path) -> None:
    """Make the folder again: an empty one of our name is from a start that died early, with old counts."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        folder.rmdir()
        folder.mkdir(mode=0o700)


def _delete_tree(folder: Path) -> bool:
    """Remove a group with the groups that the program made in it, and return whether nothing is left."""
    for below in _tree(folder):
        try:
            below.rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            return False
    return True


def _tree(folder: Path) -> list[Path]:
    """Return a group and all groups below it, the deepest first."""
    return [Path(path) for path, _, _ in os.walk(folder, topdown=False)]


def _members(folder: Path) -> set[int]:
    try:
        pids = (folder / _MEMBERS).read_text(encoding="ascii").split()
    except OSError:
        return set()
    return {int(pid) for pid in pids} - {0}  # 0 stands for a process outside our own pid namespace


def _write(path: Path, value: str) -> None:
    """Write to a file of the kernel: if it does not exist, the kernel lacks the feature."""
    descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)


def _try_write(path: Path, value: str) -> None:
    try:
        _write(path, value)
    except OSError:
        return
