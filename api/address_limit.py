"""A token bucket for each address, before routes that need no key: it makes guessing there slow."""

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from fastapi import Depends, Request

from api.refusals import refusing
from muster.domain.errors import RateLimitedError
from muster.domain.networks import network_of

MAX_ADDRESSES: Final = 10_000


class AddressLimit:
    """Limit of ``burst`` requests at once from one address, then ``per_s``.

    If there are too many addresses, the one without requests for longest is dropped.
    """

    def __init__(
        self,
        burst: int,
        per_s: float,
        *,
        clock_s: Callable[[], float] = time.monotonic,
        max_addresses: int = MAX_ADDRESSES,
    ) -> None:
        self._burst = burst
        self._per_s = per_s
        self._clock_s = clock_s
        self._max_addresses = max_addresses
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, address: str | None) -> None:
        """Take one request. Raises ``RateLimitedError``, which states when to come again."""
        name = network_of(address)
        now_s = self._clock_s()
        with self._lock:
            left, seen_s = self._buckets.pop(name, (float(self._burst), now_s))
            left = min(self._burst, left + (now_s - seen_s) * self._per_s)
            is_taken = left >= 1
            self._buckets[name] = (left - 1 if is_taken else left, now_s)
            if len(self._buckets) > self._max_addresses:
                self._buckets.popitem(last=False)
        if not is_taken:
            wait_s = math.ceil((1 - left) / self._per_s)
            raise RateLimitedError("too many requests from this address", retry_after_s=max(1, wait_s))


def limited_by(name: str) -> Any:
    """Return a route's dependency that takes from the limit ``app.state.<name>`` of the application."""

    async def take(request: Request) -> None:
        limit: AddressLimit = getattr(request.app.state, name)
        limit.take(address_of(request))

    return Depends(refusing(take, RateLimitedError))


def address_of(request: Request) -> str | None:
    """Return the address that a request came from, if its connection has one."""
    return request.client.host if request.client else None
