"""The datagrams: 64 bytes there and 64 back, signed by the answering host's key.

``magic 4 | kind 1 | zeros 3 | nonce 8 | number 4 | zeros 12 | tag 32``, big-endian. ``tag``: HMAC-SHA256 over the bytes
before it. The nonce is one burst's; an answer repeats nonce and number, so it fits one question alone.
"""

import hashlib
import hmac
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

NUM_BYTES: Final = 64
NONCE_BYTES: Final = 8
QUESTION: Final = 1
ANSWER: Final = 2
_MAGIC: Final = b"MPP1"
_HEAD: Final = struct.Struct(">4sB3x8sI12x")


@dataclass(frozen=True, slots=True)
class Datagram:
    kind: int
    nonce: bytes
    number: int

    def sealed(self, key: bytes) -> bytes:
        head = _HEAD.pack(_MAGIC, self.kind, self.nonce, self.number)
        return head + hmac.digest(key, head, hashlib.sha256)


def is_shaped(content: bytes) -> bool:
    """Return whether it has a datagram's size and beginning: others are dropped before any key is tried."""
    return len(content) == NUM_BYTES and content.startswith(_MAGIC)


def opened(content: bytes, keys: Iterable[bytes], kind: int) -> tuple[Datagram, bytes] | None:
    """Return the datagram and its key. None: another kind, or signed by none of ``keys``."""
    if not is_shaped(content) or content[len(_MAGIC)] != kind:
        return None
    head, tag = content[: _HEAD.size], content[_HEAD.size :]
    for key in keys:
        if hmac.compare_digest(hmac.digest(key, head, hashlib.sha256), tag):
            _, found, nonce, number = _HEAD.unpack(head)
            return Datagram(found, nonce, number), key
    return None
