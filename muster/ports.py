"""TCP ports of this machine's loopback interface."""

import secrets
import socket
from typing import Final

LOOPBACK = "127.0.0.1"
MEETING_PORTS: Final = range(18_000, 20_000)
"""Ports below the range that Linux uses for outgoing connections and for programs that name none."""


def free_port() -> int:
    """Return a port without a listener. Another process may take it before its user binds it: retry then."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def meeting_port() -> int:
    """Return a port for programs that meet on this host some seconds later.

    The kernel gives it to no other connection until then.
    """
    first = secrets.randbelow(len(MEETING_PORTS))
    ports = (*MEETING_PORTS[first:], *MEETING_PORTS[:first])
    return next((port for port in ports if not port_is_taken(port)), None) or free_port()


def port_is_taken(port: int, host: str = LOOPBACK) -> bool:
    """Return whether a process listens there, or holds the port so that no other can."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As every server does: a port in TIME_WAIT is not taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return True
    return False
