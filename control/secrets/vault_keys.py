"""Keys of secrets in Vault's transit engine: it wraps and unwraps data keys, and the key never leaves it.

A key's id names the version that Vault used: ``vault:MOUNT/NAME:v3``. With the data key Vault gets the hash of what it
is bound to, so ``unwrap`` fails elsewhere, and Vault's own ``rewrap`` keeps the bond; a key's associated data would not
pass ``rewrap``.
"""

import base64
import binascii
import hashlib
import hmac
import re
from typing import Final

from control.secrets.key_wrapping import WrappedKey
from control.secrets.vault_calls import VaultAnswer, VaultCalls
from muster.domain.errors import SecretKeyError

DATA_KEY_BYTES: Final = 32
_CIPHERTEXT: Final = re.compile(r"vault:v(?P<version>[1-9][0-9]{0,8}):[A-Za-z0-9+/=]{1,4096}")


class VaultKeys:
    """A ``KeyWrapper`` over one key of a transit engine. ``mount``: where the engine is. ``name``: the key's."""

    def __init__(self, calls: VaultCalls, mount: str, name: str) -> None:
        self._calls = calls
        self._mount = mount
        self._name = name
        self._prefix = f"vault:{mount}/{name}:v"

    def active_key_id(self) -> str:
        return f"{self._prefix}{self._versions()[-1]}"

    def key_ids(self) -> frozenset[str]:
        return frozenset(f"{self._prefix}{version}" for version in self._versions())

    def wrap(self, data_key: bytes, about: bytes) -> WrappedKey:
        plain = base64.b64encode(data_key + _bond(about)).decode()
        return self._wrapped(self._calls.post(f"{self._mount}/encrypt/{self._name}", {"plaintext": plain}))

    def unwrap(self, wrapped: WrappedKey, about: bytes) -> bytes:
        answer = self._calls.post(f"{self._mount}/decrypt/{self._name}", {"ciphertext": self._ciphertext(wrapped)})
        self._require(answer)
        try:
            plain = base64.b64decode(str(answer.data.get("plaintext", "")), validate=True)
        except (binascii.Error, ValueError):
            raise SecretKeyError("Vault answered with what is no data key") from None
        data_key, bond = plain[:DATA_KEY_BYTES], plain[DATA_KEY_BYTES:]
        if len(data_key) != DATA_KEY_BYTES or not hmac.compare_digest(bond, _bond(about)):
            raise SecretKeyError(f"the data key under {wrapped.key_id} is of another secret: the row was changed")
        return data_key

    def rewrap(self, wrapped: WrappedKey, about: bytes) -> WrappedKey:  # noqa: ARG002  # Vault keeps the bond
        body = {"ciphertext": self._ciphertext(wrapped)}
        return self._wrapped(self._calls.post(f"{self._mount}/rewrap/{self._name}", body))

    def _versions(self) -> range:
        """Return the versions of the key by which Vault still decrypts, the newest last."""
        answer = self._calls.get(f"{self._mount}/keys/{self._name}")
        if answer.status == 404:
            raise SecretKeyError(f"Vault has no key {self._mount}/{self._name}")
        self._require(answer)
        first, last = answer.data.get("min_decryption_version"), answer.data.get("latest_version")
        if not isinstance(first, int) or not isinstance(last, int) or not 0 < last < 10**9:
            raise SecretKeyError("what answers at Vault's address is no transit engine")
        if answer.data.get("derived") or answer.data.get("supports_encryption") is False:
            raise SecretKeyError(f"the key {self._mount}/{self._name} of Vault must encrypt, and not be derived")
        return range(max(first, 1), last + 1)

    def _ciphertext(self, wrapped: WrappedKey) -> str:
        text = wrapped.content.decode("ascii", "replace")
        found = _CIPHERTEXT.fullmatch(text)
        if not wrapped.key_id.startswith(self._prefix):
            raise SecretKeyError(f"the key {wrapped.key_id} is needed, and Vault is asked for {self._prefix}… alone")
        if found is None or wrapped.key_id != f"{self._prefix}{found['version']}":
            raise SecretKeyError(f"the data key under {wrapped.key_id} is not as Vault made it: the row was changed")
        return text

    def _wrapped(self, answer: VaultAnswer) -> WrappedKey:
        self._require(answer)
        text = str(answer.data.get("ciphertext", ""))
        found = _CIPHERTEXT.fullmatch(text)
        if found is None:
            raise SecretKeyError("Vault answered with what is no wrapped key")
        return WrappedKey(f"{self._prefix}{found['version']}", text.encode())

    def _require(self, answer: VaultAnswer) -> None:
        if answer.status != 200:
            words = answer.words or "no reason is given"
            raise SecretKeyError(f"Vault refuses the key {self._mount}/{self._name} ({answer.status}): {words}")


def _bond(about: bytes) -> bytes:
    return hashlib.sha256(b"muster data key\x00" + about).digest()
