"""The launcher's wake-up socket: a datagram socket of the state folder; a message is no order, only a wake-up."""

import select
import socket
from pathlib import Path
from typing import Final

_MAX_DATAGRAM: Final = 256


class WakeupSocket:
    def __init__(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        self._socket.bind(str(path))
        path.chmod(0o600)
        self.path = path

    def wait(self, timeout_s: float) -> bool:
        """Return whether a wake-up arrives within ``timeout_s``; several at once count as one."""
        readable, _, _ = select.select([self._socket], [], [], max(0.0, timeout_s))
        if not readable:
            return False
        while True:
            try:
                self._socket.recv(_MAX_DATAGRAM)
            except BlockingIOError:
                return True

    def close(self) -> None:
        self._socket.close()
        self.path.unlink(missing_ok=True)
