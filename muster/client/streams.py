"""Server-sent events, line by line, and where to continue when a stream breaks: no I/O."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from muster.client.calls import Call
from muster.client.retries import RetryFault, RetryPolicy
from muster.client.transport import Problem, UnreachableError

BREAKS_MAX: Final = 8
STEADY_S: Final = 10.0
"""A connection that held so long was none of a row of failures, however little came by it."""
_RESUMED_STATUSES: Final = frozenset({408, 425, 429, 502, 503, 504})


@dataclass(slots=True)
class Frame:
    name: str = "message"
    event_id: str | None = None
    lines: list[str] = field(default_factory=list)


class Following:
    """One stream over as many connections as it takes. ``is_over``: the event that ends it has come."""

    def __init__(self, call: Call[Any], policy: RetryPolicy) -> None:
        self.is_over = False
        self._call = call
        self._retry_policy = policy
        self._last_id: str | None = None
        self._num_breaks = 0
        self._connected_at = policy.clock()
        self._frame = Frame()

    def request(self) -> dict[str, Any]:
        """Return the next connection's request, for events after the last one that was received."""
        self._frame = Frame()
        self._connected_at = self._retry_policy.clock()
        request = self._call.request()
        if self._last_id is not None:
            request["headers"]["Last-Event-ID"] = self._last_id
        return request

    def take(self, line: str) -> Iterator[Any]:
        """Yield the item that ``line`` completes, if it does."""
        if line:
            self._take_field(*line.partition(":")[::2])
            return
        frame, self._frame = self._frame, Frame()
        self._last_id = frame.event_id or self._last_id
        if not frame.lines:
            return
        self._num_breaks = 0
        if frame.name == self._call.ends_with:
            self.is_over = True
            return
        yield json.loads("\n".join(frame.lines))

    def pause_after(self, fault: RetryFault) -> float:
        """Seconds until the next connection. Raises ``fault`` when a new one would not cure it."""
        if self._retry_policy.clock() - self._connected_at >= STEADY_S:
            self._num_breaks = 0
        self._num_breaks += 1
        if isinstance(fault, Problem) and fault.status not in _RESUMED_STATUSES:
            raise fault
        if self._num_breaks > BREAKS_MAX:
            raise fault
        pause_s = self._retry_policy.pause_s(self._num_breaks)
        if isinstance(fault, Problem) and fault.retry_after_s is not None:
            return fault.retry_after_s + pause_s
        return pause_s

    def broke(self, why: object = "it ended before its time") -> UnreachableError:
        return UnreachableError(f"the stream {self._call.url} broke: {why}")

    def _take_field(self, name: str, value: str) -> None:
        value = value.removeprefix(" ")
        if name == "event":
            self._frame.name = value
        elif name == "id":
            self._frame.event_id = value
        elif name == "data":
            self._frame.lines.append(value)
