"""Errors of the content store, each with what to do, and the words of S3's error answers as such an error.

Clients and hosts send signed requests by themselves: they ask ``fault_of`` what an answer means.
"""

import re
from html import unescape
from typing import Final

from muster.domain.errors import UnavailableError

NOT_CONFIGURED: Final = "no content store is configured; the operator's page docs/operator/content-store.md says how"
MAX_ERROR_BYTES: Final = 64 << 10
"""Of an error answer so much is read."""
_MAX_SHOWN: Final = 300


class StoreError(UnavailableError):
    """The store did not do what it was asked."""

    title = "The content store failed"
    advice = "`muster doctor` on the control plane's machine says whether the store works."


class StoreFullError(StoreError):
    title = "The content store is full"
    advice = "Ask the operator for space: a larger disk or bucket, or a shorter retention of bundles and outputs."


class StoreSlowError(StoreError):
    title = "The content store does not answer in time"
    advice = "Repeat it later. If it stays, the operator checks the store's process, its disk and the network to it."


class StoreRefusedError(StoreError):
    title = "The content store refuses the request"
    advice = "Get a fresh address. If it stays, the operator compares MUSTER_STORE_KEY_FILE, bucket, region and clocks."


class StoreWrongError(StoreError):
    title = "The content store answers what it should not"
    advice = (
        "The operator checks that MUSTER_STORE_URL is that of an S3-compatible store, and that nothing changes data."
    )


class ObjectGoneError(StoreError):
    title = "The content store has no such object"
    advice = "Upload it again; `muster content check` names everything that the store lacks."


_KINDS_BY_CODE: Final[dict[str, type[StoreError]]] = {
    "InsufficientStorage": StoreFullError,
    "QuotaExceeded": StoreFullError,
    "XMinioStorageFull": StoreFullError,
    "NoSuchKey": ObjectGoneError,
    "NoSuchBucket": StoreRefusedError,
    "BadDigest": StoreWrongError,
    "IncompleteBody": StoreSlowError,
    "RequestTimeout": StoreSlowError,
    "SlowDown": StoreSlowError,
    "ServiceUnavailable": StoreSlowError,
    "InternalError": StoreSlowError,
    "InvalidObjectState": StoreWrongError,
    "XAmzContentChecksumMismatch": StoreWrongError,
}
"""Codes of S3's errors that do not follow from the status. XMinioStorageFull is MinIO's, QuotaExceeded Ceph's."""


def fault_of(status: int, body: bytes) -> StoreError:
    """Return what an answer of ``status`` from the store means. ``body``: its beginning is enough; may be empty."""
    text = body[:MAX_ERROR_BYTES].decode("utf-8", "replace")
    code, message = _member(text, "Code"), _member(text, "Message")
    kind = _KINDS_BY_CODE.get(code) or _kind_by_status(status)
    said = f": {code} ({message})" if message else f": {code}" if code else ""
    return kind(f"the content store answers {status}{said}")


def _kind_by_status(status: int) -> type[StoreError]:
    if status == 507:
        return StoreFullError
    if status in {408, 429} or status >= 500:
        return StoreSlowError
    if status == 404:
        return ObjectGoneError
    return StoreRefusedError if status in {400, 401, 403} else StoreWrongError


def _member(text: str, name: str) -> str:
    found = re.search(rf"<{name}>([^<]*)</{name}>", text)
    words = "" if found is None else unescape(found[1])
    return "".join(each if each.isprintable() else " " for each in words)[:_MAX_SHOWN].strip()
