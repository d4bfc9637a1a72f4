"""The agreement of all ranks between two steps: whether they save, and whether they stop."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from muster.train.runtime.exit_codes import (
    EXIT_SAVE_FAILED,
    EXIT_STOPPED_WITH_CHECKPOINT,
    EXIT_STOPPED_WITHOUT,
    leave_at_once,
    patience_s,
)

if TYPE_CHECKING:
    from muster.train.checkpoint.cadence import Cadence
    from muster.train.data.cursors import Cursors
    from muster.train.runtime.ending import Ending
    from muster.train.runtime.plans import Joined
    from muster.train.runtime.recorder import Recorder
    from muster.train.runtime.run_state import RunState
    from muster.train.values.value_watch import ValueWatch


class StepAgreement:
    """Decisions of one rank between steps, which all ranks make together: one exchange of numbers a step."""

    def __init__(
        self,
        joined: Joined,
        state: RunState,
        samples: Cursors,
        values: ValueWatch,
        cadence: Cadence,
        recorder: Recorder,
        ending: Ending,
    ) -> None:
        self._ranks, self._orders = joined.ranks, joined.orders
        self._state = state
        self._samples = samples
        self._values = values
        self._cadence = cadence
        self._recorder = recorder
        self._ending = ending

    def settle(self, total: int) -> None:
        """Agree with all ranks between steps: save if it is due or any rank was asked to, stop if any rank must."""
        orders, state = self._orders, self._state
        orders.listen()
        is_saving = state.saves is not None and state.saves.is_busy
        told = [orders.stop_reason is not None, orders.wants_checkpoint, -orders.deadline_ms, is_saving]
        save_s = 0.0 if state.checkpoints is None else state.checkpoints.save_s
        of_run, of_samples, of_values, of_cadence = self._ranks.max_of(
            [*told, self._cadence.is_near(state.step, total)],
            self._samples.figures(),
            self._values.figures(state.step),
            self._cadence.figures(state.step, save_s),
        )
        must_stop, wants_checkpoint, minus_deadline, is_busy_anywhere, is_near = of_run
        self._samples.agree(of_samples, self._ranks)
        is_due = self._cadence.agree(state.step, of_cadence, is_busy=bool(is_busy_anywhere))
        is_due = self._recorder.due(state.step, is_due=is_due)
        if not state.require_values(of_values):
            return
        if not is_busy_anywhere and not state.settle_save():
            return
        self._pin()
        if must_stop and state.step < total:
            self._stop(-minus_deadline)
        self._save(is_due=is_due or bool(wants_checkpoint), is_near=bool(is_near))

    def _pin(self) -> None:
        """Retain the generations that an order names."""
        if self._state.checkpoints is not None and self._orders.pins is not None:
            self._state.checkpoints.pin(self._orders.pins)
            self._orders.pins = None

    def _save(self, *, is_due: bool, is_near: bool) -> None:
        """Save this step if a save is due, or allocate memory if the first one is near."""
        state, saves = self._state, self._state.saves
        if saves is None:
            return
        if is_due or saves.is_retry_due(state.step):
            self._orders.wants_checkpoint = False
            if saves.saved_step != state.step:
                with self._cadence.stalling():
                    state.save()
        elif is_near:
            saves.make_room()

    def _stop(self, deadline_ms: int) -> None:
        """Save if the time left is enough for one, by the slowest rank's clock and experience, and leave."""
        state, saves = self._state, self._state.saves
        why, state.is_leaving = self._why_stop(), True
        saving = None if saves is None else saves.saving
        is_stuck = saving is not None and not saving.wait(patience_s(deadline_ms))
        needed_s = 0.0 if saves is None else saves.needed_s
        left_s = deadline_ms / 1000 - time.time()
        is_stuck_anywhere, is_late = self._ranks.max([is_stuck, needed_s > left_s])
        if is_stuck_anywhere:
            message = f"{why}; a save is still in progress"
            self._ending.report("stopped_without", message, code=EXIT_STOPPED_WITHOUT, within_s=0.0)
            leave_at_once(EXIT_STOPPED_WITHOUT)  # its thread uses the ranks' group, on one of them at least
        state.settle_save()
        is_saved = saves is not None and saves.saved_step == state.step
        if saves is not None and not is_saved and state.step > 0 and not is_late:
            last = state.save_last(saves)
            is_saved, why = last.is_saved, why if last.is_saved else f"{why}; {self._ending.not_saved(last)}"
        within_s = patience_s(deadline_ms)
        if is_saved:
            self._ending.end("stopped_with_checkpoint", EXIT_STOPPED_WITH_CHECKPOINT, why, within_s=within_s)
        self._ending.end("stopped_without", EXIT_STOPPED_WITHOUT, why, within_s=within_s)

    def _why_stop(self) -> str:
        return self._orders.stop_reason or "another rank was asked to stop"

    def finish(self) -> None:
        """Save the last step if it is not saved. Ends the process on all ranks if that fails."""
        state = self._state
        state.is_leaving = True
        if state.saves is not None and not (last := state.save_last(state.saves)).is_saved:
            why = self._ending.not_saved(last)
            if last.is_stopping:
                self._ending.end("stopped_without", EXIT_STOPPED_WITHOUT, f"{self._why_stop()}; {why}")
            self._ending.end("failed", EXIT_SAVE_FAILED, why)
