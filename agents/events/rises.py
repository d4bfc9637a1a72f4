"""By how much counters rose, and within what time. One that fell was reset: no rise, and its time begins anew."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

WINDOWS: Final = 30
"""How many windows ``bad_windows`` looks back on."""


@dataclass(frozen=True, slots=True)
class Rise:
    """``window_s``: since the counts before, the oldest of them where one could not be read in between."""

    by: Mapping[str, float]
    window_s: float


@dataclass(slots=True)
class RiseTeller:
    """Of one subject: its counts as last read, each with its time. ``beside``: those that make no window a bad one."""

    beside: frozenset[str] = frozenset()
    _last: dict[str, tuple[float, float]] = field(default_factory=dict)
    fell: frozenset[str] = frozenset()
    """Those that were lower at the newest look than at the one before it: reset, and no rise."""
    _windows: deque[bool] = field(default_factory=lambda: deque(maxlen=WINDOWS))

    @property
    def num_bad_windows(self) -> int:
        """Of the last windows those in which something rose."""
        return sum(self._windows)

    def rise(self, counts: Mapping[str, float], now_s: float) -> Rise | None:
        """None where nothing rose. What is counted for the first time is where the next rise begins."""
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
            self._windows.append(bool(by.keys() - self.beside))
        return Rise(by, round(window_s, 3)) if by else None
