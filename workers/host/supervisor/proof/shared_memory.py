"""Names of torch in shared memory if it shares tensors by name (sharing strategy ``file_system``).

Each name has its maker's pid: ``torch_<pid>_<random>_<number>``. torch's own manager removes them two seconds after its
last client has ended, for which no lease waits.
"""

from __future__ import annotations

import contextlib
import os
import re

from workers.host.supervisor.proof.processes import read_process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

SHARED_MEMORY = "/dev/shm"  # noqa: S108  # the kernel's name for it
_TENSOR = re.compile(r"torch_(\d+)_\d+_\d+")


def remove_tensors_of(pids: Collection[int], folder: str = SHARED_MEMORY) -> None:
    """Remove the tensors of dead processes of an attempt: a number that lives again is another process's."""
    if not pids:
        return
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            named = _TENSOR.fullmatch(entry.name)
            if named is not None and int(named[1]) in pids and not _lives(int(named[1])):
                os.unlink(entry.path)  # noqa: PTH108  # as scandir names it


def _lives(pid: int) -> bool:
    found = read_process(pid)
    return found is not None and found.state not in {"Z", "X"}
