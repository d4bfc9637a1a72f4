"""Checks of a host before it reports ready: space on its disks, and its GPUs present and free.

The needs of the program itself (folders, script, environment, secrets, mounts) are checked by ``program``.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

from workers.host.supervisor.container.containers import has_nvidia
from workers.host.supervisor.missing import CHECKPOINTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from workers.host.supervisor.order import Order
    from workers.host.supervisor.order_parts import Preparation

_GPU_CHECK = Path(__file__).with_name("gpu_check.py")
_PATIENCE_S = 20.0
"""Patience with the driver, for several checks."""
_GIB = 1 << 30
_WRITTEN_BYTES = 1 << 20
_CLOSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


class UnreadyError(Exception):
    """This host cannot run its part: not the tenant's fault, and another host may."""


class UnfitFolderError(Exception):
    """The job's user may not write to the folder that the job names: the tenant's to fix."""

    lacks = CHECKPOINTS


def check_host(order: Order, folder: Path, preparation: Preparation) -> list[str]:
    """Check the host, and return the names of what was checked.

    Raises:
        UnreadyError: a disk is nearly full, a GPU is missing, or something computes on it.
    """
    require_room(folder, preparation.disk_free_bytes)
    if order.checkpoints is not None:
        require_room(order.checkpoints, preparation.disk_free_bytes)
    return ["disk"] if preparation.is_simulated else ["disk", *check_gpus(order.gpus)]


def require_room(path: Path, least_bytes: int) -> None:
    """Require free space on the file system of ``path``, or of its nearest existing parent. Raises UnreadyError."""
    while not path.exists():
        path = path.parent
    found = os.statvfs(path)
    free_bytes = found.f_bavail * found.f_frsize
    if free_bytes < least_bytes:
        raise UnreadyError(f"{path} has {free_bytes / _GIB:.1f} GiB free of the {least_bytes / _GIB:.1f} GiB asked for")


def write_and_read(order: Order) -> list[str]:
    """Write a file in the job's checkpoint folder, or in its parent if it does not exist yet, read it back and remove
    it.

    Raises:
        UnfitFolderError: the job names it, and its user may not write there.
        UnreadyError: it cannot be written, or reads otherwise.
    """
    named = Path(order.env.get("MUSTER_CHECKPOINT_DIR", ""))
    folder = next((place for place in (named, named.parent) if place.is_absolute() and place.is_dir()), None)
    if folder is None:
        return []
    path = folder / f".muster-write-test-{order.attempt_id}-{order.node_id}"
    content = os.urandom(_WRITTEN_BYTES)
    try:
        with order.user.acting():
            found = _written_and_read(path, content)
    except OSError as fault:
        if order.checkpoints is None and fault.errno in _CLOSED:
            raise UnfitFolderError(f"the checkpoint folder {folder} cannot be written to: {fault.strerror}") from fault
        raise UnreadyError(f"the checkpoint folder {folder} cannot be written to: {fault.strerror}") from fault
    if found != content:
        raise UnreadyError(f"the checkpoint folder {folder} reads otherwise than it was written")
    return ["checkpoint folder"]


def _written_and_read(path: Path, content: bytes) -> bytes:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "r+b") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            file.seek(0)
            return file.read()
    finally:
        path.unlink(missing_ok=True)


def check_gpus(uuids: list[str]) -> list[str]:
    """Check the GPUs; return an empty list if there is no driver.

    Raises:
        UnreadyError: one is missing or not free, or the driver does not answer.
    """
    if not uuids or not has_nvidia():
        return []
    import subprocess  # noqa: PLC0415  # most starts need none of it, and it costs their time

    from workers.host.supervisor import gpu_check  # noqa: PLC0415  # as above

    command = [sys.executable, "-I", "-S", str(_GPU_CHECK), *uuids]
    look = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)  # noqa: S603  # our own program
    try:
        said, _ = look.communicate(timeout=_PATIENCE_S)
    except subprocess.TimeoutExpired:
        look.kill()  # not waited for: a process that hangs in the driver may never end
        raise UnreadyError(f"the GPU driver did not answer within {_PATIENCE_S:.0f} s") from None
    if look.returncode == gpu_check.NO_LIBRARY:
        return []
    if look.returncode != 0:
        raise UnreadyError(said.strip() or f"the check of the GPUs ended with code {look.returncode}")
    return ["GPUs"]
