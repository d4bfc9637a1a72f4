"""One HTTP connection to the control plane: refuses clear text beyond loopback, names faults in one sentence."""

import ssl
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from muster import __version__, progress
from muster.client.key_file import KeyFile
from muster.domain import versions
from muster.domain.loopback import is_loopback

CONNECT_TIMEOUT_S: Final = 2.0
REQUEST_TIMEOUT_S: Final = 10.0
KEEP_ALIVE_S: Final = 5.0


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


def open_http(
    api_url: str,
    key: str | KeyFile,
    *,
    ca_file: Path | None = None,
    keep_alive_s: float = KEEP_ALIVE_S,
    has_version: bool = False,
) -> httpx.Client:
    """Open a client that never follows redirects, so that a key never goes to another host.

    An empty key is not sent.

    ``keep_alive_s``: how long an idle connection is kept; below the server's own 60 s. ``has_version``: each request
    names the client's version, and an answer of a server that does not fit is refused.

    Raises:
        InsecureAddressError: ``api_url`` is http:// and not on loopback.
    """
    client = httpx.Client(**_settings(api_url, key, ca_file, keep_alive_s))
    if has_version:
        client.headers[versions.CLIENT_HEADER] = __version__
    return client


def open_async_http(api_url: str, key: str | KeyFile, *, ca_file: Path | None = None) -> httpx.AsyncClient:
    """Open a client as ``open_http`` does with ``has_version``, for an event loop."""
    client = httpx.AsyncClient(**_settings(api_url, key, ca_file, KEEP_ALIVE_S))
    client.headers[versions.CLIENT_HEADER] = __version__
    return client


def _settings(api_url: str, key: str | KeyFile, ca_file: Path | None, keep_alive_s: float) -> dict[str, Any]:
    parts = urlsplit(api_url)
    if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
        message = f"{api_url}: must be https:// beyond loopback, since a key would cross the network in clear"
        raise InsecureAddressError(message)
    headers = {"User-Agent": f"muster/{__version__}"}
    if isinstance(key, str) and key:
        headers["Authorization"] = f"Bearer {key}"
    return {
        "base_url": api_url,
        "headers": headers,
        "auth": None if isinstance(key, str) else key,
        "timeout": httpx.Timeout(REQUEST_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
        "limits": httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=keep_alive_s),
        "verify": trusted(api_url, ca_file),
        "follow_redirects": False,
        "trust_env": False,
    }


def trusted(api_url: str, ca_file: Path | None) -> ssl.SSLContext | bool:
    """Return the certificates to trust: in ``ca_file``, else the system's, as httpx takes them for ``verify``.

    An http:// address has none, so that nothing is read: the system's take 25 ms of CPU, a tenth of a command.
    """
    if urlsplit(api_url).scheme != "https":
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return True if ca_file is None else ssl.create_default_context(cafile=str(ca_file))


def send(
    http: httpx.Client, method: str, path: str, *, answer_s: float | None = None, **request: Any
) -> httpx.Response:
    """One request. ``answer_s``: how long the server may work on it, if longer than on others.

    Raises:
        UnreachableError: no answer came.
        Problem: the answer's status is 400 or more, or a redirect.
    """
    try:
        answer = http.request(method, path, timeout=_timeout(answer_s), **request)
    except httpx.HTTPError as error:
        raise unreachable(http.base_url, error) from error
    finally:
        progress.advance()
    raise_for_problem(answer)
    return answer


async def send_async(
    http: httpx.AsyncClient, method: str, path: str, *, answer_s: float | None = None, **request: Any
) -> httpx.Response:
    """Send a request as ``send`` does, in an event loop."""
    try:
        answer = await http.request(method, path, timeout=_timeout(answer_s), **request)
    except httpx.HTTPError as error:
        raise unreachable(http.base_url, error) from error
    raise_for_problem(answer)
    return answer


def _timeout(answer_s: float | None) -> Any:
    if answer_s is None:
        return httpx.USE_CLIENT_DEFAULT
    return httpx.Timeout(answer_s, connect=CONNECT_TIMEOUT_S)


def unreachable(base_url: httpx.URL, error: httpx.HTTPError) -> UnreachableError:
    return UnreachableError(f"{base_url} does not answer: {str(error) or type(error).__name__}")


def raise_for_problem(answer: httpx.Response) -> None:
    """Raise ``Problem`` unless the status is 2xx or 304, and if the server's version does not fit the client's."""
    _require_fitting(answer)
    if answer.status_code < 300 or answer.status_code == httpx.codes.NOT_MODIFIED:
        return
    try:
        document = answer.json()
    except ValueError:
        document = None
    if not isinstance(document, dict):
        document = {}
    raise Problem(
        status=answer.status_code,
        code=str(document.get("code", f"http_{answer.status_code}")),
        detail=str(document.get("detail", f"the server answered {answer.status_code}")),
        suggestion=str(document.get("suggestion", "")),
        document=document,
        retry_after_s=_retry_after_s(answer.headers.get("Retry-After")),
    )


def _require_fitting(answer: httpx.Response) -> None:
    """Refuse here too: a server of an earlier release does not know which later clients fit it."""
    client, server = answer.request.headers.get(versions.CLIENT_HEADER), answer.headers.get(versions.SERVER_HEADER)
    if client is None or server is None or versions.fits(client, server):
        return
    address = str(answer.request.url.copy_with(path="/", query=None, fragment=None)).rstrip("/")
    raise Problem(
        httpx.codes.UPGRADE_REQUIRED,
        "client_version",
        versions.misfit_words(client, server),
        versions.misfit_advice(address),
    )


def read_answer(answer: httpx.Response, kind: type[Any]) -> Any:
    """Return the JSON of ``answer``, or its text where ``kind`` is ``str``.

    Raises:
        UnreachableError: it is no JSON, so the control plane did not answer.
    """
    if kind is str:
        return answer.text
    try:
        return answer.json()
    except ValueError as error:
        message = f"{answer.request.url} answers without JSON: is it the control plane's address?"
        raise UnreachableError(message) from error


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
