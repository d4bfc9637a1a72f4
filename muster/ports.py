"""TCP ports of this machine's loopback interface."""

import socket

LOOPBACK = "127.0.0.1"


def free_port() -> int:
    """A port nobody listens on now. Another process may take it before its user binds it: retry then."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def port_is_taken(port: int, host: str = LOOPBACK) -> bool:
    """Whether something listens there, or holds the port so that nothing else can."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As every server does: a port in TIME_WAIT is not taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return True
    return False
