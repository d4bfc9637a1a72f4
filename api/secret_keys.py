"""The keys that protect secrets, for a request."""

from fastapi import Request

from api.dependencies import dependencies_of
from control.secrets.key_wrapping import KeyWrapper
from muster.domain.errors import SecretKeyError


def keys_of(request: Request) -> KeyWrapper:
    """Return the keys. Raises ``SecretKeyError`` where this control plane has none."""
    keys = dependencies_of(request).secret_keys
    if keys is None:
        raise SecretKeyError(
            "this control plane keeps no secrets: neither MUSTER_SECRET_KEYS_FILE nor Vault is set",
            suggestion="Ask the operator for a file of keys: `openssl rand -hex 32`, and the page on keys of secrets.",
        )
    return keys
