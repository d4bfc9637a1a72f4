"""A Vault server that is played over HTTP: the transit engine's calls, and the faults that a real one has."""

import base64
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from control.secrets.vault_calls import VaultCalls, VaultServer
from control.secrets.vault_keys import VaultKeys
from tests.recorded_server import Answer, RecordedServer, Requested, serving

TOKEN = "hvs.played"  # of a server that is played
KEY = "muster"


@dataclass
class PlayedVault:
    """One key of a transit engine. ``refusal``: what each call is answered with instead.

    ``quiet``: calls are not answered before it is set. ``versions``: None: there is no such key.
    """

    server: RecordedServer
    token_file: Path
    versions: list[bytes] | None = field(default_factory=lambda: [os.urandom(32)])
    first: int = 1
    refusal: Answer | None = None
    quiet: threading.Event | None = None
    namespace: str | None = None

    def rotate(self) -> None:
        self._known().append(os.urandom(32))

    def keys(self, *, timeout_s: float = 30.0, namespace: str | None = None, **more: Any) -> VaultKeys:
        return VaultKeys(self.calls(timeout_s=timeout_s, namespace=namespace, **more), "transit", KEY)

    def calls(self, *, timeout_s: float, namespace: str | None = None, **more: Any) -> VaultCalls:
        where = VaultServer(self.server.url, self.token_file, namespace=namespace, timeout_s=timeout_s)
        return VaultCalls(where, **more)

    def answer(self, requested: Requested) -> Answer:
        if self.quiet is not None:
            self.quiet.wait(60)
        if self.refusal is not None:
            return self.refusal
        if requested.headers.get("x-vault-token") != TOKEN or requested.headers.get("x-vault-namespace") != (
            self.namespace
        ):
            return refusal(403, "1 error occurred:\n\t* permission denied\n\n")
        if self.versions is None:
            return refusal(404) if requested.method == "GET" else refusal(400, "encryption key not found")
        return self._done(requested.path, json.loads(requested.body or b"{}"))

    def _done(self, path: str, body: dict[str, Any]) -> Answer:
        versions = self._known()
        if path == f"/v1/transit/keys/{KEY}":
            shown = {"min_decryption_version": self.first, "latest_version": len(versions), "derived": False}
            return Answer(200, {"data": {**shown, "supports_encryption": True}})
        if path == f"/v1/transit/encrypt/{KEY}":
            return Answer(200, {"data": {"ciphertext": self._sealed(base64.b64decode(body["plaintext"]))}})
        try:
            plain = self._opened(body["ciphertext"])
        except (InvalidTag, ValueError):
            return refusal(400, "invalid ciphertext: could not decrypt")
        if path == f"/v1/transit/rewrap/{KEY}":
            return Answer(200, {"data": {"ciphertext": self._sealed(plain)}})
        return Answer(200, {"data": {"plaintext": base64.b64encode(plain).decode()}})

    def _known(self) -> list[bytes]:
        assert self.versions is not None
        return self.versions

    def _sealed(self, plain: bytes) -> str:
        nonce, versions = os.urandom(12), self._known()
        sealed = base64.b64encode(nonce + AESGCM(versions[-1]).encrypt(nonce, plain, None)).decode()
        return f"vault:v{len(versions)}:{sealed}"

    def _opened(self, text: str) -> bytes:
        _, version, sealed = text.split(":")
        number, content = int(version[1:]), base64.b64decode(sealed)
        if number < self.first:
            raise ValueError("too old")
        return AESGCM(self._known()[number - 1]).decrypt(content[:12], content[12:], None)


def refusal(status: int, *errors: str) -> Answer:
    return Answer(status, {"errors": list(errors)})


@contextmanager
def played_vault(folder: Path) -> Iterator[PlayedVault]:
    token_file = folder / "vault.token"
    token_file.write_text(f"{TOKEN}\n")
    token_file.chmod(0o600)
    with serving(lambda requested, _number: vault.answer(requested)) as server:
        vault = PlayedVault(server, token_file)
        try:
            yield vault
        finally:
            if vault.quiet is not None:
                vault.quiet.set()
