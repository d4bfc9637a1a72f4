"""A save that is under way beside training."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Saving:
    """``work`` in a thread of its own; ``step``: what is being saved."""

    def __init__(self, step: int, work: Callable[[], bool]) -> None:
        self.step = step
        self._work = work
        self._is_saved = False
        self._fault: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="checkpoint-save", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._is_saved = self._work()
        except BaseException as fault:  # noqa: BLE001  # raised again where the outcome is asked for
            self._fault = fault

    @property
    def is_busy(self) -> bool:
        return self._thread.is_alive()

    def wait(self, within_s: float | None = None) -> bool:
        """Whether it is over."""
        self._thread.join(within_s)
        return not self._thread.is_alive()

    def result(self) -> bool:
        """Whether it was committed. Waits for it, and raises what it raised."""
        self.wait()
        if self._fault is not None:
            raise self._fault
        return self._is_saved
