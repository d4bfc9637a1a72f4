"""Calls of HTTP that end after a time as a whole: a timeout of a socket alone begins again with each byte.

The connections here keep the socket that they have connected. ``http.client`` forgets its own once an answer has begun
that ends the connection, and TLS takes the socket over before the handshake.
"""

import contextlib
import http.client
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence


class CutConnection(http.client.HTTPConnection):
    """A connection that can be cut at any time.

    ``addresses``: to connect to, the first that answers; empty: what ``host`` resolves to. ``trust``: None: no TLS;
    else the certificate must be of ``host``, whatever address is connected.
    """

    def __init__(
        self,
        host: str,
        port: int | None,
        timeout_s: float,
        trust: ssl.SSLContext | None = None,
        addresses: Sequence[str] = (),
    ) -> None:
        self.default_port = 443 if trust is not None else 80
        super().__init__(host, port or self.default_port, timeout=timeout_s)
        self._timeout_s = timeout_s
        self._trust = trust
        self._addresses = addresses or (host,)
        self._wire: socket.socket | None = None
        self._is_cut = threading.Event()

    @property
    def is_cut(self) -> bool:
        return self._is_cut.is_set()

    def connect(self) -> None:
        """Connect, with TLS where there is any. Raises OSError."""
        self._wire = self._first()
        try:
            if self._trust is not None:
                # The handshake comes after the socket is known, so that it can be cut too.
                tls = self._trust.wrap_socket(self._wire, server_hostname=self.host, do_handshake_on_connect=False)
                self._wire = tls
                self._refuse_cut()
                tls.do_handshake()
            self._refuse_cut()
        except BaseException:
            self._wire.close()
            raise
        self.sock = self._wire

    def _first(self) -> socket.socket:
        fault: OSError | None = None
        for address in self._addresses:
            self._refuse_cut()
            try:
                return socket.create_connection((address, self.port), self._timeout_s)
            except OSError as error:
                fault = fault or error
        raise fault or OSError("the name has no address")

    def _refuse_cut(self) -> None:
        if self.is_cut:
            raise TimeoutError("it took too long")

    def cut(self) -> None:
        """End the call, in whatever it waits."""
        self._is_cut.set()
        wire = self._wire
        if wire is not None:
            with contextlib.suppress(OSError):
                # Of the socket below TLS: a call that waits in TLS would not notice the other.
                socket.socket.shutdown(wire, socket.SHUT_RDWR)


def words_of(fault: Exception) -> str:
    """Return what is wrong with a connection, in few words."""
    if isinstance(fault, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({fault.verify_message})"
    if isinstance(fault, ssl.SSLError):
        return "it supports no TLS that is accepted here"
    if isinstance(fault, socket.gaierror):
        return "its name is not known"
    if isinstance(fault, OSError):
        return fault.strerror or str(fault) or type(fault).__name__
    return f"this is no answer of HTTP ({type(fault).__name__})"


@contextlib.contextmanager
def cut_after(connection: CutConnection, limit_s: float) -> Iterator[None]:
    """Cut the connection after ``limit_s``, and close it in any case at the end."""
    timer = threading.Timer(limit_s, connection.cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        connection.close()
