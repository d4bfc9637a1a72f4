"""Requests of a host to the control plane, by the standard library: a host's start of a job waits for no import of
httpx, which takes a third of the CPU of the process that fetches a bundle.
"""

from __future__ import annotations

import http.client
import json
import select
import ssl
import threading
import time
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from muster import progress
from muster.client.http_rules import (
    CONNECT_TIMEOUT_S,
    KEEP_ALIVE_S,
    REQUEST_TIMEOUT_S,
    USER_AGENT,
    UnreachableError,
    problem_of,
    require_secure,
)
from muster.client.key_file import KeyFile

if TYPE_CHECKING:
    from pathlib import Path


class _Answer(NamedTuple):
    status: int
    retry_after: str | None
    body: bytes


class _Idle(NamedTuple):
    since_s: float
    connection: http.client.HTTPConnection


class HostHttp:
    """Connections to one control plane, each for one request at a time. Several threads may use it.

    It follows no redirect, so that a key never goes to another host, and takes no proxy from the environment.
    """

    def __init__(self, api_url: str, key: str | KeyFile, *, ca_file: Path | None = None) -> None:
        """Raise InsecureAddressError: ``api_url`` is http:// and not on loopback."""
        require_secure(api_url)
        parts = urlsplit(api_url)
        self._url = api_url
        self._host, self._port, self._path = parts.hostname or "", parts.port, parts.path.rstrip("/")
        self._trusted = _trusted(ca_file) if parts.scheme == "https" else None
        self._key = key
        self._guard = threading.Lock()
        self._idle: list[_Idle] = []

    def close(self) -> None:
        with self._guard:
            idle, self._idle = self._idle, []
        for one in idle:
            one.connection.close()

    def post(self, path: str, content: bytes, *, answer_s: float | None = None) -> bytes:
        """Send one request with JSON, and return the answer's body. ``answer_s``: how long the server may work on it.

        Raises:
            UnreachableError: no answer came.
            Problem: the answer's status is 300 or more.
        """
        try:
            answer = self._answered(path, content, answer_s or REQUEST_TIMEOUT_S)
        except (OSError, http.client.HTTPException) as error:
            raise UnreachableError(f"{self._url} does not answer: {str(error) or type(error).__name__}") from error
        finally:
            progress.advance()
        if answer.status >= http.client.MULTIPLE_CHOICES:
            raise problem_of(answer.status, _document(answer.body), answer.retry_after)
        return answer.body

    def _answered(self, path: str, content: bytes, answer_s: float) -> _Answer:
        """Send the request, and again where its key was refused and the key's file has another one by now."""
        if isinstance(self._key, str):
            return self._exchange(path, content, answer_s, self._key)
        used = self._key.text
        answer = self._exchange(path, content, answer_s, used)
        if answer.status != http.client.UNAUTHORIZED or (key := self._key.read_again()) == used:
            return answer
        return self._exchange(path, content, answer_s, key)

    def _exchange(self, path: str, content: bytes, answer_s: float, key: str) -> _Answer:
        headers = {"Content-Type": "application/json", "Accept": "application/json", "User-Agent": USER_AGENT}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        connection = self._taken()
        try:
            if connection.sock is None:
                connection.connect()
            connection.sock.settimeout(answer_s)
            connection.request("POST", f"{self._path}{path}", content, headers)
            answer = connection.getresponse()
            found = _Answer(answer.status, answer.headers.get("Retry-After"), answer.read())
        except BaseException:
            connection.close()
            raise
        if connection.sock is not None:  # the server keeps it open
            with self._guard:
                self._idle.append(_Idle(time.monotonic(), connection))
        return found

    def _taken(self) -> http.client.HTTPConnection:
        """Return the connection that was used last, if the server has not closed it; else a new one."""
        while True:
            with self._guard:
                one = self._idle.pop() if self._idle else None
            if one is None:
                break
            if time.monotonic() - one.since_s < KEEP_ALIVE_S and not _has_ended(one.connection):
                return one.connection
            one.connection.close()
        if self._trusted is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=CONNECT_TIMEOUT_S)
        return http.client.HTTPSConnection(self._host, self._port, timeout=CONNECT_TIMEOUT_S, context=self._trusted)


def _has_ended(connection: http.client.HTTPConnection) -> bool:
    """Return whether something came on an idle connection: its end, or what belongs to no request."""
    waiting = select.poll()
    waiting.register(connection.sock, select.POLLIN)
    return bool(waiting.poll(0))


def _trusted(ca_file: Path | None) -> ssl.SSLContext:
    """Return the certificates to trust: in ``ca_file``, else the ones that httpx has for our other clients."""
    if ca_file is not None:
        return ssl.create_default_context(cafile=str(ca_file))
    import httpx  # noqa: PLC0415  # its own certificates: where the operator names none

    return httpx.create_ssl_context(trust_env=False)


def _document(body: bytes) -> object:
    try:
        return json.loads(body)
    except ValueError:
        return None
