"""The kernel's own counts of memory kills, in a control group and on the whole host."""

from __future__ import annotations

from pathlib import Path


def oom_kills() -> tuple[int | None, int | None]:
    """Return the kernel's memory kills so far: in our cgroup (None if it does not count them), and on the
    whole host.
    """
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
    """Return the kernel's count ``oom_kill`` in a file; None if it has none."""
    try:
        text = path.read_text(encoding="ascii")
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return None
