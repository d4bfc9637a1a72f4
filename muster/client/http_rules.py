"""What all clients of the control plane keep to: limits of time, no key in clear text, and faults in one sentence each.

It imports no HTTP library: a host's start of a job uses the standard one (``host_http``), all others httpx
(``transport``).
"""

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import urlsplit

from muster import __version__
from muster.domain.loopback import is_loopback

CONNECT_TIMEOUT_S: Final = 2.0
REQUEST_TIMEOUT_S: Final = 10.0
KEEP_ALIVE_S: Final = 5.0
"""An idle connection is kept so long; below the server's own 60 s."""
USER_AGENT: Final = f"muster/{__version__}"


class UnreachableError(Exception):
    """The control plane did not answer: refused, timed out, or its certificate does not fit."""


class Problem(Exception):  # noqa: N818  # the field's name for it (RFC 9457)
    """The control plane's answer was a problem document. ``retry_after_s``: how long it asks to be left alone."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        suggestion: str = "",
        document: dict[str, Any] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        self.status = status
        self.code = code
        self.detail = detail
        self.suggestion = suggestion
        self.document = document
        self.retry_after_s = retry_after_s
        super().__init__(f"{detail} ({code})")


class InsecureAddressError(ValueError):
    """http:// beyond loopback."""


def require_secure(api_url: str) -> None:
    """Raise InsecureAddressError: ``api_url`` is http:// and not on loopback."""
    parts = urlsplit(api_url)
    if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
        message = f"{api_url}: must be https:// beyond loopback, since a key would cross the network in clear"
        raise InsecureAddressError(message)


def problem_of(status: int, document: object, retry_after: str | None) -> Problem:
    """Return the error of an answer. ``document``: its JSON, whatever that is. ``retry_after``: its header."""
    found: dict[str, Any] = document if isinstance(document, dict) else {}
    return Problem(
        status=status,
        code=str(found.get("code", f"http_{status}")),
        detail=str(found.get("detail", f"the server answered {status}")),
        suggestion=str(found.get("suggestion", "")),
        document=found,
        retry_after_s=_retry_after_s(retry_after),
    )


def _retry_after_s(text: str | None) -> float | None:
    """Seconds or a date (RFC 9110); None for what is neither."""
    if text is None:
        return None
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(0.0, (moment.astimezone(UTC) - datetime.now(UTC)).total_seconds())
