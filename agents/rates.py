"""Rates of counters of bytes, each from two readings by a clock that only grows."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

MIN_WINDOW_S: Final = 0.9
"""A shorter window gives no rate: cards and drivers count in steps."""
MAX_WINDOW_S: Final = 330.0
"""The longest interval of samples, with its jitter. A mean over more is no rate of one sample."""
LEEWAY: Final = 1.25
"""A rate above so many times the link's speed is no rate: the counter was set, or is of another card."""

Key = TypeVar("Key", bound=Hashable)


@dataclass(slots=True)
class _ByteRate:
    """One counter as last read, and its newest rate."""

    count: int | None = None
    at_s: float = 0.0
    rate: float | None = None

    def read(self, count: int, now_s: float, link_bytes_per_s: float | None) -> float | None:
        window_s = now_s - self.at_s
        grew = None if self.count is None or count < self.count else count - self.count
        if grew is not None and window_s < MIN_WINDOW_S:
            return self.rate
        self.rate = None if grew is None or window_s > MAX_WINDOW_S else grew / window_s
        if self.rate is not None and link_bytes_per_s is not None and self.rate > LEEWAY * link_bytes_per_s:
            self.rate = None
        self.count, self.at_s = count, now_s
        return self.rate


@dataclass(slots=True)
class ByteRates(Generic[Key]):
    """Counters of one link, by key, as last read."""

    _counters: dict[Key, _ByteRate] = field(default_factory=dict)

    def read(self, counts: Mapping[Key, int], now_s: float, link_bytes_per_s: float | None) -> dict[Key, float | None]:
        """Return bytes per second since the reading before; None where that is unknown.

        It is unknown after the first reading, after a counter that fell (it was reset, or wrapped around), after a
        counter that was not read for long, and where the link could not carry it. ``link_bytes_per_s``: None where the
        link's speed is unknown. Right after a reading its rate is returned again. A counter that ``counts`` lacks
        begins again.
        """
        self._counters = {key: self._counters.get(key, _ByteRate()) for key in counts}
        return {key: self._counters[key].read(count, now_s, link_bytes_per_s) for key, count in counts.items()}
