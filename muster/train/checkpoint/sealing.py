"""Encryption of a file while it is written: AES-256-GCM in frames, so that no whole file has to be stored or trusted.

    "MSTRSEAL" 1 | salt (32) | nonce prefix (7) | frame | frame | …

A frame is 1 MiB of content, the last one the remainder, each with its tag of 16 bytes. This is the STREAM
construction (Hoang, Reyhanitabar, Rogaway, Vizár: Online Authenticated-Encryption and its Nonce-Reuse
Misuse-Resistance, CRYPTO 2015): a frame's nonce is the prefix, its number (4 bytes) and whether it is the last (1).
Each file has a key of its own, by HKDF-SHA256 (RFC 5869) of the job's key, the salt and which file of which generation
it is, so that no nonce is ever used twice under one, however many files a job saves. The same words stand in each
frame's associated data: a file that was cut off, recombined, or put in the place of another does not open.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    from muster.train.checkpoint.keys import Key

FRAME_BYTES = 1 << 20
TAG_BYTES = 16
_MAGIC = b"MSTRSEAL\x01"
_SALT_BYTES = 32
_PREFIX_BYTES = 7
HEADER_BYTES = len(_MAGIC) + _SALT_BYTES + _PREFIX_BYTES


class Sink(Protocol):
    """File to write to. ``fault``: the disk's error, which torch hides."""

    @property
    def fault(self) -> OSError | None: ...

    def write(self, content: bytes | memoryview, /) -> int: ...

    def flush(self) -> None: ...


class NotOpenedError(Exception):
    """The stored bytes are not the ones that were encrypted for that place."""


class MissingCipherError(RuntimeError):
    """The package ``cryptography`` is not installed here."""


def require_cipher() -> None:
    """Raise MissingCipherError if ``cryptography`` is not installed."""
    try:
        import cryptography.hazmat.primitives.ciphers.aead  # noqa: F401, PLC0415  # needed only for encryption
    except ImportError as fault:
        raise MissingCipherError(
            "encrypted checkpoints need cryptography, which is not installed here:"
            " pip install 'muster-train[encryption]'"
        ) from fault


def sealed(dump: Callable[[Sink], None], key: Key, place: str) -> Callable[[Sink], None]:
    """Return a writer of the content of ``dump``, encrypted. ``place``: the file's name with its generation's."""

    def seal(file: Sink) -> None:
        writer = _Sealing(file, key, place)
        dump(writer)
        writer.finish()

    return seal


def opened(content: bytes, key: Key, place: str) -> bytearray:
    """Return the decrypted content. Raises NotOpenedError."""
    from cryptography.exceptions import InvalidTag  # noqa: PLC0415

    if len(content) < HEADER_BYTES + TAG_BYTES or not content.startswith(_MAGIC):
        raise NotOpenedError("it is no encrypted file of muster.train")
    header, frames = content[:HEADER_BYTES], memoryview(content)[HEADER_BYTES:]
    cipher, prefix = _cipher(key, header, place), header[-_PREFIX_BYTES:]
    whole = FRAME_BYTES + TAG_BYTES
    num_frames = -(-len(frames) // whole)
    plain = bytearray()
    for number in range(num_frames):
        is_last = number == num_frames - 1
        frame = frames[number * whole : (number + 1) * whole]
        try:
            plain += cipher.decrypt(_nonce(prefix, number, is_last), frame, _about(place, number, is_last))
        except (InvalidTag, ValueError) as fault:
            raise NotOpenedError(f"frame {number} of {num_frames} is not what was encrypted here") from fault
    return plain


class _Sealing:
    """Encrypting writer. It holds one frame back, since only ``finish`` knows which is the last."""

    def __init__(self, file: Sink, key: Key, place: str) -> None:
        self._file = file
        self._place = place
        header = _MAGIC + os.urandom(_SALT_BYTES + _PREFIX_BYTES)
        self._cipher = _cipher(key, header, place)
        self._prefix = header[-_PREFIX_BYTES:]
        self._number = 0
        self._waiting = bytearray()
        file.write(header)

    @property
    def fault(self) -> OSError | None:
        return self._file.fault

    def write(self, content: bytes | memoryview) -> int:
        left = memoryview(content).cast("B")
        num_bytes = len(left)
        while len(self._waiting) + len(left) > FRAME_BYTES:
            room = FRAME_BYTES - len(self._waiting)
            self._waiting += left[:room]
            left = left[room:]
            self._frame(is_last=False)
        self._waiting += left
        return num_bytes

    def flush(self) -> None:
        """Do nothing: frames are written when they are full."""

    def finish(self) -> None:
        self._frame(is_last=True)
        self._file.flush()

    def _frame(self, *, is_last: bool) -> None:
        nonce, about = _nonce(self._prefix, self._number, is_last), _about(self._place, self._number, is_last)
        self._file.write(self._cipher.encrypt(nonce, self._waiting, about))
        self._number += 1
        self._waiting.clear()


def _cipher(key: Key, header: bytes, place: str) -> AESGCM:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415  # as above
    from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # noqa: PLC0415

    salt = header[len(_MAGIC) : len(_MAGIC) + _SALT_BYTES]
    about = b"muster checkpoint file\x00" + place.encode()
    return AESGCM(HKDF(algorithm=SHA256(), length=32, salt=salt, info=about).derive(key.secret))


def _nonce(prefix: bytes, number: int, is_last: bool) -> bytes:  # noqa: FBT001  # a field of what is packed
    return prefix + struct.pack(">IB", number, is_last)


def _about(place: str, number: int, is_last: bool) -> bytes:  # noqa: FBT001  # as above
    return struct.pack(">IB", number, is_last) + place.encode()
