"""Times at which a state is reported: at the start, after a change, and hourly, so that a server can recover it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from muster.domain.policy.quantities import STATE_REPORT_S

REPORT_AGAIN_S: Final = STATE_REPORT_S


@dataclass(frozen=True, slots=True)
class Coarseness:
    """The difference from the reported value that counts as a change: ``share`` of it, or of ``floor`` if it is less.

    The default: any difference counts.
    """

    share: float = 0.0
    floor: float = 0.0

    def is_news(self, reported: float, now: float) -> bool:
        return abs(now - reported) > self.share * max(abs(reported), self.floor)


EXACT: Final = Coarseness()
_NO_WORDS: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(slots=True)
class StateTeller:
    """State of one subject. ``coarseness``: name → the least difference that counts; others are exact."""

    coarseness: Mapping[str, Coarseness] = field(default_factory=dict)
    _reported: dict[str, float] = field(default_factory=dict)
    _reported_texts: dict[str, str] = field(default_factory=dict)
    _reported_s: float | None = None

    def is_due(self, state: Mapping[str, float], now_s: float, words: Mapping[str, str] = _NO_WORDS) -> bool:
        """Return whether to report the state now, with its texts; then it counts as reported. ``now_s`` only grows.

        A value that is missing this time is no change: it could not be read.
        """
        if not state:
            return False
        is_news = self._has_news(state) or any(self._reported_texts.get(name) != word for name, word in words.items())
        if self._reported_s is not None and now_s - self._reported_s < REPORT_AGAIN_S and not is_news:
            return False
        self._reported |= state
        self._reported_texts |= words
        self._reported_s = now_s
        return True

    def _has_news(self, state: Mapping[str, float]) -> bool:
        return any(
            name not in self._reported or self.coarseness.get(name, EXACT).is_news(self._reported[name], value)
            for name, value in state.items()
        )
