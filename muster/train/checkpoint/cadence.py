"""Cadence of checkpoints: one each so many steps, or ``"auto"``, as often as costs the least (``interval``).

For ``"auto"`` each rank measures its own stall, save and step. The slowest rank's figures count; all ranks get them
with the agreement that each step makes anyway. Until a first checkpoint has been measured, the policy's minimum holds.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from typing import TYPE_CHECKING

from muster.train.checkpoint.interval import Interval, interval_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from muster.train.checkpoint.interval import IntervalRule
    from muster.train.report.wire import Channel

AUTO = "auto"
NEAR_S = 15.0
"""Time that may be needed to allocate memory for a copy of tens of gigabytes."""
_STALLS_KEPT = 8
_STEPS_KEPT = 32
_REPORT_AGAIN_FRACTION = 0.1
_CADENCE_TEXTS = {
    "none": "which costs the least",
    "min": "the least that the policy allows",
    "max": "the most that the policy allows",
    "save": "as long as one takes to be saved and read back",
}


def require_cadence(every: object) -> int | str:
    """Return ``every``. Raises ValueError if it is neither a number of steps nor ``"auto"``."""
    if every == AUTO or (isinstance(every, int) and not isinstance(every, bool) and every >= 0):
        return every
    raise ValueError(f"checkpoint_every={every!r}: must be a number of steps, 0 or more, or {AUTO!r}")


class Cadence:
    """Cadence of one rank, the same on all ranks after each ``agree``."""

    def __init__(
        self,
        every: int | str,
        rule: IntervalRule,
        channel: Channel,
        *,
        rank: int,
        num_ranks: int,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._every = every
        self._rule = rule
        self._channel = channel
        self._rank = rank
        self._num_ranks = num_ranks
        self._mtbf_s = rule.mtbf_s(num_ranks)
        self._now = now
        self._begun_at = now()
        self._has_begun = False
        self._stalls: deque[float] = deque(maxlen=_STALLS_KEPT)
        self._has_warmed_up = False
        self._steps: deque[float] = deque(maxlen=_STEPS_KEPT)
        self._agreed: tuple[int, ...] = ()
        self._interval = Interval(rule.min_s, "min")
        self._reported: Interval | None = None

    def begin(self) -> None:
        """Begin to count: a failure does not repeat the load before this moment. Later calls change nothing."""
        if not self._has_begun:
            self._begun_at = self._now()
            self._has_begun = True

    def note_step(self, step_s: float) -> None:
        self._steps.append(step_s)

    @contextlib.contextmanager
    def stalling(self) -> Iterator[None]:
        """Measure the time that training waits when a checkpoint is made."""
        self._begun_at = began = self._now()
        yield
        stall_s = self._now() - began
        if len(self._stalls) == 1 and not self._has_warmed_up:
            self._stalls.clear()  # the first one touches memory that later ones reuse
            self._has_warmed_up = True
        self._stalls.append(stall_s)

    def figures(self, step: int, save_s: float) -> list[int]:
        """Return this rank's figures, of which all ranks take the highest: is one due; stall, save and step in
        microseconds.
        """
        step_s = _mean(self._steps)
        if isinstance(self._every, int):
            is_due = self._every > 0 and step > 0 and step % self._every == 0
        else:
            is_due = step > 0 and self._now() - self._begun_at + step_s / 2 >= self._interval.seconds
        return [int(is_due), _micros(_mean(self._stalls)), _micros(save_s), _micros(step_s)]

    def is_near(self, step: int, total: int) -> bool:
        """Return whether, by this rank's clock, one is due within seconds or after the next step. Not before a first
        step.

        ``total``: the last step of training; a checkpoint that would be due after it does not count.
        """
        if not self._steps or self._every == 0:
            return False
        step_s = _mean(self._steps)
        if isinstance(self._every, int):
            left = self._every - step % self._every
            if step + left > total:
                return False
            left_s = left * step_s
        else:
            left_s = self._interval.seconds - (self._now() - self._begun_at)
        return left_s <= max(NEAR_S, step_s)

    def agree(self, step: int, highest: Sequence[int], *, is_busy: bool) -> bool:
        """Return whether a checkpoint is due. ``is_busy``: one is still being saved on some rank; ``"auto"`` waits for
        it.
        """
        is_due, *measured, step_us = highest
        if self._every != AUTO:
            return bool(is_due)
        if all(measured) and tuple(measured) != self._agreed:
            self._agreed = tuple(measured)
            self._choose(step, step_us / 1e6)
        return bool(is_due) and not is_busy

    def _choose(self, step: int, step_s: float) -> None:
        stall_s, save_s = (figure / 1e6 for figure in self._agreed)
        self._interval = chosen = interval_of(stall_s, save_s, self._mtbf_s, self._rule)
        told = self._reported
        if self._rank != 0 or (told is not None and told.bound == chosen.bound and _is_near(told, chosen)):
            return
        self._reported = chosen
        self._channel.send(
            "checkpoint_interval",
            step=step,
            interval_s=round(chosen.seconds, 3),
            bound=chosen.bound,
            stall_s=stall_s,
            save_s=save_s,
            step_s=step_s,
            mtbf_s=round(self._mtbf_s, 3),
            failures_per_gpu_hour=self._rule.failures_per_gpu_hour,
            num_gpus=self._rule.num_gpus or self._num_ranks,
        )
        sys.stderr.write(
            f"muster.train: a checkpoint every {chosen.seconds:.4g} s, {_CADENCE_TEXTS[chosen.bound]}: it holds "
            f"training up for {stall_s:.3g} s and takes {save_s:.3g} s; a failure is expected every "
            f"{self._mtbf_s / 3600:,.1f} h\n"
        )


def _is_near(reported: Interval, chosen: Interval) -> bool:
    return abs(chosen.seconds - reported.seconds) <= _REPORT_AGAIN_FRACTION * reported.seconds


def _mean(values: Sequence[float] | deque[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _micros(seconds: float) -> int:
    """Return whole microseconds, never 0 for a measured time: 0 means no measurement yet."""
    return max(1, round(seconds * 1e6)) if seconds > 0 else 0
