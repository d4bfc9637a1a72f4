"""Tokens: ``mst_`` + 10 public characters + 30 secret ones + 6 of checksum, all base62.

The checksum (CRC-32 of what stands before it) refuses a typo without asking the database and lets secret scanners be
sure. The public part finds the row; of the secret part (178 bits) the database holds only a SHA-256, which needs no
slow hash at that entropy.
"""

import hashlib
import secrets
import string
import zlib
from dataclasses import dataclass
from typing import Final

TOKEN_PREFIX: Final = "mst_"  # noqa: S105  # the public prefix, no secret
_ALPHABET: Final = string.digits + string.ascii_letters
_PUBLIC: Final = 10
_SECRET: Final = 30
_CHECKSUM: Final = 6
_LENGTH: Final = len(TOKEN_PREFIX) + _PUBLIC + _SECRET + _CHECKSUM


@dataclass(frozen=True, slots=True)
class Token:
    """``text`` is shown once. ``public`` finds its row, ``digest`` proves it."""

    text: str
    public: str
    digest: bytes


def new_token() -> Token:
    body = "".join(secrets.choice(_ALPHABET) for _ in range(_PUBLIC + _SECRET))
    text = f"{TOKEN_PREFIX}{body}"
    token = read_token(text + _checksum(text))
    if token is None:
        raise AssertionError("a fresh token must read back")
    return token


def read_token(text: str) -> Token | None:
    """Return the token, or None when the text is none: wrong prefix, length, alphabet or checksum."""
    if len(text) != _LENGTH or not text.startswith(TOKEN_PREFIX) or not text.isascii() or not text[4:].isalnum():
        return None
    head, checksum = text[:-_CHECKSUM], text[-_CHECKSUM:]
    if not secrets.compare_digest(_checksum(head), checksum):
        return None
    public = text[len(TOKEN_PREFIX) : len(TOKEN_PREFIX) + _PUBLIC]
    return Token(text, public, hashlib.sha256(text.encode()).digest())


def _checksum(text: str) -> str:
    number = zlib.crc32(text.encode())
    digits = []
    for _ in range(_CHECKSUM):
        number, digit = divmod(number, len(_ALPHABET))
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))
