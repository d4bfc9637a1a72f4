"""Opaque cursors: the end of the last page and its filters, signed so that no client can make its own."""

import base64
import binascii
import hashlib
import hmac
import json
from typing import Any, Final

from muster.domain.errors import InvalidCursorError

_TAG_BYTES: Final = 16
_MAX_LENGTH: Final = 1024
# Made once: each page that has a next one needs both.
_encode: Final = json.JSONEncoder(separators=(",", ":")).encode
_canonical: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=str).encode


def make_cursor(secret_key: bytes, filters: dict[str, Any], position: list[str]) -> str:
    """Return the cursor after ``position`` (the sort key's values) for a query with ``filters``."""
    body = _encode({"f": _digest(filters), "p": position}).encode()
    return base64.urlsafe_b64encode(_tag(secret_key, body) + body).decode().rstrip("=")


def read_cursor(secret_key: bytes, filters: dict[str, Any], cursor: str, *, length: int) -> list[str]:
    """Return the position in a cursor of this API for the same ``filters``.

    Raises:
        InvalidCursorError: tampered with, made elsewhere, or for other filters.
    """
    document = _document_in(secret_key, cursor)
    if document["f"] != _digest(filters) or len(document["p"]) != length:
        raise InvalidCursorError
    return [str(part) for part in document["p"]]


def _document_in(secret_key: bytes, cursor: str) -> dict[str, Any]:
    """Return the signed document. Raises InvalidCursorError: tampered with, or made elsewhere."""
    if len(cursor) > _MAX_LENGTH:
        raise InvalidCursorError
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        tag, body = raw[:_TAG_BYTES], raw[_TAG_BYTES:]
        if not hmac.compare_digest(tag, _tag(secret_key, body)):
            raise InvalidCursorError
        document: dict[str, Any] = json.loads(body)
    except (binascii.Error, ValueError) as error:
        raise InvalidCursorError from error
    return document


def _tag(secret_key: bytes, body: bytes) -> bytes:
    return hmac.digest(secret_key, b"cursor\x00" + body, "sha256")[:_TAG_BYTES]


def _digest(filters: dict[str, Any]) -> str:
    return hashlib.sha256(_canonical(filters).encode()).hexdigest()[:16]
