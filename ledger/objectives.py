"""Error budgets: the rest of one, how fast it burns, and from which moment to which.

Events count at the moment at which they are known to be good or bad. A window of length ``w`` at ``t`` has the events
of ``t - w < at ≤ t``. So the rates change at the time of an event, and when one leaves a window, and nowhere else::

    event        e
    in a window  e ≤ t < e + w
    changes      at each e, e + long and e + short at most

A pair of windows burns from the first moment at which both have its rate, until the first at which the short one is
below it. What is asked once for a month and what is asked each minute is therefore the same to the millisecond.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import Final, Literal

from muster.domain.policy.objectives import BurnRate, Severity

State = Literal["page", "ticket", "ok"]
_URGENCY: Final[Mapping[str, int]] = {"page": 2, "ticket": 1}


@dataclass(frozen=True, slots=True)
class Tally:
    """Good and bad events that were known at one moment."""

    at_ms: int
    good: int = 0
    bad: int = 0


@dataclass(frozen=True, slots=True)
class Counts:
    """Good and bad events of a window."""

    good: int = 0
    bad: int = 0

    @property
    def total(self) -> int:
        return self.good + self.bad

    @property
    def good_share(self) -> float | None:
        """Return the indicator; None: nothing has happened."""
        return self.good / self.total if self.total else None


@dataclass(frozen=True, slots=True)
class Budget:
    """An error budget. ``allowed``: bad events that the target allows for as many events as there were."""

    counts: Counts
    allowed: float

    @property
    def left_fraction(self) -> float:
        """Return the unspent share of it: 1 of all, 0 or less of a spent one."""
        return 1.0 if self.counts.bad == 0 else 1.0 - self.counts.bad / self.allowed

    @property
    def is_spent(self) -> bool:
        return self.counts.bad > 0 and self.left_fraction <= 0


@dataclass(frozen=True, slots=True)
class Pair:
    """A pair of windows by its name, in milliseconds."""

    name: str
    factor: Fraction
    long_ms: int
    short_ms: int
    severity: Severity


@dataclass(frozen=True, slots=True)
class Move:
    """A pair begins to burn at ``at_ms``, or no longer does."""

    at_ms: int
    pair: str
    begins: bool


class History:
    """The events of one objective in the order of time."""

    def __init__(self, tallies: Iterable[Tally]) -> None:
        ordered = sorted(tallies, key=lambda each: each.at_ms)
        self.at_ms: Sequence[int] = [each.at_ms for each in ordered]
        self._good = [0, *accumulate(each.good for each in ordered)]
        self._bad = [0, *accumulate(each.bad for each in ordered)]

    def within(self, until_ms: int, length_ms: int) -> Counts:
        """Return the events of the window that ends with ``until_ms``."""
        first, last = bisect_right(self.at_ms, until_ms - length_ms), bisect_right(self.at_ms, until_ms)
        return Counts(self._good[last] - self._good[first], self._bad[last] - self._bad[first])


def pairs_of(rates: Mapping[str, BurnRate]) -> tuple[Pair, ...]:
    return tuple(
        Pair(name, _exact(rate.factor), round(rate.long_s * 1000), round(rate.short_s * 1000), rate.severity)
        for name, rate in rates.items()
    )


def burn_rate(counts: Counts, target: float) -> float:
    """Return how many times faster than the target allows the budget is spent; 0 without events."""
    return float(Fraction(counts.bad, counts.total) / _error_share(target)) if counts.total else 0.0


def budget_of(counts: Counts, target: float) -> Budget:
    return Budget(counts, float(counts.total * _error_share(target)))


def moves_of(
    history: History,
    pairs: Sequence[Pair],
    target: float,
    *,
    since_ms: int,
    until_ms: int,
    burning: Iterable[str] = (),
    min_bad: int = 1,
) -> list[Move]:
    """Return where pairs begin and cease to burn after ``since_ms`` up to ``until_ms``, in the order of time.

    ``burning``: the pairs that burn at ``since_ms``. ``min_bad``: bad events that a long window needs for a beginning.
    """
    before = frozenset(burning)
    found = [
        move
        for pair in pairs
        for move in _moves(history, pair, target, since_ms, until_ms, is_burning=pair.name in before, min_bad=min_bad)
    ]
    return sorted(found, key=lambda move: (move.at_ms, move.begins, move.pair))


def _moves(
    history: History, pair: Pair, target: float, since_ms: int, until_ms: int, *, is_burning: bool, min_bad: int
) -> Iterator[Move]:
    least = pair.factor * _error_share(target)
    for at_ms in _change_points(history, pair, since_ms, until_ms):
        has_short = _reaches(history.within(at_ms, pair.short_ms), least)
        if is_burning and not has_short:
            is_burning = False
            yield Move(at_ms, pair.name, begins=False)
        elif not is_burning and has_short:
            long = history.within(at_ms, pair.long_ms)
            if long.bad >= min_bad and _reaches(long, least):
                is_burning = True
                yield Move(at_ms, pair.name, begins=True)


def _change_points(history: History, pair: Pair, since_ms: int, until_ms: int) -> list[int]:
    points = {at + lag for at in history.at_ms for lag in (0, pair.long_ms, pair.short_ms)}
    return sorted(at for at in points if since_ms < at <= until_ms)


def _reaches(counts: Counts, least: Fraction) -> bool:
    """Return whether the share of bad events is at least ``least``, without rounding."""
    return counts.total > 0 and counts.bad * least.denominator >= least.numerator * counts.total


def state_of(burning: Iterable[str], pairs: Sequence[Pair]) -> State:
    """Return the most urgent severity of the pairs that burn."""
    names = frozenset(burning)
    severities = [pair.severity for pair in pairs if pair.name in names]
    return max(severities, key=lambda each: _URGENCY[each], default="ok")


def burning_after(burning: Iterable[str], moves: Iterable[Move]) -> frozenset[str]:
    """Return the pairs that burn after these moves."""
    names = set(burning)
    for move in moves:
        if move.begins:
            names.add(move.pair)
        else:
            names.discard(move.pair)
    return frozenset(names)


def state_changes(burning: Iterable[str], moves: Sequence[Move], pairs: Sequence[Pair]) -> list[tuple[int, State]]:
    """Return the moments at which the state changes, with the state from then on."""
    names, changes = frozenset(burning), []
    state = state_of(names, pairs)
    for at_ms in sorted({move.at_ms for move in moves}):
        names = burning_after(names, (move for move in moves if move.at_ms == at_ms))
        if (after := state_of(names, pairs)) != state:
            changes.append((at_ms, after))
            state = after
    return changes


def _error_share(target: float) -> Fraction:
    return 1 - _exact(target)


def _exact(number: float) -> Fraction:
    """Return the decimal number as it was written: 0.99 as a float is not 99 of 100."""
    return Fraction(repr(number))
