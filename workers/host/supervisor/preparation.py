"""What a host sees to before it says that it is ready: room on its disks, and its GPUs there and free.

What the program itself needs (folders, script, environment, secrets, mounts) ``program`` looks at before each start.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from workers.host.supervisor.containers import has_nvidia

TYPE_CHECKING = False
if TYPE_CHECKING:
    from workers.host.supervisor.order import Order

_GPU_LOOK = Path(__file__).with_name("gpu_look.py")
_PATIENCE_S = 20.0
"""For the driver, several looks included."""
_GIB = 1 << 30


class UnreadyError(Exception):
    """This host cannot run its part: not the tenant's fault, and another host may."""


def look_at_host(order: Order, folder: Path, disk_free_bytes: int) -> list[str]:
    """What was looked at, in words.

    Raises:
        UnreadyError: a disk is nearly full, a GPU is missing, or something computes on it.
    """
    require_room(folder, disk_free_bytes)
    if order.checkpoints is not None:
        require_room(order.checkpoints, disk_free_bytes)
    return ["disk", *look_at_gpus(order.gpus)]


def require_room(path: Path, least_bytes: int) -> None:
    """On the file system of ``path``, or of what is there above it. Raises UnreadyError."""
    while not path.exists():
        path = path.parent
    found = os.statvfs(path)
    free_bytes = found.f_bavail * found.f_frsize
    if free_bytes < least_bytes:
        raise UnreadyError(f"{path} has {free_bytes / _GIB:.1f} GiB free of the {least_bytes / _GIB:.1f} GiB asked for")


def look_at_gpus(uuids: list[str]) -> list[str]:
    """Nothing is said of GPUs that are simulated: there is no driver to ask.

    Raises:
        UnreadyError: one is missing or not free, or the driver does not answer.
    """
    if not uuids or not has_nvidia():
        return []
    import subprocess  # noqa: PLC0415  # most starts need none of it, and it costs their time

    from workers.host.supervisor import gpu_look  # noqa: PLC0415  # as above

    command = [sys.executable, "-I", "-S", str(_GPU_LOOK), *uuids]
    look = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)  # noqa: S603  # our own program
    try:
        said, _ = look.communicate(timeout=_PATIENCE_S)
    except subprocess.TimeoutExpired:
        look.kill()  # not waited for: what hangs in the driver may never end
        raise UnreadyError(f"the GPU driver did not answer within {_PATIENCE_S:.0f} s") from None
    if look.returncode == gpu_look.NO_LIBRARY:
        return []
    if look.returncode != 0:
        raise UnreadyError(said.strip() or f"the look at the GPUs ended with code {look.returncode}")
    return ["GPUs"]
