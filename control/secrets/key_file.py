"""Keys of secrets in a file outside the database (``MUSTER_SECRET_KEYS_FILE``).

One key a line: an id, a space, 64 hex digits (``openssl rand -hex 32``). The first wraps, any of them unwraps; blank
lines and what follows ``#`` count for nothing. The file is read again once it has changed, so a change of keys needs no
restart. Messages name keys by their ids and lines by their numbers, never their content or the file's path: tenants
read them too.
"""

import os
import re
import threading
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from control.secrets.key_wrapping import WrappedKey
from muster.domain.errors import SecretKeyError
from muster.plain_files import UnfitFileError, read_private, state_of

FILE: Final = "MUSTER_SECRET_KEYS_FILE"
NONCE_BYTES: Final = 12
_LINE: Final = re.compile(r"(?P<id>[A-Za-z0-9][A-Za-z0-9._-]{0,63})[ \t]+(?P<key>[0-9A-Fa-f]{64})")
_ABOUT: Final = b"muster data key\x00"


class FileKeys:
    """A ``KeyWrapper`` over a file of keys."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._state: tuple[int, ...] = ()
        self._keys: dict[str, bytes] = {}

    def active_key_id(self) -> str:
        return next(iter(self._current()))

    def key_ids(self) -> frozenset[str]:
        return frozenset(self._current())

    def wrap(self, data_key: bytes, about: bytes) -> WrappedKey:
        key_id, key = next(iter(self._current().items()))
        nonce = os.urandom(NONCE_BYTES)
        return WrappedKey(key_id, nonce + AESGCM(key).encrypt(nonce, data_key, _bound(key_id, about)))

    def unwrap(self, wrapped: WrappedKey, about: bytes) -> bytes:
        keys = self._current()
        key = keys.get(wrapped.key_id)
        if key is None:
            there = ", ".join(keys)
            raise SecretKeyError(f"the key {wrapped.key_id} is needed, and {FILE} has only {there}")
        nonce, content = wrapped.content[:NONCE_BYTES], wrapped.content[NONCE_BYTES:]
        try:
            return AESGCM(key).decrypt(nonce, content, _bound(wrapped.key_id, about))
        except (InvalidTag, ValueError) as fault:
            words = f"the key {wrapped.key_id} of {FILE} is not the one that was used, or the row was changed"
            raise SecretKeyError(words) from fault

    def rewrap(self, wrapped: WrappedKey, about: bytes) -> WrappedKey:
        return self.wrap(self.unwrap(wrapped, about), about)

    def _current(self) -> dict[str, bytes]:
        """Return id → key in the order of the file. A changed file is read again."""
        with self._lock:
            state = state_of(self._path)
            if not state or state != self._state:
                self._keys, self._state = _read(self._path), state
            return self._keys


def _read(path: Path) -> dict[str, bytes]:
    try:
        text = read_private(path)
    except UnfitFileError as fault:
        raise SecretKeyError(f"{FILE} {fault}") from fault
    keys: dict[str, bytes] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].strip()
        if not words:
            continue
        named = _LINE.fullmatch(words)
        if named is None:
            raise SecretKeyError(f"line {number} of {FILE} is no key, which is an id, a space and 64 hex digits")
        if named["id"] in keys:
            raise SecretKeyError(f"line {number} of {FILE} has the id {named['id']}, which a line above has already")
        keys[named["id"]] = bytes.fromhex(named["key"])
    if not keys:
        raise SecretKeyError(f"{FILE} has no key, which is a line with an id, a space and 64 hex digits")
    return keys


def _bound(key_id: str, about: bytes) -> bytes:
    return _ABOUT + key_id.encode() + b"\x00" + about
