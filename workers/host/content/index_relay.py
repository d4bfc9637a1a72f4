"""The way out of a build's own network: an HTTP proxy that connects to the hosts of the operator's index, and no other.

TLS is between the installer and the index; what passes here is not read.
"""

import re
import selectors
import socket
import threading
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple, Self
from urllib.parse import urlsplit

_MOST_HEAD_BYTES: Final = 64 << 10
MOST_CONNECTIONS: Final = 64
_MOST_REFUSED: Final = 5
"""A build asks for as many places as it likes: so many of them are named."""
_CONNECT_S: Final = 10.0
_QUIET_S: Final = 60.0
_PIECE: Final = 64 << 10
_PORTS: Final = {"http": 80, "https": 443}
_FILES_OF: Final = {"pypi.org": "files.pythonhosted.org", "test.pypi.org": "test-files.pythonhosted.org"}
"""Hosts that an index is known to redirect to for its files."""
_DROPPED: Final = frozenset({b"connection", b"proxy-connection", b"proxy-authorization", b"keep-alive", b"host"})
"""Headers of the way to here alone, and the host's name, which is the place's."""
_HEADER: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[^\x00-\x08\x0a-\x1f\x7f]*")
_METHOD: Final = re.compile(r"[A-Z]+")


class Place(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def places_of(index: str | None, hosts: Iterable[str]) -> frozenset[Place]:
    """Return what a build may reach: the host of the index, and the others that the operator names (``host[:port]``).

    Raises ValueError: one has a port that is none.
    """
    found = set()
    if index is not None:
        parts = urlsplit(index)
        name = (parts.hostname or "").lower()
        found.add(Place(name, parts.port or _PORTS.get(parts.scheme, 443)))
        if (files := _FILES_OF.get(name)) is not None:
            found.add(Place(files, 443))
    for host in hosts:
        parts = urlsplit(f"//{host}")
        found.add(Place((parts.hostname or "").lower(), parts.port or 443))
    return frozenset(found)


class IndexRelay:
    """Serves the connections of ``way_out`` until it is closed."""

    def __init__(self, way_out: socket.socket, places: Collection[Place]) -> None:
        self._refused: dict[Place, None] = {}
        self._way_out = way_out
        self._places = places
        self._is_over = threading.Event()
        self._free = threading.Semaphore(MOST_CONNECTIONS)
        self._thread = threading.Thread(target=self._serve, daemon=True)

    @property
    def address(self) -> str:
        """Return its address, as the build's own network has it."""
        host, port = self._way_out.getsockname()
        return f"http://{host}:{port}"

    def refused(self) -> list[Place]:
        """Return other places that were asked for: the first few."""
        return sorted(self._refused.copy())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._way_out.shutdown(socket.SHUT_RDWR)  # ends the accept that waits
        self._free.release()  # and the wait for one of the connections to end
        self._thread.join()

    def _serve(self) -> None:
        while not self._is_over.is_set():
            self._free.acquire()
            try:
                client, _ = self._way_out.accept()
            except OSError:
                self._free.release()
                return
            threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        try:
            with client:
                client.settimeout(_QUIET_S)
                self._relay(client)
        except OSError:
            pass  # one of the two has gone, which the other notices by the end of its connection
        finally:
            self._free.release()

    def _relay(self, client: socket.socket) -> None:
        head, rest = _head_of(client)
        request = _request_in(head)
        if request is None:
            client.sendall(_refusal(400, "this is no request to a proxy"))
            return
        place, first = request
        if place not in self._places:
            if len(self._refused) < _MOST_REFUSED:
                self._refused[place] = None
            named = ", ".join(sorted(map(str, self._places))) or "none"
            client.sendall(_refusal(403, f"a build reaches the package index alone ({named}), and not {place}"))
            return
        try:
            server = socket.create_connection(place, timeout=_CONNECT_S)
        except OSError as fault:
            client.sendall(_refusal(502, f"{place} cannot be reached: {fault}"))
            return
        with server:
            server.settimeout(_QUIET_S)
            if first is None:
                client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            server.sendall((first or b"") + rest)
            _pump(client, server)


def _head_of(client: socket.socket) -> tuple[bytes, bytes]:
    """Return a request's head, and the bytes after it. Raises OSError: it is too long, or cut off."""
    content = b""
    while b"\r\n\r\n" not in content:
        piece = client.recv(_PIECE)
        if not piece or len(content) > _MOST_HEAD_BYTES:
            raise ConnectionError
        content += piece
    head, _, rest = content.partition(b"\r\n\r\n")
    return head, rest


def _request_in(head: bytes) -> tuple[Place, bytes | None] | None:
    """Return where a request goes, and the head that it has there; None for a tunnel. None: it is no request."""
    line, *headers = head.split(b"\r\n")
    try:
        method, target, _ = line.decode("ascii").split(" ")
        if not _METHOD.fullmatch(method) or not target.isprintable():
            return None
        if method == "CONNECT":
            parts = urlsplit(f"//{target}")
            return None if parts.hostname is None else (Place(parts.hostname.lower(), parts.port or 443), None)
        parts = urlsplit(target)
        if parts.scheme != "http" or parts.hostname is None:
            return None
        place = Place(parts.hostname.lower(), parts.port or 80)
    except ValueError:
        return None
    named = [_HEADER.fullmatch(one) for one in headers]
    kept = [one[0] for one in named if one is not None and one[1].lower() not in _DROPPED]
    path = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
    # One request a connection: the next one may be for another host.
    host = parts.netloc.rpartition("@")[2]
    first = [f"{method} {path} HTTP/1.1\r\nHost: {host}".encode(), *kept, b"Connection: close"]
    return place, b"\r\n".join(first) + b"\r\n\r\n"


def _pump(one: socket.socket, other: socket.socket) -> None:
    """Pass on what each of two connections sends, until one has ended, or both are silent for long."""
    with selectors.DefaultSelector() as selector:
        selector.register(one, selectors.EVENT_READ, other)
        selector.register(other, selectors.EVENT_READ, one)
        while ready := selector.select(_QUIET_S):
            for key, _ in ready:
                source: socket.socket = key.fileobj  # type: ignore[assignment]  # as registered
                piece = source.recv(_PIECE)
                if not piece:
                    return
                key.data.sendall(piece)


def _refusal(status: int, words: str) -> bytes:
    body = f"{words}\n".encode()
    head = f"HTTP/1.1 {status} Refused\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body
