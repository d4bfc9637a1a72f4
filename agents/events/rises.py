"""Rises of counters, each with its time. A counter that fell was reset: no rise, and its time restarts."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

WINDOWS: Final = 30
"""Number of windows that ``bad_windows`` covers."""


@dataclass(frozen=True, slots=True)
class Rise:
    """A rise. ``window_s``: since the counts before, the oldest of them where one could not be read in between."""

    by: Mapping[str, float]
    window_s: float


@dataclass(slots=True)
class RiseTeller:
    """Counts of one subject as last read, each with its time.

    ``alongside``: counters whose rise makes no window a bad one.
    """

    alongside: frozenset[str] = frozenset()
    _last: dict[str, tuple[float, float]] = field(default_factory=dict)
    fell: frozenset[str] = frozenset()
    """Counters that were lower at the newest reading than at the one before: reset, and no rise."""
    _windows: deque[bool] = field(default_factory=lambda: deque(maxlen=WINDOWS))

    @property
    def num_bad_windows(self) -> int:
        """Number of the last windows with a rise."""
        return sum(self._windows)

    def rise(self, counts: Mapping[str, float], now_s: float) -> Rise | None:
        """Return the rise, None where nothing rose. The first count of a counter is where its next rise begins."""
        by: dict[str, float] = {}
        fell = set[str]()
        window_s = 0.0
        for name, count in counts.items():
            before, at_s = self._last.get(name, (count, now_s))
            if count < before:
                fell.add(name)
            if count > before:
                by[name] = count - before
                window_s = max(window_s, now_s - at_s)
        self.fell = frozenset(fell)
        has_begun = bool(self._last)
        self._last |= {name: (count, now_s) for name, count in counts.items()}
        if has_begun:
            self._windows.append(bool(by.keys() - self.alongside))
        return Rise(by, round(window_s, 3)) if by else None
