"""Places of requests and streams: no caller takes all threads of a process, or all that it holds open."""

from collections import Counter
from collections.abc import Callable

from muster.domain.errors import RateLimitedError
from muster.domain.policy.document import LimitPolicy
from muster.domain.principals import Principal


class RequestPlaces:
    """Requests that are answered at present, by the credential that they carry, valid or not. For the loop's thread.

    They are counted before any thread works for them, so that a caller's own requests wait for one another alone.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken: Counter[bytes] = Counter()

    def take(self, credential: bytes) -> None:
        """Take a place. Raises RateLimitedError if the credential has none left."""
        if self._taken[credential] >= self._most:
            message = f"{self._most} requests of this credential are being answered"
            raise RateLimitedError(message, retry_after_s=1)
        self._taken[credential] += 1

    def leave(self, credential: bytes) -> None:
        self._taken[credential] -= 1
        if not self._taken[credential]:
            del self._taken[credential]


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
