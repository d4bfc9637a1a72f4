"""Connections to the content store that stay open between chunks, one a thread, by the standard library alone."""

import http.client
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self
from urllib.parse import urlsplit

from muster.store.faults import MAX_ERROR_BYTES, ObjectGoneError, StoreRefusedError, fault_of
from workers.host.content.faults import FetchError

QUIET_S: Final = 10.0
"""The store may be silent for so long."""


class GoneError(FetchError):
    """The store has no such object."""

    IS_OF_HOST = False


class RefusedError(FetchError):
    """The store refuses the address: it has expired, or its keys or clocks differ."""


class PassingError(FetchError):
    """The store did not answer as it should, and may the next time."""


class StoreLine:
    """One connection to a store. One thread uses it."""

    def __init__(self, ca_file: Path | None = None) -> None:
        self._ca_file = ca_file
        self._http: http.client.HTTPConnection | None = None
        self._where = ("", "")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._http is not None:
            self._http.close()
            self._http = None

    def read(self, url: str, headers: Mapping[str, str], most_bytes: int) -> bytes:
        """Return an object of at most so many bytes.

        Raises:
            GoneError, RefusedError: the store's answer.
            PassingError: the store's answer, or a fault of the connection.
        """
        try:
            return self._read_kept(url, headers, most_bytes)
        except (OSError, http.client.HTTPException) as fault:
            raise PassingError(f"the content store does not answer: {str(fault) or type(fault).__name__}") from fault

    def _read_kept(self, url: str, headers: Mapping[str, str], most_bytes: int) -> bytes:
        """Read over the open connection, and over a new one if the store has closed that after the last object."""
        connection = self._to(url)
        is_reused = connection.sock is not None
        try:
            return self._read(connection, url, headers, most_bytes)
        except ConnectionError:
            if not is_reused:
                raise
        return self._read(self._to(url), url, headers, most_bytes)

    def _read(
        self, connection: http.client.HTTPConnection, url: str, headers: Mapping[str, str], most_bytes: int
    ) -> bytes:
        parts = urlsplit(url)
        target = f"{parts.path}?{parts.query}" if parts.query else parts.path
        try:
            connection.request("GET", target, headers=dict(headers))
            answer = connection.getresponse()
            if answer.status != http.client.OK:
                fault = _fault_of(answer.status, answer.read(MAX_ERROR_BYTES))
                self.close()
                raise fault
            stated_bytes = answer.length
            content = answer.read(most_bytes + 1)
            # A read of at most so many bytes does not notice that the connection was cut.
            if stated_bytes is not None and len(content) < min(stated_bytes, most_bytes):
                raise http.client.IncompleteRead(content, stated_bytes - len(content))
            if len(content) > most_bytes or not answer.isclosed():
                self.close()
        except (OSError, http.client.HTTPException):
            self.close()
            raise
        return content

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
