"""Place for groups of processes on this host: cgroup version 2, version 1, or none, with the reason."""

from __future__ import annotations

from pathlib import Path

V2 = "v2"
V1 = "v1"
NONE = "none"
LEAF = "muster-host"
"""Group that holds launcher and supervisors (systemd's ``DelegateSubgroup``): attempts' groups are made next to it.

Version 2 divides memory, processes and CPUs only among groups below one that holds no process itself, unless that is
the root. We never empty the group that we are in: systemd before 254 could not start the launcher in it again.
"""
V1_CONTROLLERS = ("memory", "pids", "cpu")
V1_IO = "blkio"
V1_DEVICES = "devices"
_UNIFIED = ""
_PROC = Path("/proc")


class Place:
    """Place for groups. ``folders``: by controller, the folder for new groups. Version 2 has one, for all: ``""``."""

    __slots__ = ("folders", "kind", "reason")

    def __init__(self, kind: str, folders: dict[str, Path], reason: str | None = None) -> None:
        self.kind = kind
        self.folders = folders
        self.reason = reason


def find_place(proc: Path = _PROC) -> Place:
    """Find the place below the caller's own group, so that every limit on that group holds for ours too.

    It is of version 1 if memory or processes are divided by it, which a host of both kinds may do.
    """
    try:
        own = _own_groups((proc / "self" / "cgroup").read_text(encoding="utf-8"))
        mounts = _mounts((proc / "self" / "mountinfo").read_text(encoding="utf-8"))
    except OSError as fault:
        return Place(NONE, {}, f"this kernel lists no cgroups: {fault}")
    folders = {name: folder for name in V1_CONTROLLERS if (folder := _folder(name, own, mounts)) is not None}
    if folders:
        further = {name: _folder(name, own, mounts) for name in (V1_IO, V1_DEVICES)}
        return Place(V1, folders | {name: folder for name, folder in further.items() if folder is not None})
    folder = _folder(_UNIFIED, own, mounts)
    if folder is None:
        return Place(NONE, {}, "no cgroup file system is mounted that holds our own group")
    return Place(V2, {_UNIFIED: folder.parent if folder.name == LEAF else folder})


def _own_groups(text: str) -> dict[str, str]:
    """Return controller → our group in its hierarchy, from lines such as ``4:cpu,cpuacct:/system.slice``."""
    groups = {}
    for line in text.splitlines():
        _, controllers, group = line.split(":", 2)
        for name in controllers.split(","):
            groups[name] = group
    return groups


def _mounts(text: str) -> dict[str, list[tuple[str, str]]]:
    """Return controller → the places of its hierarchy, each as (the group that is mounted, its folder)."""
    found: dict[str, list[tuple[str, str]]] = {}
    for line in text.splitlines():
        mount, _, filesystem = line.partition(" - ")
        kind, _, options = filesystem.split(" ", 2)
        if kind not in {"cgroup", "cgroup2"}:
            continue
        names = [_UNIFIED] if kind == "cgroup2" else options.split(",")
        group, folder = mount.split(" ")[3:5]
        for name in names:
            found.setdefault(name, []).append((group, folder))
    return found


def _folder(controller: str, own: dict[str, str], mounts: dict[str, list[tuple[str, str]]]) -> Path | None:
    """Return our own group's folder. In a container only its own part of the hierarchy may be visible, as if it were
    all.
    """
    group = own.get(controller)
    if group is None:
        return None
    for mounted, folder in mounts.get(controller, ()):
        above = mounted.rstrip("/")
        path = Path(folder + group[len(above) :])
        if (group == mounted or group.startswith(f"{above}/")) and path.is_dir():
            return path
    return None
