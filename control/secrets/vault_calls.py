"""Calls to a Vault server by the standard library: a limit of time for each call as a whole, and of calls at once.

Messages say what Vault answered, and never its address, token or the files' paths: tenants read them too.
"""

import http.client
import json
import re
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from control.core.cut_calls import CutConnection, cut_after, words_of
from control.secrets.vault_circuit import Circuit
from muster.domain.errors import SecretKeyError
from muster.plain_files import UnfitFileError, read_private

MOST_BYTES: Final = 1 << 20
TOKEN_FILE: Final = "MUSTER_VAULT_TOKEN_FILE"  # noqa: S105  # the setting's name
CA_FILE: Final = "MUSTER_VAULT_CA_FILE"
_TOKEN: Final = re.compile(r"[!-~]{1,4096}")
_MOST_WORDS: Final = 200


@dataclass(frozen=True, slots=True)
class VaultServer:
    """Where Vault is, and how it is asked. ``namespace``: of Vault Enterprise; None: the root."""

    url: str
    token_file: Path
    ca_file: Path | None = None
    namespace: str | None = None
    timeout_s: float = 5.0


@dataclass(frozen=True, slots=True)
class VaultAnswer:
    """``data``: of an answer with 200. ``words``: what Vault says of a refusal."""

    status: int
    data: Mapping[str, Any]
    words: str


class VaultCalls:
    """Sends requests to one Vault, each on a connection of its own. Any thread may use it."""

    def __init__(self, server: VaultServer, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._server = server
        self._circuit = Circuit(monotonic)

    def get(self, path: str) -> VaultAnswer:
        """Ask for what stands at ``path``, below ``/v1/``. Raises ``SecretKeyError`` as ``post`` does."""
        return self._answered("GET", path, None)

    def post(self, path: str, body: Mapping[str, Any]) -> VaultAnswer:
        """Send a body to ``path``, below ``/v1/``.

        Raises:
            SecretKeyError: the token cannot be read, Vault does not answer in time, is sealed, or refuses the token.
                At once: it did not answer a moment ago, or many calls wait for it already.
        """
        return self._answered("POST", path, body)

    def _answered(self, method: str, path: str, body: Mapping[str, Any] | None) -> VaultAnswer:
        headers = self._headers()
        with self._circuit.call() as failed:
            try:
                status, content = self._sent(method, path, body, headers)
            except (OSError, http.client.HTTPException) as fault:
                raise failed(f"Vault does not answer: {words_of(fault)}") from fault
        return _answer(status, content)

    def _headers(self) -> dict[str, str]:
        """Return the headers. The token's file is read each time: Vault's agent renews it."""
        try:
            token = read_private(self._server.token_file).strip()
        except UnfitFileError as fault:
            raise SecretKeyError(f"{TOKEN_FILE} {fault}") from fault
        if not _TOKEN.fullmatch(token):
            raise SecretKeyError(f"{TOKEN_FILE} holds no token, which is one word")
        named = {} if self._server.namespace is None else {"X-Vault-Namespace": self._server.namespace}
        return {"X-Vault-Token": token, "X-Vault-Request": "true", "Content-Type": "application/json", **named}

    def _sent(
        self, method: str, path: str, body: Mapping[str, Any] | None, headers: Mapping[str, str]
    ) -> tuple[int, bytes]:
        connection = self._connection()
        with cut_after(connection, self._server.timeout_s):
            try:
                connection.request(method, f"/v1/{path}", None if body is None else json.dumps(body), dict(headers))
                answer = connection.getresponse()
                content = answer.read(MOST_BYTES + 1)
            except (OSError, http.client.HTTPException) as fault:
                raise (self._late() if connection.is_cut or isinstance(fault, TimeoutError) else fault) from fault
        # A connection that ends early is a short answer to the library, no error.
        if connection.is_cut:
            raise self._late()
        if answer.length and len(content) <= MOST_BYTES:
            raise ConnectionError("its answer ended early")
        return answer.status, content

    def _late(self) -> TimeoutError:
        return TimeoutError(f"no whole answer in {self._server.timeout_s:g} s")

    def _connection(self) -> CutConnection:
        parts = urlsplit(self._server.url)
        trust = None if parts.scheme == "http" else self._trust()
        return CutConnection(parts.hostname or "", parts.port, self._server.timeout_s, trust)

    def _trust(self) -> ssl.SSLContext:
        ca_file = None if self._server.ca_file is None else str(self._server.ca_file)
        try:
            return ssl.create_default_context(cafile=ca_file)
        except OSError as fault:
            words = "holds no certificates" if isinstance(fault, ssl.SSLError) else f"cannot be read: {fault.strerror}"
            raise SecretKeyError(f"{CA_FILE} {words}") from fault


def _answer(status: int, content: bytes) -> VaultAnswer:
    """Return what Vault reports. Raises ``SecretKeyError``: it is sealed, refuses the token, or is no Vault."""
    document = _document(content)
    words = _refusal_words(document)
    if status == 403:
        raise SecretKeyError(f"Vault refuses the token of {TOKEN_FILE}: {words or 'permission denied'}")
    if status in {301, 302, 307, 308}:
        raise SecretKeyError("Vault answers from a standby that names another address: name the active one")
    if status == 429 or status >= 500:
        raise SecretKeyError(f"Vault cannot answer now ({status}): {words or 'no reason is given'}")
    data = document.get("data")
    if status == 200 and not isinstance(data, dict):
        raise SecretKeyError("what answers at Vault's address is no Vault")
    return VaultAnswer(status, data if isinstance(data, dict) else {}, words)


def _document(content: bytes) -> dict[str, Any]:
    if len(content) > MOST_BYTES:
        raise SecretKeyError(f"Vault's answer has more than {MOST_BYTES:,} bytes")
    try:
        found = json.loads(content or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _refusal_words(document: Mapping[str, Any]) -> str:
    errors = document.get("errors")
    texts = [each for each in errors if isinstance(each, str)] if isinstance(errors, list) else []
    whole = " ".join("; ".join(texts).split())
    return "".join(character for character in whole if character.isprintable())[:_MOST_WORDS]
