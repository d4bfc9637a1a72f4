"""The only clock and the only order of events: a heap of (time, number, action, arguments)."""

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, Final

Action = Callable[..., None]
Entry = tuple[int, int, Action, tuple[Any, ...]]
TRAIL_EVENTS: Final = 50
INSPECTION_EVENTS: Final = 1_000
"""The whole world is inspected after each so many events."""


class Kernel:
    """True time in whole milliseconds. One event is one pop of the heap."""

    __slots__ = ("_heap", "_number", "inspector", "listener", "now_ms", "num_events", "trail")

    def __init__(self) -> None:
        self.now_ms = 0
        self.num_events = 0
        self.inspector: Callable[[], object] | None = None
        self.listener: Callable[[Entry], object] | None = None
        self.trail: deque[Entry] = deque(maxlen=TRAIL_EVENTS)
        self._heap: list[Entry] = []
        self._number = 0

    def after(self, delay_ms: int, action: Action, *args: Any) -> None:
        self._number = number = self._number + 1
        heappush(self._heap, (self.now_ms + delay_ms, number, action, args))

    def run(self, until_ms: int) -> None:
        """Run until ``until_ms``, or until no event is left."""
        heap, note = self._heap, self.trail.append
        listener, inspect = self.listener, self.inspector
        while heap and heap[0][0] <= until_ms:
            entry = heappop(heap)
            self.now_ms = entry[0]
            self.num_events = num_events = self.num_events + 1
            note(entry)
            if listener is not None:
                listener(entry)
            entry[2](*entry[3])
            if not num_events % INSPECTION_EVENTS and inspect is not None:
                inspect()

    def stop(self) -> None:
        self._heap.clear()


def text_of(entry: Entry) -> str:
    """Return one event as one line."""
    time_ms, _, action, args = entry
    whom = getattr(getattr(action, "__self__", None), "name", "world")
    said = ", ".join(getattr(arg, "__name__", None) or str(arg) for arg in args)
    return f"{time_ms:>9} ms  {whom}.{action.__name__}({said})"
