"""torchrun with its imports done, waiting for its arguments: ``PYTHON warm_torchrun.py DESCRIPTOR``.

Importing torch takes a second and more of torchrun's start; here that happens before the job arrives. From the message
on it is ``python -m torch.distributed.run`` in every way, with the attempt's arguments, environment, folder and output.
It serves one attempt and ends with it. It is run by path in the interpreter that jobs get, so it needs any Python 3,
and nothing but the standard library and torch.
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
    del sys.path[0]  # our folder: the program's interpreter must not find our modules
    channel = socket.socket(fileno=descriptor)
    gc.disable()  # an import makes no garbage
    from torch.distributed import run  # noqa: PLC0415  # without collecting, and without our folder on the path

    gc.freeze()  # else its end walks through all of torch's objects: 0.4 s of CPU before the attempt has ended
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
    """Become the job's user permanently, as ``job_user.become`` does it in a fresh child. Raises OSError if it cannot.

    The later steps there belong to an exec, which this process does not do: it may read its own /proc again, and is set
    again to die with its parent.
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
    """Return what to run, with standard output and error redirected; None if the other side has ended."""
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
