"""Check whether the GPUs of an attempt are free after its end, by NVML's list of compute processes.

It finds what no list of processes shows: a process that shed every mark and left the group, or whose context the driver
still holds. Three answers: free, in use, or unknown, which proves nothing either way and keeps no host from its work.
"""

from __future__ import annotations

import json
import os

from workers.host.supervisor.container.containers import has_nvidia
from workers.host.supervisor.gpu_query import UnansweredError, ask

TYPE_CHECKING = False
if TYPE_CHECKING:
    from workers.host.supervisor.order import Order

_PID_NAMESPACE = "/proc/self/ns/pid"
_INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""Inode of the initial pid namespace in every Linux: PROC_PID_INIT_INO of include/linux/proc_ns.h."""


class GpuRelease:
    """Result of the check.

    ``processes``: GPU's UUID → the pids that compute on it, for GPUs in use; None if that is unknown, with the reason
    in ``unknown``.
    """

    __slots__ = ("processes", "unknown")

    def __init__(self, processes: dict[str, list[int]] | None, unknown: str | None = None) -> None:
        self.processes = processes
        self.unknown = unknown

    @property
    def is_in_use(self) -> bool:
        return bool(self.processes)


def check(order: Order, *, patience_s: float) -> GpuRelease:
    """Query the driver, if there is one that knows."""
    if not order.gpus:
        return GpuRelease({})
    if order.preparation is not None and order.preparation.is_simulated:
        return GpuRelease(None, "the GPUs are simulated")
    if not has_nvidia():
        return GpuRelease(None, "no NVIDIA driver is loaded")
    if not _is_initial_pid_namespace():
        return GpuRelease(None, "this is a PID namespace of its own, where NVML's list may leave out processes")
    from workers.host.supervisor.gpu_check import COMPUTING_PROCESSES  # noqa: PLC0415  # hosts without a driver need none of it

    try:
        said = ask(COMPUTING_PROCESSES, order.gpus, patience_s)
    except UnansweredError as silence:
        return GpuRelease(None, str(silence))
    return GpuRelease({str(uuid): [int(pid) for pid in pids] for uuid, pids in json.loads(said).items()})


def _is_initial_pid_namespace() -> bool:
    try:
        return os.stat(_PID_NAMESPACE).st_ino == _INITIAL_PID_NAMESPACE  # noqa: PTH116  # pathlib costs more at each end
    except OSError:
        return False
