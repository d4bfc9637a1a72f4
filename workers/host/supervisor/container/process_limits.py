"""Limits of a process in a container on files, processes and locked memory: the same as ours.

``--ulimit=host`` of podman differs: it requests 1,048,576 files whatever we have, which takes CAP_SYS_RESOURCE.
Without that the runtime refuses to start anything ("error setting rlimit type 7"). If only files are named, it requests
as many processes (type 6). Seen with podman 4.3.1 and runc 1.1. So without the capability both are named.
"""

from __future__ import annotations

import resource
from pathlib import Path

_SYS_RESOURCE = 24
_PODMANS_PROCESSES = 32_768
"""podman lowers its own limit to this before it starts anything (``default_ulimits`` of containers.conf)."""


def podman_limits(status: Path = Path("/proc/self/status")) -> list[str]:
    """Return the limits as words of podman's command line."""
    if _may_raise(status):
        return ["--ulimit=host"]
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    processes = [_at_most(each, _PODMANS_PROCESSES) for each in resource.getrlimit(resource.RLIMIT_NPROC)]
    return [f"--ulimit=nofile={files[0]}:{files[1]}", f"--ulimit=nproc={processes[0]}:{processes[1]}"]


def docker_limits() -> list[str]:
    """Return docker's words: its daemon's limits hold for files and processes; memory for RDMA has to be requested."""
    return ["--ulimit=memlock=-1:-1"]


def _may_raise(status: Path) -> bool:
    """Return whether we hold CAP_SYS_RESOURCE."""
    try:
        lines = status.read_text(encoding="ascii").splitlines()
    except OSError:
        return False
    effective = next((line.split()[1] for line in lines if line.startswith("CapEff:")), "0")
    return bool(int(effective, 16) >> _SYS_RESOURCE & 1)


def _at_most(limit: int, bound: int) -> int:
    return bound if limit == resource.RLIM_INFINITY else min(limit, bound)
