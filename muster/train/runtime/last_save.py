"""The last save of a program, which is tried again while its storage fails.

    step 1000 is done, the checkpoint folder is full     ENOSPC
    all ranks wait 1 s and save again                    ENOSPC
    they wait 2 s, 4 s, 8 s … up to 30 s                 committed: the run has succeeded
    ``MUSTER_LAST_SAVE_RETRY_S`` is over                 all ranks end with ``EXIT_SAVE_FAILED``

A save is one agreement of all ranks: where one rank fails, it fails on all. So is each decision to try again, because
the ranks' clocks differ, and each second of a pause, because one rank alone may receive a stop.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from muster.train.runtime.orders import NO_DEADLINE_MS

if TYPE_CHECKING:
    from collections.abc import Callable

    from muster.train.parallel.ranks import Agreement
    from muster.train.runtime.orders import Orders
    from muster.train.runtime.saves import Saves

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0
_SLICE_S = 1.0


class LastSave:
    """Tries of the last save.

    ``is_saved``, ``is_stopping``: whether a try succeeded, and whether any rank was asked to stop, the same on all
    ranks. ``spent_s``: the time since the first try failed.
    """

    def __init__(self, saves: Saves, ranks: Agreement, orders: Orders, within_s: float) -> None:
        self.is_saved = False
        self.is_stopping = False
        self.num_tries = 0
        self.spent_s = 0.0
        self._may_be_killed = False
        self._saves = saves
        self._ranks = ranks
        self._orders = orders
        self._within_s = within_s

    def save(self, try_once: Callable[[], bool], step: int) -> None:
        """Try until a save succeeds or the time is over. ``try_once`` saves ``step``, on all ranks together.

        After a stop request without a deadline, the save is tried again once at most: the kill may come at any time.
        """
        pause_s, failed_at = _FIRST_PAUSE_S, None
        while True:
            self.num_tries += 1
            self.is_saved = try_once()
            if self.is_saved or self._saves.is_name_taken:  # no later try would find the name free
                return
            failed_at = failed_at or time.monotonic()
            self.spent_s = time.monotonic() - failed_at
            left_s = self._within_s - self.spent_s
            pause_s = min(pause_s, max(left_s, 0.0))
            was_last_try = self._may_be_killed
            is_over = left_s <= 0 or self._is_late()
            if self._agree(is_over=is_over) or was_last_try:
                return
            if self._ranks.rank == 0:
                sys.stderr.write(
                    f"muster.train: step {step} is the last one: tried again in {pause_s:.3g} s, "
                    f"for {left_s:.3g} s more\n"
                )
            self._pause(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def _agree(self, *, is_over: bool) -> bool:
        """Return whether it is over on any rank, and note a stop that any rank was asked for and its deadline."""
        orders = self._orders
        told = [is_over, orders.stop_reason is not None, -orders.deadline_ms]
        is_over_anywhere, is_stopping, minus_deadline = self._ranks.max(told)
        self.is_stopping = bool(is_stopping)
        self._may_be_killed = self.is_stopping and -minus_deadline >= NO_DEADLINE_MS
        return bool(is_over_anywhere)

    def _is_late(self) -> bool:
        """Return whether a stop request leaves no time for a slice of a pause and one more save."""
        self._orders.listen()
        return time.time() + _SLICE_S + self._saves.needed_s > self._orders.deadline_ms / 1000

    def _pause(self, seconds: float) -> None:
        """Wait, on all ranks for as long, but not past the time at which a save has to begin before a stop's deadline.

        A request without a deadline ends the pause if it comes within it.
        """
        knew_of_kill = self._may_be_killed
        until = time.monotonic() + seconds
        while True:
            left_s = until - time.monotonic()
            is_over = left_s <= 0 or self._is_late()
            if self._agree(is_over=is_over) or (self._may_be_killed and not knew_of_kill):
                return
            time.sleep(min(_SLICE_S, left_s))
