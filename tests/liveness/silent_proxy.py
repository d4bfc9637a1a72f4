"""A proxy in front of PostgreSQL that can go silent: it stays connected, accepts connections, and passes nothing on."""

import contextlib
import select
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import make_url

CHECK_S = 0.02


class SilentProxy:
    """On a port of loopback, to the server's socket. ``url``: of the database, by the proxy."""

    def __init__(self, database_url: str) -> None:
        found = make_url(database_url)
        folder = found.query["host"]
        port = found.query.get("port", "5432")
        self._server = str(Path(str(folder)) / f".s.PGSQL.{port}")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        told = f"{found.username}@" if found.username else ""
        self.url = f"postgresql://{told}127.0.0.1:{self.port}/{found.database}"
        self._is_silent = threading.Event()
        self._is_over = threading.Event()
        self._peers: dict[socket.socket, socket.socket] = {}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def silence(self) -> None:
        self._is_silent.set()

    def speak(self) -> None:
        """Pass new connections on. The ones that were silenced stay silent, as after a fail-over."""
        self._peers = {}
        self._is_silent.clear()

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()
        self._listener.close()

    def _run(self) -> None:
        kept: list[socket.socket] = []
        while not self._is_over.is_set():
            if self._is_silent.wait(0):
                self._is_over.wait(CHECK_S)
                continue
            ready, _, _ = select.select([self._listener, *self._peers], [], [], CHECK_S)
            for each in ready:
                if each is self._listener:
                    kept += self._connect()
                elif not self._is_silent.is_set():
                    self._pass(each)
        for each in kept:
            each.close()

    def _connect(self) -> list[socket.socket]:
        client, _ = self._listener.accept()
        server = socket.socket(socket.AF_UNIX)
        server.connect(self._server)
        self._peers |= {client: server, server: client}
        return [client, server]

    def _pass(self, each: socket.socket) -> None:
        if each.fileno() < 0:
            return  # its peer ended in this same round
        peer = self._peers.get(each)
        content = b""
        with contextlib.suppress(ConnectionError):  # it was reset: an end as any other
            content = each.recv(65_536)
        if peer is None:
            return
        if content:
            with contextlib.suppress(ConnectionError):
                peer.sendall(content)
            return
        self._peers.pop(each, None)
        self._peers.pop(peer, None)
        peer.close()
        each.close()


@contextlib.contextmanager
def silent_proxy(database_url: str) -> Iterator[SilentProxy]:
    proxy = SilentProxy(database_url)
    try:
        yield proxy
    finally:
        proxy.close()
