"""What the watch over a part has learnt of its phases, and when it is worth a report: it outlives the attempt."""

from dataclasses import dataclass, field
from typing import Final

from muster.domain.policy.watch import WatchPolicy
from watch.phases import Phase
from watch.progress.durations import Durations

CHANGED_BY: Final = 0.1
"""A limit that changed by this share is worth a report."""


@dataclass(slots=True)
class Learnt:
    """Durations of one part, with the limits by them that were reported last, and the phases that were known then."""

    durations: Durations
    policy: WatchPolicy
    _reported: dict[Phase, float] = field(init=False)
    _known: frozenset[Phase] = field(init=False)

    def __post_init__(self) -> None:
        self._reported, self._known = self._limits(), self._known_now()

    def news(self, *, is_due: bool) -> dict[str, tuple[float, ...]] | None:
        """Return all durations if they are worth a report: at once for a phase that has become known.

        ``is_due``: a limit that changed, or the first duration of a phase, is worth one as well.
        """
        limits, known = self._limits(), self._known_now()
        has_changed = any(self._is_new(phase, limit_s) for phase, limit_s in limits.items())
        if known == self._known and not (is_due and has_changed):
            return None
        self._reported, self._known = limits, known
        return self.durations.carried()

    def _is_new(self, phase: Phase, limit_s: float) -> bool:
        before_s = self._reported.get(phase)
        return before_s is None or abs(limit_s - before_s) > CHANGED_BY * before_s

    def _known_now(self) -> frozenset[Phase]:
        return frozenset(phase for phase in Phase if len(self.durations.known(phase)) >= self.policy.num_known)

    def _limits(self) -> dict[Phase, float]:
        factor, margin = self.policy.factor, self.policy.margin
        limits = {phase: self.durations.longest_s(phase, factor=factor, margin=margin) for phase in Phase}
        return {phase: limit_s for phase, limit_s in limits.items() if self.durations.known(phase)}
