"""A save that runs in the background."""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster.train.runtime.background import BackgroundTask

if TYPE_CHECKING:
    from collections.abc import Callable


class Saving(BackgroundTask[bool]):
    """Save of ``step`` in progress. Its result is whether it was committed."""

    def __init__(self, step: int, work: Callable[[], bool]) -> None:
        self.step = step
        super().__init__(work, "checkpoint-save")
