"""Calls to the store by the control plane itself, for its keepers: plain HTTP with a limit of time for each call.

The standard library's client is used: what imports this needs no other, and the limit counts for the call as a whole,
also where a byte comes now and then.
"""

import http.client
import socket
import ssl
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit

from muster.store.faults import StoreSlowError, StoreWrongError

CALL_S: Final = 30.0
"""A call may take so long as a whole."""
QUIET_S: Final = 10.0
"""The store may be silent for so long."""
MAX_ANSWER_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: http.client.HTTPMessage
    body: bytes


class Line:
    """One connection to the store, opened when it is needed. One thread uses it."""

    def __init__(self, url: str, ca_file: Path | None, *, call_s: float = CALL_S, quiet_s: float = QUIET_S) -> None:
        parts = urlsplit(url)
        self._where = f"{parts.scheme}://{parts.netloc}"
        self._call_s = call_s
        host, port = parts.hostname or "", parts.port
        self._http: http.client.HTTPConnection
        if parts.scheme == "https":
            trusted = ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
            self._http = http.client.HTTPSConnection(host, port, timeout=quiet_s, context=trusted)
        else:
            self._http = http.client.HTTPConnection(host, port, timeout=quiet_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def call(self, method: str, target: str, *, most_bytes: int = MAX_ANSWER_BYTES) -> Answer:
        """Send one request without a body. ``most_bytes``: of its answer.

        Raises:
            StoreSlowError: no whole answer in time.
            StoreWrongError: the answer is none of HTTP, or is too large.
        """
        is_reused = self._http.sock is not None
        try:
            return self._call(method, target, most_bytes)
        except ConnectionError as error:
            if not is_reused:
                raise self._slow(_words(error)) from error
        # The store had closed the connection after the call before. Each call may come twice.
        try:
            return self._call(method, target, most_bytes)
        except ConnectionError as error:
            raise self._slow(_words(error)) from error

    def _call(self, method: str, target: str, most_bytes: int) -> Answer:
        timer = threading.Timer(self._call_s, self._cut)
        timer.daemon = True
        timer.start()
        try:
            self._http.request(method, target)
            answer = self._http.getresponse()
            body = answer.read(most_bytes + 1)
            # A connection that ends early is a short answer to the library, no error.
            if len(body) <= most_bytes and (answer.length or not timer.is_alive()):
                raise http.client.IncompleteRead(body, answer.length)
        except (OSError, http.client.HTTPException) as error:
            self._http.close()
            raise self._fault(error, is_cut=not timer.is_alive()) from error
        finally:
            timer.cancel()
        if len(body) > most_bytes:
            self._http.close()
            raise self._wrong(f"its answer has more than {most_bytes:,} bytes")
        return Answer(answer.status, answer.headers, body)

    def _fault(self, error: OSError | http.client.HTTPException, *, is_cut: bool) -> Exception:
        if is_cut:
            return self._slow(f"it took more than {self._call_s:g} s")
        if isinstance(error, ConnectionError):
            return error
        if isinstance(error, OSError | http.client.IncompleteRead):
            return self._slow(_words(error))
        return self._wrong(f"this is no answer of HTTP: {_words(error)}")

    def _cut(self) -> None:
        connection = self._http.sock
        if connection is not None:
            with suppress(OSError):
                # Of the socket below TLS: a call that waits in TLS would not notice the other.
                socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def _slow(self, why: str) -> StoreSlowError:
        return StoreSlowError(f"the content store at {self._where} does not answer: {why}")

    def _wrong(self, why: str) -> StoreWrongError:
        return StoreWrongError(f"the content store at {self._where}: {why}")


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
