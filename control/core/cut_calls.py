"""Calls of HTTP that end after a time as a whole: a timeout of a socket alone begins again with each byte."""

import contextlib
import http.client
import socket
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def cut_after(connection: http.client.HTTPConnection, limit_s: float) -> Iterator[threading.Event]:
    """Close the connection's socket after ``limit_s``, and in any case at the end. The event says that it was cut."""
    is_cut = threading.Event()
    timer = threading.Timer(limit_s, _cut, [connection, is_cut])
    timer.daemon = True
    timer.start()
    try:
        yield is_cut
    finally:
        timer.cancel()
        connection.close()


def _cut(connection: http.client.HTTPConnection, is_cut: threading.Event) -> None:
    is_cut.set()
    sock = connection.sock
    if sock is not None:
        with contextlib.suppress(OSError):
            # Of the socket below TLS: a call that waits in TLS would not notice the other.
            socket.socket.shutdown(sock, socket.SHUT_RDWR)
