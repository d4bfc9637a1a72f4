"""The keys that protect secrets, behind one interface: a file of the operator's, Vault, or a KMS.

Each value is encrypted under a data key of its own. Only the data key is ever sent to what holds the keys, so a key
service sees no value, and a change of keys moves no value either.
"""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class WrappedKey:
    """A data key under the key ``key_id``, as the holder of the keys returned it."""

    key_id: str
    content: bytes


class KeyWrapper(Protocol):
    """Wraps and unwraps data keys. Each call may ask a service, so none is made within a transaction.

    ``about`` binds a data key to its secret and version: ``unwrap`` fails for another one.

    Every method raises ``SecretKeyError`` where the keys cannot be used, with the reason.
    """

    def active_key_id(self) -> str:
        """Return the id of the key that ``wrap`` uses."""
        ...

    def key_ids(self) -> frozenset[str]:
        """Return the ids of the keys that ``unwrap`` can use."""
        ...

    def wrap(self, data_key: bytes, about: bytes) -> WrappedKey:
        """Return the data key under the active key."""
        ...

    def unwrap(self, wrapped: WrappedKey, about: bytes) -> bytes:
        """Return the data key."""
        ...

    def rewrap(self, wrapped: WrappedKey, about: bytes) -> WrappedKey:
        """Return the same data key under the active key. A service does so itself, and no data key leaves it."""
        ...
