"""Work that a thread does meanwhile, also while a program ends that has not waited for it.

Not ``concurrent.futures``, whose threads the interpreter closes at its end before anything that was registered to run
then: a save that a program waits for there would find no thread for its next part.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Beside(Generic[T]):
    """``work`` in a thread of its own; at once and in this one where the interpreter begins none any more."""

    def __init__(self, work: Callable[[], T], name: str) -> None:
        self._work = work
        self._outcome: list[T] = []
        self._fault: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self._run()

    def _run(self) -> None:
        try:
            self._outcome.append(self._work())
        except BaseException as fault:  # noqa: BLE001  # raised again where the outcome is asked for
            self._fault = fault
        finally:
            del self._work  # and all that it holds

    @property
    def is_busy(self) -> bool:
        return self._thread.is_alive()

    def wait(self, within_s: float | None = None) -> bool:
        """Whether it is over."""
        if self._thread.ident is not None:
            self._thread.join(within_s)
        return not self._thread.is_alive()

    def result(self) -> T:
        """Waits for it, and raises what it raised."""
        self.wait()
        if self._fault is not None:
            raise self._fault
        return self._outcome[0]
