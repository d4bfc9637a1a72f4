"""Envelopes: a value under a data key of its own (AES-256-GCM, random 96-bit nonce), and the data key under a key.

The associated data names tenant, secret, name and version, so an envelope that is moved to another row does not open.
"""

import json
import os
from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from control.secrets.key_wrapping import KeyWrapper, WrappedKey
from muster.domain.errors import SecretKeyError
from muster.domain.ids import RouteId, SecretId, TenantId

_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_ABOUT: Final = b"muster secret\x00"


@dataclass(frozen=True, slots=True)
class Place:
    """The row that an envelope belongs to."""

    tenant_id: TenantId
    secret_id: SecretId
    name: str
    version: int

    @property
    def about(self) -> bytes:
        """The associated data: unambiguous, whatever the names are."""
        return _ABOUT + json.dumps([self.tenant_id, self.secret_id, self.name, self.version]).encode()


def place_of_route(tenant_id: TenantId | None, route_id: RouteId, version: int) -> Place:
    """Return the place of the receiver of a route; the operators' have no tenant."""
    return Place(TenantId(tenant_id or ""), SecretId(route_id), "", version)


@dataclass(frozen=True, slots=True)
class Envelope:
    """An encrypted value. ``num_bytes``: of the value."""

    wrapped: WrappedKey
    nonce: bytes
    sealed: bytes
    num_bytes: int


def seal(keys: KeyWrapper, place: Place, value: bytes) -> Envelope:
    """Return the value's envelope. Raises ``SecretKeyError``."""
    data_key, nonce = os.urandom(_KEY_BYTES), os.urandom(_NONCE_BYTES)
    sealed = AESGCM(data_key).encrypt(nonce, value, place.about)
    return Envelope(keys.wrap(data_key, place.about), nonce, sealed, len(value))


def opened(keys: KeyWrapper, place: Place, envelope: Envelope) -> bytes:
    """Return the value. Raises ``SecretKeyError``: its key is missing, or the row is not as it was stored."""
    data_key = keys.unwrap(envelope.wrapped, place.about)
    try:
        return AESGCM(data_key).decrypt(envelope.nonce, envelope.sealed, place.about)
    except (InvalidTag, ValueError) as fault:
        raise SecretKeyError(f"the row of the secret {place.name} is not as it was stored") from fault


def rewrapped(keys: KeyWrapper, place: Place, wrapped: WrappedKey) -> WrappedKey:
    """Return the same data key under the active key. Raises ``SecretKeyError``."""
    return keys.rewrap(wrapped, place.about)
