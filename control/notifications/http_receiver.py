"""A notification by HTTP: one POST to checked addresses, without redirects, within a time as a whole.

Addresses are checked after the name is resolved, and the connection goes to one of the checked addresses. So a name
that changes what it resolves to (DNS rebinding) reaches nothing that the check would refuse.
"""

import http.client
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult

from control.core.cut_calls import CutConnection, cut_after, words_of
from muster.domain.notifications.addresses import Network, is_allowed
from muster.domain.notifications.messages import printable, without
from muster.domain.notifications.retries import Outcome, Tried, outcome_of
from muster.domain.notifications.routes import parts_of

LIMIT_S: Final = 10.0
MOST_ANSWER_BYTES: Final = 4_096
AGENT: Final = "muster-notifications/1"
_NOT_PUBLIC: Final = "its address is not public, and in no network that the policy allows (`notifications`)"
_IN_CLEAR: Final = "http:// is only sent into networks that the policy allows (`notifications`): use https://"


class ForbiddenAddressError(Exception):
    """Nothing is sent to that address."""


@dataclass(frozen=True, slots=True)
class Post:
    """One request. ``allowed``: networks that are reached besides public addresses. ``secret``: in its body."""

    url: str
    headers: Mapping[str, str]
    body: bytes
    allowed: Sequence[Network] = ()
    secret: str = ""


@dataclass(frozen=True, slots=True)
class HttpSender:
    """``ca_file``: authorities that the system does not know. ``limit_s``: for a try as a whole, after the lookup."""

    ca_file: Path | None = None
    limit_s: float = LIMIT_S
    _trust: list[ssl.SSLContext] = field(default_factory=list)

    def send(self, post: Post) -> Tried:
        """Send and return how it ended. No fault of the receiver is raised."""
        began_s = time.monotonic()
        try:
            status, message, retry_after_s = self._answer(post)
        except ForbiddenAddressError as refusal:
            return Tried(Outcome.FORBIDDEN, str(refusal), took_ms=ms_since(began_s))
        except (OSError, http.client.HTTPException, ValueError) as fault:
            return Tried(Outcome.AWAY, printable(words_of(fault)), took_ms=ms_since(began_s))
        return Tried(outcome_of(status), message, status, ms_since(began_s), retry_after_s)

    def _answer(self, post: Post) -> tuple[int, str, float | None]:
        parts = parts_of(post.url)
        host, is_tls = parts.hostname or "", parts.scheme == "https"
        trust = self._trusted() if is_tls else None
        addresses = _checked_addresses(host, parts.port or (443 if is_tls else 80), post.allowed, is_tls=is_tls)
        connection = CutConnection(host, parts.port, self.limit_s, trust, addresses)
        headers = {"User-Agent": AGENT, "Connection": "close", **post.headers}
        with cut_after(connection, self.limit_s):
            try:
                connection.request("POST", _path_of(parts), post.body, headers)
                answer = connection.getresponse()
                content = answer.read(MOST_ANSWER_BYTES)
            except (OSError, http.client.HTTPException) as fault:
                if connection.is_cut or isinstance(fault, TimeoutError):
                    raise self._late() from fault
                raise
        if connection.is_cut:
            raise self._late()
        text = content.decode(errors="replace")
        if 300 <= answer.status < 400:
            text = f"redirects are not followed, as to {_origin_of(answer.getheader('Location') or '')}"
        message = without(f"{answer.status} {text}", _path_of(parts), post.secret)
        return answer.status, printable(message), _seconds(answer.getheader("Retry-After"))

    def _late(self) -> TimeoutError:
        return TimeoutError(f"no whole answer in {self.limit_s:g} s")

    def _trusted(self) -> ssl.SSLContext:
        if not self._trust:
            ca_file = None if self.ca_file is None else str(self.ca_file)
            self._trust.append(ssl.create_default_context(cafile=ca_file))
        return self._trust[0]


def _path_of(parts: SplitResult) -> str:
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def _origin_of(url: str) -> str:
    """Return scheme and host: the rest of an address may be a secret."""
    try:
        parts = parts_of(url)
    except ValueError:
        return "an address that is none"
    return f"{parts.scheme}://{parts.hostname}" if parts.hostname else "another path"


def _checked_addresses(host: str, port: int, allowed: Sequence[Network], *, is_tls: bool) -> list[str]:
    """Return the host's addresses to which a notification may go. Raises ``ForbiddenAddressError``, ``OSError``."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
    fit = [address for address in addresses if is_allowed(address, allowed)]
    if not fit:
        raise ForbiddenAddressError(_NOT_PUBLIC)
    inside = fit if is_tls else [address for address in fit if _is_in(address, allowed)]
    if not inside:
        raise ForbiddenAddressError(_IN_CLEAR)
    return inside


def _is_in(address: str, allowed: Sequence[Network]) -> bool:
    found = ip_address(address.partition("%")[0])
    return any(found.version == network.version and found in network for network in allowed)


def _seconds(text: str | None) -> float | None:
    return float(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 10 else None


def ms_since(began_s: float) -> int:
    """Return the milliseconds since a reading of ``time.monotonic``."""
    return round((time.monotonic() - began_s) * 1000)
