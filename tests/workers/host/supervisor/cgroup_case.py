"""Groups of this machine's own kernel: whether it lets us make any, and which of an attempt there are."""

import os
from pathlib import Path
from typing import Final

import pytest

from workers.host.supervisor.cgroup import group as cgroup
from workers.host.supervisor.cgroup.group import Group, group_name, make_group
from workers.host.supervisor.cgroup.place import find_place
from workers.host.supervisor.order_parts import HostLimits

from .attempt_case import NODE_ID, Attempt

MEBIBYTE: Final = 1 << 20
EVERY: Final = HostLimits(memory_bytes=64 * MEBIBYTE, pids=100, cpus=1.0)


def _what_is_missing() -> str | None:
    """Why limits cannot be tried here, by trying."""
    group = make_group(find_place(), f"muster-probe-{os.getpid()}", EVERY)
    reason = group.reason
    group.remove()
    return reason


_MISSING: Final = _what_is_missing()
needs_cgroups: Final = pytest.mark.skipif(
    _MISSING is not None, reason=f"NOT CHECKED: this machine lets us make no limited cgroups: {_MISSING}"
)


def name_of(attempt: Attempt) -> str:
    return group_name(attempt.folder.name, NODE_ID)


def group_of(attempt: Attempt) -> Group:
    """Return the group as the process that cleans up after a dead supervisor finds it."""
    return cgroup.find_group(attempt.read("supervisor.json"), name_of(attempt))


def left_of(attempt: Attempt) -> list[Path]:
    return [folder for folder in find_place().folders.values() if (folder / name_of(attempt)).exists()]


def groups_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8")
