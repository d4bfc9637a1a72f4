"""How long the phases of a job have taken so far: the job's own past, from which limits follow."""

import math
import statistics
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from watch.phases import Phase
from watch.reports import RankReport

NUM_KEPT = 50
"""Durations of each phase that count: a program may change its pace."""
NUM_CARRIED = 9
"""Durations of each phase that stand for all of them in a later attempt: few, so that its own soon outweigh them."""
_PARTS_OF_A_STEP = frozenset({Phase.FIRST_STEP, Phase.STEP, Phase.DATA})
_BEFORE_STEPS = frozenset({Phase.START, Phase.IMPORT, Phase.RESTORE})


@dataclass(slots=True)
class Durations:
    """Past durations by phase. It may outlive an attempt: the next attempt of the job then knows them."""

    _seconds: dict[Phase, deque[float]] = field(default_factory=dict)

    def add(self, phase: Phase, seconds: float) -> None:
        self._seconds.setdefault(phase, deque(maxlen=NUM_KEPT)).append(seconds)

    @classmethod
    def of_document(cls, document: Mapping[str, object]) -> "Durations":
        """Read what ``document`` returned; what is none of it is left out."""
        found = cls()
        for phase in Phase:
            seconds = document.get(str(phase))
            for each in seconds if isinstance(seconds, list) else ():
                if isinstance(each, int | float) and math.isfinite(each) and each >= 0:
                    found.add(phase, float(each))
        return found

    def document(self) -> dict[str, list[float]]:
        """Return it as JSON, by phase."""
        return {str(phase): list(seconds) for phase, seconds in self._seconds.items()}

    def carried(self) -> dict[str, tuple[float, ...]]:
        """Return what a later attempt starts from: of each phase a few durations with the same median and longest."""
        return {str(phase): _spread(sorted(seconds)) for phase, seconds in self._seconds.items() if seconds}

    def known(self, phase: Phase) -> Sequence[float]:
        return tuple(self._seconds.get(phase, ()))

    def longest_s(self, phase: Phase, *, factor: float, margin: float) -> float:
        """Return the limit by the past: ``factor`` times the median, or ``margin`` times the longest; 0 without one."""
        seconds = self._seconds.get(phase)
        return max(factor * statistics.median(seconds), margin * max(seconds)) if seconds else 0.0


def _spread(seconds: Sequence[float]) -> tuple[float, ...]:
    if len(seconds) <= NUM_CARRIED:
        return tuple(seconds)
    last, middle = len(seconds) - 1, NUM_CARRIED // 2
    chosen = [seconds[round(number * last / (NUM_CARRIED - 1))] for number in range(NUM_CARRIED)]
    chosen[middle] = statistics.median(seconds)
    return tuple(chosen)


def joined(found: Iterable[Durations]) -> dict[str, tuple[float, ...]]:
    """Return of each phase the longest durations that any of them has: a host may do work that others do not."""
    longest: dict[str, tuple[float, ...]] = {}
    for each in found:
        for phase, seconds in each.carried().items():
            if (statistics.median(seconds), max(seconds)) > _reach(longest.get(phase, ())):
                longest[phase] = seconds
    return longest


def _reach(seconds: Sequence[float]) -> tuple[float, float]:
    return (statistics.median(seconds), max(seconds)) if seconds else (-1.0, -1.0)


@dataclass(slots=True)
class RankTimes:
    """Times of one rank from report to report: since when it is in its phase and in its step."""

    phase: Phase
    step: int
    phase_since_s: float
    step_since_s: float | None = None
    has_stepped: bool = False
    _is_plain_step: bool = True

    @classmethod
    def of(cls, report: RankReport, at_s: float) -> "RankTimes":
        return cls(report.phase, report.step, at_s, has_stepped=report.phase is Phase.STEP)

    def take(self, report: RankReport, at_s: float, durations: Durations) -> None:
        """Take a later report of the rank, and add what has ended meanwhile to ``durations``."""
        if report.step != self.step:
            self._end_step(report, at_s, durations)
        if report.phase is not self.phase:
            if self.phase not in _PARTS_OF_A_STEP or self.phase is Phase.DATA:
                durations.add(self.phase, at_s - self.phase_since_s)
            self.phase, self.phase_since_s = report.phase, at_s
        self.has_stepped = self.has_stepped or report.phase is Phase.STEP
        self._is_plain_step = self._is_plain_step and report.phase in _PARTS_OF_A_STEP

    def _end_step(self, report: RankReport, at_s: float, durations: Durations) -> None:
        num_steps = report.step - self.step
        if self.phase in _BEFORE_STEPS or num_steps < 1:  # it was restored, or counts again from 0
            self.step, self.step_since_s, self._is_plain_step = report.step, at_s, True
            return
        if not self.has_stepped:
            durations.add(Phase.FIRST_STEP, at_s - self.phase_since_s)
        elif self.step_since_s is not None and self._is_plain_step:
            durations.add(Phase.STEP, (at_s - self.step_since_s) / num_steps)
        self.step, self.step_since_s, self._is_plain_step, self.has_stepped = report.step, at_s, True, True
