"""Times that a program reports by its host's clock, brought into its attempt's time by the server's clock.

A host's clock may be wrong by hours. A report then may be counted at a wrong moment of its attempt, never outside of
it, and never in another attempt.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from ledger.facts import Attempt, Period, Steps
from ledger.periods import FOREVER, end_of


@dataclass(frozen=True, slots=True)
class Run:
    """Steps ``first`` to ``last`` of an attempt within its time: they took ``start_ms`` to before ``end_ms``."""

    first: int
    last: int
    start_ms: int
    end_ms: int
    save_ms: int

    @property
    def num_steps(self) -> int:
        return self.last - self.first + 1

    @property
    def num_ms(self) -> int:
        return self.end_ms - self.start_ms


class OwnTime:
    """The time of one attempt, from its claim to its end.

    Where a clock puts all reports after the attempt, or all before it, they are moved: the last one to its end, or the
    first one to its start. Where it puts only some outside, as after it was set, these have no time.
    """

    def __init__(self, attempt: Attempt) -> None:
        self.start_ms = attempt.placed_ms if attempt.claimed_ms is None else attempt.claimed_ms
        until_ms = attempt.known_until_ms if attempt.ended_ms is None else attempt.ended_ms
        self.end_ms = max(self.start_ms, end_of(until_ms))
        self._shift_ms = self._shift([one.end_ms for one in attempt.steps] or _ends(attempt))

    def within(self, start_ms: int, end_ms: int) -> tuple[int, int]:
        """Return a time by the server's clock as far as it is the attempt's: empty if it is not."""
        start_ms = min(max(start_ms, self.start_ms), self.end_ms)
        return start_ms, max(start_ms, min(end_ms, self.end_ms))

    def reported(self, start_ms: int, end_ms: int | None) -> tuple[int, int]:
        """Return a time by the host's clock as far as it is the attempt's."""
        return self.within(start_ms + self._shift_ms, FOREVER if end_ms is None else end_ms + self._shift_ms)

    def runs(self, steps: Iterable[Steps]) -> list[Run]:
        """Return the steps in order of time, of which none overlaps the one before it. The same steps count once."""
        found: list[Run] = []
        before_ms = self.start_ms
        for one in sorted(set(steps), key=_order):
            start_ms, end_ms = self.reported(one.end_ms - max(one.took_ms, 0), one.end_ms)
            start_ms = max(start_ms, before_ms)
            if start_ms < end_ms and one.first <= one.last:
                save_ms = min(max(one.save_ms, 0), end_ms - start_ms)
                found.append(Run(one.first, one.last, start_ms, end_ms, save_ms))
                before_ms = end_ms
        return found

    def _shift(self, ends_ms: list[int]) -> int:
        if not ends_ms:
            return 0
        if min(ends_ms) > self.end_ms:
            return self.end_ms - max(ends_ms)
        return self.start_ms - min(ends_ms) + 1 if max(ends_ms) <= self.start_ms else 0


def _ends(attempt: Attempt) -> list[int]:
    periods: tuple[Period, ...] = (*attempt.restores, *attempt.saves)
    return [one.end_ms for one in periods if one.end_ms is not None]


def _order(one: Steps) -> tuple[int, int, int, int, int]:
    return one.end_ms, one.last, one.first, one.took_ms, one.save_ms
