"""Words to the service manager: ready, still working, ending. Without one, as in a container, each does nothing.

systemd's protocol is a datagram to the socket that ``NOTIFY_SOCKET`` names (sd_notify(3)).
"""

import os
import socket
from typing import Final

READY: Final = "READY=1"
WORKING: Final = "WATCHDOG=1"
ENDING: Final = "STOPPING=1"
_SOCKET: Final = "NOTIFY_SOCKET"


def notify(*words: str) -> bool:
    """Return whether a service manager received the words. A fault of its socket is no fault of this process."""
    address = os.environ.get(_SOCKET, "")
    if not address.startswith(("/", "@")):
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as line:
            line.setblocking(False)
            line.sendto("\n".join(words).encode(), address)
    except OSError:
        return False
    return True
