"""When a notification that did not arrive is tried again, and when it is given up.

What fails by the receiver as a whole (no connection, 429, 5xx) pauses its route. So a receiver that is away is asked
by one notification at a time, whatever waits behind it, and gets all in order once it is back. What a receiver refuses
has the pauses that Standard Webhooks recommends. Either is given up after 76 h, which is about their sum: a receiver
may be away for three days.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final

PAUSES_S: Final = (5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400)
"""Pauses of one notification after each failed try: 5 s to 24 h (Standard Webhooks, 2024, "Retry schedule")."""
TRIED_FOR: Final = timedelta(hours=76)
ROUTE_PAUSE_BASE_S: Final = 2.0
ROUTE_PAUSE_CAP_S: Final = 300.0
MOST_RETRY_AFTER_S: Final = 3_600.0
JITTER: Final = 0.2
"""A pause is longer by up to this share, so that many do not come back at once."""


class Outcome(StrEnum):
    """How a try ended."""

    DELIVERED = "delivered"
    AWAY = "away"
    """The receiver as a whole does not take anything now."""
    REFUSED = "refused"
    """It does not take this notification."""
    GONE = "gone"
    """It takes no more: HTTP's 410."""
    FORBIDDEN = "forbidden"
    """Its address is none to which this control plane sends."""


@dataclass(frozen=True, slots=True)
class Tried:
    """The result of one try. ``retry_after_s``: what the receiver asked for."""

    outcome: Outcome
    words: str
    status: int | None = None
    took_ms: int = 0
    retry_after_s: float | None = None


def outcome_of(status: int) -> Outcome:
    """Return what an answer's status means. Redirects are refusals: they may lead anywhere."""
    if 200 <= status < 300:
        return Outcome.DELIVERED
    if status == 410:
        return Outcome.GONE
    if status in {408, 425, 429} or status >= 500:
        return Outcome.AWAY
    return Outcome.REFUSED


def pause_of_notification(num_tries: int, jitter: Callable[[], float]) -> timedelta:
    """Return the pause after so many tries of a notification that is refused. ``jitter``: 0 to 1."""
    return timedelta(seconds=PAUSES_S[min(max(num_tries, 1), len(PAUSES_S)) - 1] * (1 + JITTER * jitter()))


def pause_of_route(num_failures: int, retry_after_s: float | None, jitter: Callable[[], float]) -> timedelta:
    """Return for how long the route of a receiver that is away waits: 2 s, doubled each time, 300 s at most."""
    doubled = min(ROUTE_PAUSE_CAP_S, ROUTE_PAUSE_BASE_S * 2.0 ** min(max(num_failures, 1) - 1, 16))
    asked = min(max(retry_after_s or 0.0, 0.0), MOST_RETRY_AFTER_S)
    return timedelta(seconds=max(doubled, asked) * (1 + JITTER * jitter()))
