"""The end of a run: the outcome that the supervisor gets, once, and the exit code of the process.

A run ends by ``finish``, a stop, a fault of its values, an error of the program, or with a program that never calls
``finish``. The outcome is sent at the first of these, and nothing after it.
"""

from __future__ import annotations

import atexit
import sys
from typing import TYPE_CHECKING, NoReturn

from muster.train.runtime.exit_codes import EXIT_SAVE_FAILED, OUTCOME_CAUSES, leave_at_once
from muster.train.runtime.program_exit import ProgramExit

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from muster.train.checkpoint.background_save import Saving
    from muster.train.checkpoint.checkpoints import Checkpoints
    from muster.train.report.wire import Channel
    from muster.train.runtime.last_save import LastSave
    from muster.train.runtime.saves import Saves

_CRASH_PATIENCE_S = 10.0


class Ending:
    """How a run ends. ``checkpoints``, ``saves``: of the run, once they are open; None if it saves nothing."""

    def __init__(
        self,
        channel: Channel,
        *,
        takes_outcome: bool,
        step: Callable[[], int],
        report_last: Callable[[], None],
        leave: Callable[[], None],
    ) -> None:
        """Watch for errors and exits of the program from now on.

        ``takes_outcome``: the supervisor judges by the outcome as well as by the exit code. ``step``: returns the
        number of steps that are done. ``report_last``: sends the last figures. ``leave``: leaves the other ranks.
        """
        self.checkpoints: Checkpoints | None = None
        self.saves: Saves | None = None
        self._channel = channel
        self._takes_outcome = takes_outcome
        self._step = step
        self._report_last = report_last
        self._leave = leave
        self._has_ended = False
        self._unreported_code = 0
        self._next_hook, sys.excepthook = sys.excepthook, self._note_crash
        self._program_exit = ProgramExit()
        self._program_exit.watch()
        atexit.register(self._leave_interpreter)

    @property
    def newest(self) -> str:
        """The newest checkpoint as text."""
        saved_step = -1 if self.saves is None else self.saves.saved_step
        return f"the newest checkpoint is of step {saved_step}" if saved_step > 0 else "there is no checkpoint"

    def not_saved(self, last: LastSave) -> str:
        """Return why the last checkpoint could not be saved."""
        tries = f"{last.num_tries} {'try' if last.num_tries == 1 else 'tries'} in {last.spent_s:.0f} s"
        why = "" if self.checkpoints is None else self.checkpoints.why_failed
        return f"the last checkpoint, of step {self._step()}, could not be saved ({tries}): {why}; {self.newest}"

    def report(self, exit_word: str, message: str, *, code: int = 0, within_s: float | None = None) -> None:
        """Send the outcome. ``within_s``: how long it may wait for what the checkpoints still do; None: to its end."""
        self._has_ended = True
        if self.checkpoints is not None:
            self.checkpoints.settle(within_s)
            self.checkpoints.close()
        self._report_last()
        dropped_lines = self._channel.dropped_lines
        self._unreported_code = 0 if self._takes_outcome and self._channel.is_connected else code
        self._channel.send(
            "outcome",
            exit=exit_word,
            cause=OUTCOME_CAUSES.get(code),
            step=self._step(),
            message=message,
            dropped_lines=dropped_lines,
        )
        self._channel.close()

    def end(self, exit_word: str, code: int, message: str, *, within_s: float | None = None) -> NoReturn:
        """Send the outcome, leave the other ranks and end the process with ``code``."""
        self.report(exit_word, message, code=code, within_s=within_s)
        self._leave()
        if exit_word == "failed":
            sys.stderr.write(f"muster.train: {message}\n")
        sys.exit(code)

    def _leave_interpreter(self) -> None:
        """Wait for the save in progress if a program ends without ``finish``, unless other ranks have ended too.

        If it or the newest save before it failed, the outcome states ``save_failed``: no later save makes up for it.
        A code other than 0 with which the program ends remains. A supervisor that reads outcomes acts on the outcome;
        without one, the process itself turns 0 into the code.
        """
        if self.checkpoints is not None and self.saves is not None and not self._has_ended:
            saving = self.checkpoints.saving
            is_saved = not self.saves.has_newest_failed if saving is None else _succeeds(saving)
            if is_saved:
                self.checkpoints.settle()
                self.checkpoints.close()
            else:
                why = f"the last checkpoint could not be saved: {self.checkpoints.why_failed}; {self.newest}"
                self.report("failed", why, code=EXIT_SAVE_FAILED)
        if self._unreported_code and not self._program_exit.has_failed:
            leave_at_once(self._unreported_code)

    def _note_crash(self, kind: type[BaseException], fault: BaseException, traceback: TracebackType | None) -> None:
        """Report that the program raises, before the process ends."""
        self._program_exit.code = 1
        if not self._has_ended:
            if self.saves is not None and self.saves.saving is not None:
                self.saves.saving.wait(_CRASH_PATIENCE_S)
            self._has_ended = True
            self._channel.send("outcome", exit="failed", step=self._step(), message=f"{kind.__name__}: {fault}")
            self._channel.close()
        self._next_hook(kind, fault, traceback)
        if self.saves is not None and self.saves.is_busy:  # the interpreter may not end under a thread that writes
            leave_at_once(130 if issubclass(kind, KeyboardInterrupt) else 1)


def _succeeds(saving: Saving) -> bool:
    """Wait for a save in progress and return whether it was committed."""
    try:
        return saving.result()
    except Exception as fault:  # noqa: BLE001  # whatever it is, nothing was committed
        sys.stderr.write(f"muster.train: step {saving.step} was not saved: {fault}\n")
        return False
