"""Times at which a state is reported: at the start, after a change, and hourly, so that a server can recover it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from muster.domain.policy.quantities import STATES_TOLD_S

TELL_AGAIN_S: Final = STATES_TOLD_S


@dataclass(frozen=True, slots=True)
class Coarseness:
    """The difference from the reported value that counts as a change: ``share`` of it, or of ``floor`` if it is less.

    The default: any difference counts.
    """

    share: float = 0.0
    floor: float = 0.0

    def is_news(self, told: float, now: float) -> bool:
        return abs(now - told) > self.share * max(abs(told), self.floor)


EXACT: Final = Coarseness()
_NO_WORDS: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(slots=True)
class StateTeller:
    """State of one subject. ``coarseness``: name → the least difference that counts; others are exact."""

    coarseness: Mapping[str, Coarseness] = field(default_factory=dict)
    _told: dict[str, float] = field(default_factory=dict)
    _told_words: dict[str, str] = field(default_factory=dict)
    _told_s: float | None = None

    def is_due(self, state: Mapping[str, float], now_s: float, words: Mapping[str, str] = _NO_WORDS) -> bool:
        """Return whether to report the state now, with its texts; then it counts as reported. ``now_s`` only grows.

        A value that is missing this time is no change: it could not be read.
        """
        if not state:
            return False
        is_news = self._has_news(state) or any(self._told_words.get(name) != word for name, word in words.items())
        if self._told_s is not None and now_s - self._told_s < TELL_AGAIN_S and not is_news:
            return False
        self._told |= state
        self._told_words |= words
        self._told_s = now_s
        return True

    def _has_news(self, state: Mapping[str, float]) -> bool:
        return any(
            name not in self._told or self.coarseness.get(name, EXACT).is_news(self._told[name], value)
            for name, value in state.items()
        )
