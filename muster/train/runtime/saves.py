"""The saves of one run: which step is saved, when a failed save is tried again."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from muster.train.checkpoint.background_save import Saving
    from muster.train.checkpoint.checkpoints import Checkpoints
    from muster.train.checkpoint.state import Trained

_SAVE_MARGIN = 1.5
_UNKNOWN_SAVE_S = 1.0
_SHORTEST_SAVE_S = 0.2
_MOST_STEPS_TO_RETRY = 64


class Saves:
    """Saves of one rank, which all ranks make together. ``saved_step``: the step of the newest checkpoint; -1: none."""

    def __init__(self, checkpoints: Checkpoints, trained: Trained, *, is_asynchronous: bool) -> None:
        self.saved_step = -1
        self._checkpoints = checkpoints
        self._trained = trained
        self._is_asynchronous = is_asynchronous
        self._has_room = False
        self._num_failed = 0
        self._retry_at = -1
        self._used_steps: set[int] = set()

    def rolled_back(self, step: int) -> None:
        """Continue from ``step``, which is saved and restored. No step is saved twice, except by a last save: its name
        is known by now.
        """
        self.saved_step, self._num_failed, self._retry_at = step, 0, -1

    @property
    def saving(self) -> Saving | None:
        """The save in progress, until ``settle``."""
        return self._checkpoints.saving

    @property
    def is_busy(self) -> bool:
        return self.saving is not None and self.saving.is_busy

    @property
    def has_newest_failed(self) -> bool:
        """Whether the newest save that has ended has failed."""
        return self._num_failed > 0

    @property
    def is_name_taken(self) -> bool:
        """Whether the newest save has failed because its generation is in the store: a rollback could not remove it."""
        return self._checkpoints.is_name_taken

    def is_retry_due(self, step: int) -> bool:
        return step == self._retry_at

    def make_room(self) -> None:
        """Allocate memory for the first save's copy, once; on all ranks after one step, since a ``state_dict`` may need
        them all.
        """
        if self._is_asynchronous and not self._has_room:
            self._has_room = True
            self._checkpoints.make_room(self._trained)

    def save(self, step: int, position: int, loss: float | None, *, is_last: bool = False) -> bool:
        """Save a step and return whether it is saved or is being saved. Raises as ``Checkpoints.save``."""
        self.settle(step)
        if self.saved_step == step:
            return True
        if step in self._used_steps and not is_last:
            self._retry_at = step + 1
            return False
        if self._is_asynchronous and not is_last:
            self._has_room, self._retry_at = True, -1
            self._checkpoints.begin(self._trained, step, position, loss)
            return True
        save = partial(self._checkpoints.save, self._trained, step, position, loss, is_last=is_last)
        return self._settled(step, save, now=step)

    def settle(self, now: int) -> bool:
        """Wait for the save in progress and act on its result; on all ranks after step ``now``. False: it failed."""
        return self.saving is None or self._settled(self.saving.step, self._checkpoints.result, now=now)

    def _settled(self, step: int, result: Callable[[], bool], *, now: int) -> bool:
        is_saved = result()
        if is_saved:
            self.saved_step, self._num_failed, self._retry_at = step, 0, -1
            self._used_steps.add(step)
        else:
            self._retry_at = now + min(2**self._num_failed, _MOST_STEPS_TO_RETRY)
            self._num_failed += 1
        return is_saved

    @property
    def needed_s(self) -> float:
        """Seconds that a save needs, by experience and with a margin."""
        known_s = self._checkpoints.longest_save_s
        return max(known_s * _SAVE_MARGIN, _SHORTEST_SAVE_S) if known_s else _UNKNOWN_SAVE_S
