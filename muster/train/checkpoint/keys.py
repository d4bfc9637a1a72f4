"""The keys under which a job's checkpoints are encrypted: in a file of their own, and never in a checkpoint or message.

One key a line, 64 hex digits (``openssl rand -hex 32``); the first encrypts, any of them decrypts; blank lines and what
follows ``#`` count for nothing. To change keys, put the new one first and leave the old ones until no checkpoint needs
them. Messages name a key by its id, a fingerprint from which the key cannot be computed.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_KEY = re.compile(r"[0-9A-Fa-f]{64}")
_FINGERPRINT_OF = b"muster checkpoint key id"
_ID_DIGITS = 16


class KeyFileError(ValueError):
    """The file of keys cannot be read, or holds something else. The message names the line and never its content."""


class MissingKeyError(RuntimeError):
    """A checkpoint that is to be used is encrypted under a key that is not available here. The checkpoint itself may be
    whole.
    """


@dataclass(frozen=True)
class Key:
    id: str
    secret: bytes

    def __repr__(self) -> str:
        return f"Key({self.id})"


class Keyring:
    """Keys of one job. ``first``: the key under which new checkpoints are encrypted."""

    def __init__(self, keys: tuple[Key, ...], path: Path) -> None:
        self.first = keys[0]
        self._path = path
        self._keys = {key.id: key for key in keys}

    @property
    def ids(self) -> list[str]:
        """The keys' ids in the order of the file."""
        return list(self._keys)

    def encrypting_under(self, key_id: str) -> Keyring:
        """Return the same keys with another first. Raises MissingKeyError."""
        first = self.key(key_id)
        return Keyring((first, *(key for key in self._keys.values() if key != first)), self._path)

    @classmethod
    def read(cls, path: Path) -> Keyring:
        """Read the keys from a file. Raises KeyFileError."""
        try:
            lines = path.read_text(encoding="ascii").splitlines()
        except (OSError, UnicodeDecodeError) as fault:
            why = fault.strerror if isinstance(fault, OSError) else "it is not plain text"
            raise KeyFileError(f"the checkpoint keys in {path} cannot be read: {why}") from None
        keys = []
        for number, line in enumerate(lines, 1):
            text = line.partition("#")[0].strip()
            if text and not _KEY.fullmatch(text):
                raise KeyFileError(f"line {number} of {path} is no checkpoint key, which is 64 hex digits")
            if text:
                keys.append(key_of(bytes.fromhex(text)))
        if not keys:
            raise KeyFileError(f"{path} holds no checkpoint key, which is a line of 64 hex digits")
        return cls(tuple(keys), path)

    def key(self, key_id: str) -> Key:
        """Return the key of an id. Raises MissingKeyError."""
        if key_id not in self._keys:
            raise MissingKeyError(f"key {key_id} is needed; {self._path} holds {', '.join(self._keys)}")
        return self._keys[key_id]


def key_of(secret: bytes) -> Key:
    """Return the key of a ``secret`` of 32 bytes. Its id is the begin of HMAC-SHA256 of a fixed text under it."""
    return Key(hmac.new(secret, _FINGERPRINT_OF, hashlib.sha256).hexdigest()[:_ID_DIGITS], secret)
