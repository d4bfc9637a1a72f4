"""A notification by HTTP: one POST to a checked address, without redirects, within a time as a whole.

The address is checked after the name is resolved, and the connection goes to that very address. So a name that changes
what it resolves to (DNS rebinding) reaches nothing that the check would refuse.
"""

import contextlib
import http.client
import socket
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from control.core.cut_calls import cut_after
from muster.domain.notifications.addresses import Network, refusal_of
from muster.domain.notifications.retries import Outcome, Tried, outcome_of
from muster.domain.notifications.routes import parts_of

LIMIT_S: Final = 10.0
MOST_ANSWER_BYTES: Final = 4_096
MOST_WORDS: Final = 300
AGENT: Final = "muster-notifications/1"


class ForbiddenAddressError(Exception):
    """Nothing is sent to that address."""


@dataclass(frozen=True, slots=True)
class Post:
    """One request. ``allowed``: networks that are reached besides public addresses."""

    url: str
    headers: Mapping[str, str]
    body: bytes
    allowed: Sequence[Network] = ()


@dataclass(frozen=True, slots=True)
class HttpSender:
    """``ca_file``: authorities that the system does not know. ``limit_s``: for a try as a whole, after the lookup."""

    ca_file: Path | None = None
    limit_s: float = LIMIT_S
    _trust: list[ssl.SSLContext] = field(default_factory=list)

    def send(self, post: Post) -> Tried:
        """Send and return how it ended. No fault of the receiver is raised."""
        began = time.monotonic()
        try:
            status, words, retry_after_s = self._answer(post)
        except ForbiddenAddressError as refusal:
            return Tried(Outcome.FORBIDDEN, str(refusal), took_ms=_ms_since(began))
        except (OSError, http.client.HTTPException, ValueError) as fault:
            return Tried(Outcome.AWAY, words_of(fault), took_ms=_ms_since(began))
        return Tried(outcome_of(status), words, status, _ms_since(began), retry_after_s)

    def _answer(self, post: Post) -> tuple[int, str, float | None]:
        parts = parts_of(post.url)
        host, is_tls = parts.hostname or "", parts.scheme == "https"
        port = parts.port or (443 if is_tls else 80)
        address = _checked_address(host, port, post.allowed, is_tls=is_tls)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection = self._connection(host, port, address, is_tls=is_tls)
        with cut_after(connection, self.limit_s) as is_cut, _cut_is_late(is_cut, self.limit_s):
            connection.request("POST", path, post.body, {"User-Agent": AGENT, "Connection": "close", **post.headers})
            answer = connection.getresponse()
            content = answer.read(MOST_ANSWER_BYTES)
        if is_cut.is_set():
            raise TimeoutError(f"no whole answer in {self.limit_s:g} s")
        where = answer.getheader("Location")
        words = (
            f"redirects are not followed: {where}" if 300 <= answer.status < 400 else content.decode(errors="replace")
        )
        return answer.status, _printable(f"{answer.status} {words}"), _seconds(answer.getheader("Retry-After"))

    def _connection(self, host: str, port: int, address: str, *, is_tls: bool) -> http.client.HTTPConnection:
        if is_tls:
            if not self._trust:
                self._trust.append(
                    ssl.create_default_context(cafile=None if self.ca_file is None else str(self.ca_file))
                )
            return _TlsConnection(host, port, address, self._trust[0], self.limit_s)
        return _PlainConnection(host, port, address, self.limit_s)


class _PlainConnection(http.client.HTTPConnection):
    """Connects to ``address``, and names ``host`` in the request."""

    def __init__(self, host: str, port: int, address: str, limit_s: float) -> None:
        super().__init__(host, port, timeout=limit_s)
        self._address = address

    def connect(self) -> None:
        self.sock = socket.create_connection((self._address, self.port), self.timeout)


class _TlsConnection(http.client.HTTPSConnection):
    """Connects to ``address``; the certificate must be of ``host``."""

    def __init__(self, host: str, port: int, address: str, trust: ssl.SSLContext, limit_s: float) -> None:
        super().__init__(host, port, timeout=limit_s, context=trust)
        self._address, self._trust = address, trust

    def connect(self) -> None:
        self.sock = socket.create_connection((self._address, self.port), self.timeout)
        self.sock = self._trust.wrap_socket(self.sock, server_hostname=self.host)


def _checked_address(host: str, port: int, allowed: Sequence[Network], *, is_tls: bool) -> str:
    """Return an address of the host to which a notification may go. Raises ``ForbiddenAddressError``, ``OSError``."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
    refusals = {address: refusal_of(address, allowed) for address in addresses}
    fit = [address for address, refusal in refusals.items() if refusal is None]
    if not fit:
        raise ForbiddenAddressError(next(filter(None, refusals.values()), "the name has no address"))
    if is_tls:
        return fit[0]
    inside = [address for address in fit if _is_in(address, allowed)]
    if not inside:
        raise ForbiddenAddressError(
            "http:// is only sent into networks that the policy allows (`notifications`): use https://"
        )
    return inside[0]


def _is_in(address: str, allowed: Sequence[Network]) -> bool:
    found = ip_address(address.partition("%")[0])
    return any(found.version == network.version and found in network for network in allowed)


@contextlib.contextmanager
def _cut_is_late(is_cut: object, limit_s: float) -> Iterator[None]:
    try:
        yield
    except (OSError, http.client.HTTPException) as fault:
        if isinstance(fault, TimeoutError) or getattr(is_cut, "is_set", bool)():
            raise TimeoutError(f"no whole answer in {limit_s:g} s") from fault
        raise


def words_of(fault: Exception) -> str:
    """Return what is wrong with a connection, in few words."""
    if isinstance(fault, TimeoutError):
        return str(fault) or "no answer in time"
    if isinstance(fault, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({fault.verify_message})"
    if isinstance(fault, ssl.SSLError):
        return "it supports no TLS that is accepted here"
    if isinstance(fault, socket.gaierror):
        return "its name is not known"
    if isinstance(fault, OSError):
        return _printable(fault.strerror or str(fault) or type(fault).__name__)
    return f"this is no answer of HTTP ({type(fault).__name__})"


def _printable(text: str) -> str:
    whole = " ".join(text.split())
    return "".join(letter for letter in whole if letter.isprintable())[:MOST_WORDS]


def _seconds(text: str | None) -> float | None:
    return float(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 10 else None


def _ms_since(began_s: float) -> int:
    return round((time.monotonic() - began_s) * 1000)
