"""torchrun with its imports done, waiting for its arguments: ``PYTHON warm_torchrun.py DESCRIPTOR``.

Importing torch takes a second and more of torchrun's start; here that lies before the job comes. From the message on
it is ``python -m torch.distributed.run`` in every way: arguments, environment, folder and output are those of the
attempt. Serves one attempt and ends with it. Run by path in the interpreter that jobs get, so: any Python 3, and
nothing but the standard library and torch.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MOST_BYTES = 1 << 22


def main(descriptor: int) -> None:
    del sys.path[0]  # our folder: the program's interpreter sees nothing of ours
    channel = socket.socket(fileno=descriptor)
    gc.disable()  # nothing of an import is garbage
    from torch.distributed import run  # noqa: PLC0415  # without collecting, and without our folder on the path

    gc.enable()
    channel.sendall(b"r")
    order = _order(channel)
    if order is None:
        return
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["working_dir"])
    sys.argv = ["torchrun", *order["args"]]
    run.main()


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
