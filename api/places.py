"""Places of requests and streams: no caller takes all threads of a process, or all that it holds open."""

import hashlib
import re
from collections import Counter
from collections.abc import Callable
from typing import Final

from muster.domain.errors import RateLimitedError
from muster.domain.policy.limits import LimitPolicy
from muster.domain.principals import Principal

SESSION_COOKIE: Final = "__Host-muster"
"""Cookie of a person's session in the console."""
_SESSION: Final = re.compile(rb"(?:^|; ?)" + re.escape(SESSION_COOKIE.encode()) + rb"=([^;]*)")
_CONSOLE: Final = "/console"


def credential_in(path: str, name: bytes, value: bytes) -> bytes | None:
    """Return a digest of the credential that the header has for this path, as it will be checked; None: it has none.

    Nothing else of a request counts, or a caller would have as many places as it sends headers.
    """
    if path.startswith(_CONSOLE):
        found = _SESSION.findall(value) if name == b"cookie" else []
        token = found[-1] if found else None  # of several the last is checked
    else:
        token = value.rpartition(b" ")[2] if name == b"authorization" else None
    return None if token is None else hashlib.blake2b(token, digest_size=16).digest()


class RequestPlaces:
    """Requests that are answered at present, by the credential that they carry, valid or not. For the loop's thread.

    They are counted before any thread works for them, so that a caller's own requests wait for one another alone.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken: dict[bytes, int] = {}

    def take(self, credential: bytes) -> None:
        """Take a place. Raises RateLimitedError if the credential has none left."""
        num_taken = self._taken.get(credential, 0)
        if num_taken >= self._most:
            message = f"{self._most} requests of this credential are being answered"
            raise RateLimitedError(message, retry_after_s=1)
        self._taken[credential] = num_taken + 1

    def leave(self, credential: bytes) -> None:
        num_left = self._taken.pop(credential) - 1
        if num_left:
            self._taken[credential] = num_left


class StreamPlaces:
    """Open streams, by key or person and by tenant. For the loop's thread."""

    def __init__(self, limits: LimitPolicy) -> None:
        self._limits = limits
        self._taken: Counter[str] = Counter()

    def take(self, principal: Principal) -> Callable[[], None]:
        """Take a place, and return what leaves it. Raises RateLimitedError: the caller or its tenant has none left."""
        names: list[tuple[str, int, str]] = [
            (principal.key_id or principal.name, self._limits.streams_per_key, "caller")
        ]
        if principal.tenant_id is not None:
            names.append((str(principal.tenant_id), self._limits.streams_per_tenant, "tenant"))
        for name, most, kind in names:
            if self._taken[name] >= most:
                message = f"{most} streams of this {kind} are open"
                raise RateLimitedError(message, retry_after_s=5)
        for name, _, _ in names:
            self._taken[name] += 1

        def leave() -> None:
            for name, _, _ in names:
                self._taken[name] -= 1
                if not self._taken[name]:
                    del self._taken[name]

        return leave
