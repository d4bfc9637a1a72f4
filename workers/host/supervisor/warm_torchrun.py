"""torchrun with its imports done, waiting for its arguments: ``PYTHON warm_torchrun.py DESCRIPTOR``.

Importing torch takes a second and more of torchrun's start; here that lies before the job comes. From the message on
it is ``python -m torch.distributed.run`` in every way: arguments, environment, folder and output are those of the
attempt. Serves one attempt and ends with it. Run by path in the interpreter that jobs get, so: any Python 3, and
nothing but the standard library and torch.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import socket
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MOST_BYTES = 1 << 22
_PARENT_DEATH_SIGNAL = 1
_DUMPABLE = 4
_NO_NEW_PRIVILEGES = 38


def main(descriptor: int) -> None:
    del sys.path[0]  # our folder: the program's interpreter sees nothing of ours
    channel = socket.socket(fileno=descriptor)
    gc.disable()  # nothing of an import is garbage
    from torch.distributed import run  # noqa: PLC0415  # without collecting, and without our folder on the path

    gc.enable()
    parent_pid = os.getppid()
    channel.sendall(b"r")
    order = _order(channel)
    if order is None:
        return
    if order["user"] is not None:
        _become(order["user"]["uid"], order["user"]["groups"], parent_pid)
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["working_dir"])
    sys.argv = ["torchrun", *order["args"]]
    run.main()


def _become(uid: int, groups: list[int], parent_pid: int) -> None:
    """The job's user, for good, as ``job_user.become`` does it in a fresh child; raises OSError rather than go on.

    What comes after belongs to an exec, which this process does not do: it may look at itself again, and it is told
    again with whom to die.
    """
    os.setgroups(groups)
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    libc = ctypes.CDLL(None, use_errno=True)
    for option, argument in ((_NO_NEW_PRIVILEGES, 1), (_DUMPABLE, 1), (_PARENT_DEATH_SIGNAL, signal.SIGKILL)):
        if libc.prctl(option, argument, 0, 0, 0) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"prctl({option}): {os.strerror(number)}")
    if os.getppid() != parent_pid:
        os._exit(1)


def _order(channel: socket.socket) -> dict[str, Any] | None:
    """What to run, with standard output and error set to where it wants them; None where the other side is gone."""
    text, outputs, _, _ = socket.recv_fds(channel, 1 << 16, 1)
    while not text.endswith(b"\n"):
        more = channel.recv(1 << 16)
        if not more or len(text) > _MOST_BYTES:
            return None
        text += more
    for number in (1, 2):
        os.dup2(outputs[0], number)
    os.close(outputs[0])
    channel.close()
    order: dict[str, Any] = json.loads(text)
    return order


if __name__ == "__main__":
    main(int(sys.argv[1]))
