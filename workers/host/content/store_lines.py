"""Connections to the content store that stay open between chunks, one a thread, by the standard library alone."""

import http.client
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, Self
from urllib.parse import urlsplit

from muster.store.faults import MAX_ERROR_BYTES, ObjectGoneError, StoreRefusedError, fault_of
from workers.host.content.faults import FetchError

QUIET_S: Final = 10.0
"""The store may be silent for so long."""


PIECE_BYTES: Final = 256 << 10
"""Of a larger piece, less is in the CPU's cache when it is digested and written: 4 MiB cost twice the system's time."""


class GoneError(FetchError):
    """The store has no such object."""

    IS_OF_HOST = False


class RefusedError(FetchError):
    """The store refuses the address: it has expired, or its keys or clocks differ."""


class PassingError(FetchError):
    """The store did not answer as it should, and may the next time."""


class OtherBytesError(FetchError):
    """What arrived is not what was wanted."""


class StoreLine:
    """One connection to a store. One thread uses it."""

    def __init__(self, ca_file: Path | None = None) -> None:
        self._ca_file = ca_file
        self._http: http.client.HTTPConnection | None = None
        self._where = ("", "")
        self._buffer = memoryview(bytearray(PIECE_BYTES))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._http is not None:
            self._http.close()
            self._http = None

    def pieces(self, url: str, headers: Mapping[str, str], most_bytes: int) -> Iterator[memoryview]:
        """Yield an object of at most so many bytes. Each piece is valid until the next one.

        An error of the caller's leaves the connection within the object: call ``close``.

        Raises:
            GoneError, RefusedError: the store's answer.
            OtherBytesError: the object is longer.
            PassingError: the store's answer, or a fault of the connection.
        """
        try:
            answer = self._answer(url, headers)
            num_left = most_bytes
            while num_left and (num_bytes := answer.readinto(self._buffer[:num_left])):
                yield self._buffer[:num_bytes]
                num_left -= num_bytes
            # A read of at most so many bytes does not notice that the connection was cut.
            if num_left and answer.length:
                raise http.client.IncompleteRead(b"", answer.length)
            if not answer.isclosed() and answer.read(1):
                self.close()
                raise OtherBytesError("the content store has more bytes than were expected")
        except (OSError, http.client.HTTPException) as fault:
            self.close()
            raise PassingError(f"the content store does not answer: {str(fault) or type(fault).__name__}") from fault

    def _answer(self, url: str, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        """Ask over the open connection, and over a new one if the store has closed that after the last object."""
        connection = self._to(url)
        is_reused = connection.sock is not None
        try:
            answer = self._requested(connection, url, headers)
        except ConnectionError:
            self.close()
            if not is_reused:
                raise
            answer = self._requested(self._to(url), url, headers)
        if answer.status != http.client.OK:
            fault = _fault_of(answer.status, answer.read(MAX_ERROR_BYTES))
            self.close()
            raise fault
        return answer

    def _requested(
        self, connection: http.client.HTTPConnection, url: str, headers: Mapping[str, str]
    ) -> http.client.HTTPResponse:
        parts = urlsplit(url)
        connection.request("GET", f"{parts.path}?{parts.query}" if parts.query else parts.path, headers=dict(headers))
        return connection.getresponse()

    def _to(self, url: str) -> http.client.HTTPConnection:
        parts = urlsplit(url)
        if self._http is not None and self._where == (parts.scheme, parts.netloc):
            return self._http
        self.close()
        self._where = (parts.scheme, parts.netloc)
        host = parts.hostname or ""
        if parts.scheme == "https":
            self._http = http.client.HTTPSConnection(host, parts.port, timeout=QUIET_S, context=self._trusted())
        else:
            self._http = http.client.HTTPConnection(host, parts.port, timeout=QUIET_S)
        return self._http

    def _trusted(self) -> ssl.SSLContext:
        """Return the system's certificates, with the control plane's, which may have signed the store's too."""
        context = ssl.create_default_context()
        if self._ca_file is not None:
            context.load_verify_locations(cafile=str(self._ca_file))
        return context


def _fault_of(status: int, body: bytes) -> FetchError:
    fault = fault_of(status, body)
    if isinstance(fault, ObjectGoneError):
        return GoneError(str(fault))
    return RefusedError(str(fault)) if isinstance(fault, StoreRefusedError) else PassingError(str(fault))
