"""A network of a build's own: a loopback, and one way out of it, through a socket that this process serves."""

import fcntl
import os
import socket
import struct
import threading
from typing import Final, Self

from workers.host.supervisor.kernel import leave_network

_SET_FLAGS: Final = 0x8914
_IS_UP: Final = 0x1 | 0x40
_NETWORK: Final = "/proc/thread-self/ns/net"
_BACKLOG: Final = 128


class OwnNetwork:
    """A network without interfaces but its loopback. It lives as long as this object, or a process in it.

    A socket belongs to the network in which it was made. So this process accepts the connections that are made to
    ``way_out`` inside, and connects from its own network.
    """

    def __init__(self) -> None:
        """Make it in a thread, which alone leaves our network. Raises OSError: this process may not."""
        self.descriptor = -1
        self.way_out: socket.socket | None = None
        self._fault: OSError | None = None
        thread = threading.Thread(target=self._make)
        thread.start()
        thread.join()
        if self._fault is not None:
            self.close()
            raise self._fault

    def _make(self) -> None:
        try:
            leave_network()
            self.descriptor = os.open(_NETWORK, os.O_RDONLY | os.O_CLOEXEC)
            self.way_out = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            fcntl.ioctl(self.way_out, _SET_FLAGS, struct.pack("16sh14x", b"lo", _IS_UP))
            self.way_out.bind(("127.0.0.1", 0))
            self.way_out.listen(_BACKLOG)
        except OSError as fault:
            self._fault = fault

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self.way_out is not None:
            self.way_out.close()
            self.way_out = None
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def can_be_made() -> bool:
    """Return whether this process may make one."""
    try:
        OwnNetwork().close()
    except OSError:
        return False
    return True
