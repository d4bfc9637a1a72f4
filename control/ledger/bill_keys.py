"""Keys that sign bills, in a file outside the database (``MUSTER_BILL_KEYS_FILE``).

One key a line: an id, a space, the 64 hex digits of an Ed25519 private key (``openssl rand -hex 32``). The first signs;
the public keys of all are published, so that bills signed before a change can still be verified. Messages name no path
and no content.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from muster.domain.errors import ConflictError
from muster.domain.signed_bills import signed_bytes
from muster.plain_files import UnfitFileError, read_private

FILE: Final = "MUSTER_BILL_KEYS_FILE"
_LINE: Final = re.compile(r"(?P<id>[A-Za-z0-9][A-Za-z0-9._-]{0,63})[ \t]+(?P<key>[0-9A-Fa-f]{64})")


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A key that signs statements. ``public_key``: hex digits, by which its signatures are verified."""

    key_id: str
    _private: Ed25519PrivateKey

    @property
    def public_key(self) -> str:
        return self._private.public_key().public_bytes_raw().hex()

    def sign(self, statement: Mapping[str, Any]) -> str:
        """Return the signature of a statement as hex digits."""
        return self._private.sign(signed_bytes(self.key_id, statement)).hex()


class BillKeys:
    """The keys of a file; None: this control plane signs no bills. The file is read for each use."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def keys(self) -> list[SigningKey]:
        """Return the keys, the one first that signs new bills. Raises ``ConflictError``: there is none."""
        return [SigningKey(key_id, key) for key_id, key in self._read().items()]

    def _read(self) -> dict[str, Ed25519PrivateKey]:
        if self._path is None:
            suggestion = "The operator makes a file of keys: see the page about money."
            raise ConflictError(f"this control plane signs no bills: {FILE} is not set", suggestion=suggestion)
        try:
            text = read_private(self._path)
        except UnfitFileError as fault:
            raise ConflictError(f"{FILE} {fault}") from fault
        found: dict[str, Ed25519PrivateKey] = {}
        for number, line in enumerate(text.splitlines(), 1):
            words = line.partition("#")[0].strip()
            named = _LINE.fullmatch(words)
            if words and (named is None or named["id"] in found):
                raise ConflictError(f"line {number} of {FILE} is no key, which is an id of its own and 64 hex digits")
            if named is not None:
                found[named["id"]] = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(named["key"]))
        if not found:
            raise ConflictError(f"{FILE} has no key, which is a line with an id, a space and 64 hex digits")
        return found
