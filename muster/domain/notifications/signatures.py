"""Signatures of webhooks by Standard Webhooks 1.0: HMAC-SHA256 over id, time and body under the route's secret."""

import base64
import hashlib
import hmac
from collections.abc import Sequence
from datetime import datetime
from typing import Final

SECRET_PREFIX: Final = "whsec_"  # noqa: S105  # what a secret begins with
SECRET_BYTES: Final = 32


def secret_of(content: bytes) -> str:
    """Return the secret as a receiver is given it. ``content``: 24 to 64 random bytes."""
    return SECRET_PREFIX + base64.b64encode(content).decode()


def signed_headers(notification_id: str, at: datetime, body: bytes, secrets: Sequence[str]) -> dict[str, str]:
    """Return the headers of a try. ``secrets``: the newest, and the one before it while receivers change over."""
    moment = str(int(at.timestamp()))
    content = b".".join((notification_id.encode(), moment.encode(), body))
    signatures = [
        "v1,"
        + base64.b64encode(
            hmac.new(base64.b64decode(secret.removeprefix(SECRET_PREFIX)), content, hashlib.sha256).digest()
        ).decode()
        for secret in secrets
    ]
    return {
        "webhook-id": notification_id,
        "webhook-timestamp": moment,
        "webhook-signature": " ".join(signatures),
    }
