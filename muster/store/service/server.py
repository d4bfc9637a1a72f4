"""Listening, and a thread for each connection, up to a bound: memory and threads follow from the number of connections.

When all are taken, the connection that has waited longest for a request is closed for a new one. Only where all of them
work a new one is refused.
"""

import contextlib
import socket
import ssl
import threading
import time
from pathlib import Path
from typing import Final

import structlog

from muster.store.service.faults import S3Error
from muster.store.service.handler import Handler
from muster.store.service.head import head_of
from muster.store.service.replies import answer_error
from muster.store.service.stream import BrokenError, Phase, Stream

SWEEP_S: Final = 0.5
BACKLOG: Final = 512
_STACK_BYTES: Final = 512 << 10
_log = structlog.get_logger(__name__)


class Server:
    """The store's port. ``accept`` and ``sweep`` are loops of the process."""

    def __init__(
        self, handler: Handler, host: str, port: int, *, connections: int, tls: ssl.SSLContext | None = None
    ) -> None:
        """Raise OSError: the port is taken, or the address is none of this machine's."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host.strip("[]"), port), family=family, backlog=BACKLOG)
        self._listener.settimeout(SWEEP_S)
        self._handler, self._tls, self._most = handler, tls, connections
        self._guard = threading.Lock()
        self._open: set[Stream] = set()
        threading.stack_size(_STACK_BYTES)

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    def accept(self, stop: threading.Event) -> None:
        """Take connections until ``stop``."""
        while not stop.is_set():
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError as error:  # the limit of open files, for one
                _log.warning("connection_not_taken", fault=str(error))
                stop.wait(SWEEP_S)
                continue
            self._take(connection)

    def sweep(self, stop: threading.Event) -> None:
        """Cut connections that are too slow, until ``stop``."""
        while not stop.is_set():
            now_s = time.monotonic()
            with self._guard:
                late = [stream for stream in self._open if stream.until_s < now_s]
            for stream in late:
                stream.cut()
            stop.wait(SWEEP_S)

    def close(self, within_s: float) -> None:
        """Take no more connections, end the waiting ones, and let the others work on for so long."""
        self._listener.close()
        deadline_s = time.monotonic() + within_s
        while time.monotonic() < deadline_s:
            with self._guard:
                waiting = [stream for stream in self._open if stream.phase is Phase.WAITING]
                if not self._open:
                    return
            for stream in waiting:
                stream.cut()
            time.sleep(0.02)

    def _take(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the client may have gone already
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = Stream(connection)
        with self._guard:
            is_refused = len(self._open) >= self._most and not self._make_room()
            if not is_refused:
                self._open.add(stream)
        target = self._refuse if is_refused else self._serve
        try:
            threading.Thread(target=target, args=(stream,), name="connection", daemon=True).start()
        except RuntimeError as error:
            _log.warning("connection_not_taken", fault=str(error))
            with self._guard:
                self._open.discard(stream)
            connection.close()

    def _make_room(self) -> bool:
        waiting = [stream for stream in self._open if stream.phase is Phase.WAITING]
        if not waiting:
            return False
        oldest = min(waiting, key=lambda stream: stream.since_s)
        self._open.discard(oldest)
        oldest.cut()
        return True

    def _refuse(self, stream: Stream) -> None:
        error = S3Error("SlowDown", "too many connections are open")
        with contextlib.suppress(BrokenError):
            if self._tls is None:  # a word in clear is no answer to a client of TLS
                answer_error(stream, error, has_body=True, is_kept=False)
        stream.close()

    def _serve(self, stream: Stream) -> None:
        try:
            if self._tls is not None:
                stream.secure(self._tls)
            while self._serve_one(stream):
                pass
        except BrokenError as error:
            _log.debug("connection_ended", fault=str(error))
        except Exception:  # noqa: BLE001  # the edge of a connection's thread: logged with its trace
            _log.exception("connection_failed")
        finally:
            stream.close()
            with self._guard:
                self._open.discard(stream)

    def _serve_one(self, stream: Stream) -> bool:
        try:
            content = stream.head()
            if content is None:
                return False
            head = head_of(content)
        except S3Error as error:
            answer_error(stream, error, has_body=True, is_kept=False)
            return False
        return self._handler.handle(head, stream)


def tls_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Raise OSError: certificate or key cannot be read, or do not belong together."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return context
