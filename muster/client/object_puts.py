"""Uploads of single objects to the content store, by requests that the control plane has signed.

They bypass the client of the API: a thousand small files cost little more than their system calls, and a large one is
sent by the kernel.
"""

from __future__ import annotations

import http.client
import io
import os
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from muster.content.read import changed
from muster.content.scan import Found
from muster.store.faults import (
    MAX_ERROR_BYTES,
    StoreError,
    StoreRefusedError,
    StoreSlowError,
    StoreWrongError,
    fault_of,
)

if TYPE_CHECKING:
    from muster import documents

TRIES: Final = 5
PAUSE_S: Final = 0.5
CONNECT_S: Final = 10.0
REPLY_S: Final = 60.0
IN_ONE_PIECE: Final = 64 << 10
"""Up to here an object is sent with its headers at once."""
_REFUSED: Final = 403
"""An address that has expired, and a key or a clock that is wrong: stores word them in many ways."""


class _ShorterError(Exception):
    """The file became shorter while it was sent."""


@dataclass(frozen=True, slots=True)
class ObjectSource:
    """Where the bytes of an object are: in a file, from a byte on, or in memory.

    ``opened``: opens a file as it was scanned; it raises FolderError for one that has changed.
    """

    opened: Callable[[Found], io.FileIO]
    files: Mapping[str, tuple[Found, int]]
    in_memory: Mapping[str, bytes]


class PutConnections:
    """A connection for each thread that uploads."""

    def __init__(self, source: ObjectSource, ca_file: Path | None = None) -> None:
        """``ca_file``: certificates that are trusted besides the system's, since they may have signed the store's."""
        self.refusal: StoreError | None = None
        """The last answer of the store that refused an address."""
        self._source = source
        self._ca_file = ca_file
        self._own = threading.local()
        self._all: list[http.client.HTTPConnection] = []
        self._is_closed = False

    def close(self) -> None:
        """Break off what is being sent; to be called when no object is needed any more."""
        self._is_closed = True
        for connection in list(self._all):
            if connection.sock is not None:
                with suppress(OSError):
                    connection.sock.shutdown(socket.SHUT_RDWR)

    def put(self, upload: documents.ObjectUpload) -> bool:
        """Upload one object. Return False where the store refuses its address, as an expired one.

        Raises:
            FolderError: the file is not as it was when its digest was taken.
            StoreError: the store is full, or did not take it in several tries.
        """
        for tried in range(TRIES):
            try:
                status, body = self._sent(upload)
            except (OSError, http.client.HTTPException) as error:
                self._drop()
                words = str(error) or type(error).__name__
                fault: StoreError = StoreSlowError(f"the content store does not answer: {words}")
            else:
                if status < 300:
                    return True
                fault = self._fault(upload, status, body)
                if status == _REFUSED and isinstance(fault, StoreRefusedError):
                    self.refusal = fault
                    return False
            if self._is_closed or not isinstance(fault, StoreSlowError) or tried + 1 == TRIES:
                raise fault
            time.sleep(random.uniform(0.5, 1) * PAUSE_S * 2**tried)  # noqa: S311  # a pause, no secret
        raise AssertionError("the last try returns or raises")

    def _sent(self, upload: documents.ObjectUpload) -> tuple[int, bytes]:
        content = self._source.in_memory.get(upload["digest"])
        if content is not None:
            return self._exchange(upload, content)
        found, start = self._source.files[upload["digest"]]
        with self._source.opened(found) as file:
            if upload["num_bytes"] > IN_ONE_PIECE:
                try:
                    return self._exchange(upload, (file, start))
                except _ShorterError as error:
                    self._drop()
                    raise changed(found.path) from error
            content = os.pread(file.fileno(), upload["num_bytes"], start)
            if len(content) < upload["num_bytes"]:
                raise changed(found.path)
            return self._exchange(upload, content)

    def _exchange(self, upload: documents.ObjectUpload, content: bytes | tuple[io.FileIO, int]) -> tuple[int, bytes]:
        parts = urlsplit(upload["url"])
        connection = self._connection(parts.scheme, parts.netloc)
        connection.putrequest(upload["method"], f"{parts.path}?{parts.query}", skip_accept_encoding=True)
        for name, value in upload["headers"].items():
            connection.putheader(name, value)
        try:
            if isinstance(content, bytes):
                connection.endheaders(content)
            else:
                connection.endheaders()
                self._send_file(connection, content, upload["num_bytes"])
        except ConnectionError:
            # The store may have refused before it had all: its answer says why.
            answer = connection.getresponse()
            body = answer.read(MAX_ERROR_BYTES)
            self._drop()
            return answer.status, body
        answer = connection.getresponse()
        body = answer.read(MAX_ERROR_BYTES + 1)
        if len(body) > MAX_ERROR_BYTES or answer.status >= 300:
            self._drop()
        return answer.status, body

    def _send_file(
        self, connection: http.client.HTTPConnection, content: tuple[io.FileIO, int], num_bytes: int
    ) -> None:
        file, start = content
        sock: socket.socket = connection.sock
        sent = sock.sendfile(file, start, num_bytes)
        if sent != num_bytes:
            raise _ShorterError

    def _fault(self, upload: documents.ObjectUpload, status: int, body: bytes) -> StoreError:
        fault = fault_of(status, body)
        where = self._source.files.get(upload["digest"])
        if isinstance(fault, StoreWrongError) and where is not None:
            raise changed(where[0].path) from fault
        return fault

    def _connection(self, scheme: str, netloc: str) -> http.client.HTTPConnection:
        found: http.client.HTTPConnection | None = getattr(self._own, "connection", None)
        if found is None:
            if self._is_closed:
                raise ConnectionAbortedError("the upload is broken off")
            found = self._open(scheme, netloc)
            self._own.connection = found
            self._all.append(found)
        return found

    def _open(self, scheme: str, netloc: str) -> http.client.HTTPConnection:
        if scheme != "https":
            connection = http.client.HTTPConnection(netloc, timeout=CONNECT_S)
        else:
            context = ssl.create_default_context()
            if self._ca_file is not None:
                context.load_verify_locations(cafile=str(self._ca_file))
            connection = http.client.HTTPSConnection(netloc, timeout=CONNECT_S, context=context)
        connection.connect()
        connection.sock.settimeout(REPLY_S)
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _drop(self) -> None:
        connection: http.client.HTTPConnection | None = getattr(self._own, "connection", None)
        if connection is not None:
            connection.close()
            self._own.connection = None
            with suppress(ValueError):
                self._all.remove(connection)
