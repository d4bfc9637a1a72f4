"""Whether the GPUs of an attempt are free after its end, by NVML's list of compute processes.

It finds what no look at processes does: a process that shed every mark and left the group, or whose context the driver
still holds. Three answers: free, held, or unknown, which proves nothing either way and keeps no host from its work.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path

from workers.host.supervisor.containers import has_nvidia

TYPE_CHECKING = False
if TYPE_CHECKING:
    from workers.host.supervisor.order import Order

_GPU_LOOK = Path(__file__).with_name("gpu_look.py")
_TO_DIE_S = 0.5
_PID_NAMESPACE = "/proc/self/ns/pid"
_INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""Its inode in every Linux: PROC_PID_INIT_INO of include/linux/proc_ns.h."""


class GpuRelease:
    """``processes``: GPU's UUID → the pids that compute on it, of GPUs that are held; None where that is unknown, and
    then ``unknown`` says why.
    """

    __slots__ = ("processes", "unknown")

    def __init__(self, processes: dict[str, list[int]] | None, unknown: str | None = None) -> None:
        self.processes = processes
        self.unknown = unknown

    @property
    def is_held(self) -> bool:
        return bool(self.processes)


def look(order: Order, *, patience_s: float) -> GpuRelease:
    """Asks the driver in a process of its own: a call into one that hangs must not hang whoever asks."""
    if not order.gpus:
        return GpuRelease({})
    if order.preparation is not None and order.preparation.is_simulated:
        return GpuRelease(None, "the GPUs are simulated")
    if not has_nvidia():
        return GpuRelease(None, "no NVIDIA driver is loaded")
    if not _is_initial_pid_namespace():
        return GpuRelease(None, "this is a PID namespace of its own, where NVML's list may leave out processes")
    return _ask(order.gpus, patience_s)


def _ask(uuids: list[str], patience_s: float) -> GpuRelease:
    import subprocess  # noqa: PLC0415  # hosts without a driver need none of it, and it costs their time

    from workers.host.supervisor import gpu_look  # noqa: PLC0415  # as above

    command = [sys.executable, "-I", "-S", str(_GPU_LOOK), gpu_look.WHO_COMPUTES, *uuids]
    asked = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)  # noqa: S603  # our own program
    try:
        said, _ = asked.communicate(timeout=patience_s)
    except subprocess.TimeoutExpired:
        asked.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # what hangs in the driver may never end
            asked.wait(_TO_DIE_S)
        if asked.stdout is not None:
            asked.stdout.close()
        return GpuRelease(None, f"the GPU driver did not answer within {patience_s:.0f} s")
    if asked.returncode == gpu_look.NO_LIBRARY:
        return GpuRelease(None, f"{gpu_look.LIBRARY} is not there")
    if asked.returncode != 0:
        return GpuRelease(None, said.strip() or f"the look at the GPUs ended with code {asked.returncode}")
    return GpuRelease({str(uuid): [int(pid) for pid in pids] for uuid, pids in json.loads(said).items()})


def _is_initial_pid_namespace() -> bool:
    try:
        return os.stat(_PID_NAMESPACE).st_ino == _INITIAL_PID_NAMESPACE  # noqa: PTH116  # pathlib costs more at each end
    except OSError:
        return False
