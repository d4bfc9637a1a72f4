"""Secrets on their way to one host: sealed to a key that the host made for one question, and that is never stored.

X25519 between a fresh key on each side, HKDF-SHA256, AES-256-GCM. The context names host, attempt and fence, so an
answer is of no use for another question. An attacker that changes the traffic could put its own key in the place of the
host's: TLS prevents that. This protects the values where a proxy or a log keeps a connection's content.
"""

import os
from collections.abc import Mapping
from typing import Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

_NONCE_BYTES: Final = 12
_LABEL: Final = b"muster secrets of one attempt\x00"


class NotSealedForThisError(Exception):
    """The bytes are not the answer to this question."""


def context_of(node_id: str, attempt_id: str, fence: int) -> bytes:
    """Return what an answer is bound to."""
    return f"{node_id}\x00{attempt_id}\x00{fence}".encode()


def sealed_for(public_key: bytes, values: Mapping[str, bytes], context: bytes) -> tuple[bytes, bytes]:
    """Return our own public key and the sealed values.

    Raises:
        ValueError: ``public_key`` is no key that a secret can be agreed with.
    """
    own = X25519PrivateKey.generate()
    public = own.public_key().public_bytes_raw()
    key = _key(own, public_key, public_key + public + context)
    nonce = os.urandom(_NONCE_BYTES)
    return public, nonce + AESGCM(key).encrypt(nonce, msgspec.json.encode(values), context)


class QuestionKey:
    """The host's key of one question."""

    def __init__(self) -> None:
        self._private = X25519PrivateKey.generate()
        self.public = self._private.public_key().public_bytes_raw()

    def opened(self, public_key: bytes, sealed: bytes, context: bytes) -> dict[str, bytes]:
        """Return the values by name. Raises ``NotSealedForThisError``."""
        try:
            key = _key(self._private, public_key, self.public + public_key + context)
            plain = AESGCM(key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], context)
            return msgspec.json.decode(plain, type=dict[str, bytes])
        except (InvalidTag, ValueError, msgspec.MsgspecError) as fault:
            raise NotSealedForThisError("the answer was not sealed to the key of this question") from fault


def _key(own: X25519PrivateKey, others: bytes, info: bytes) -> bytes:
    shared = own.exchange(X25519PublicKey.from_public_bytes(others))
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=_LABEL + info).derive(shared)
