"""Work in a background thread, which also finishes if the program ends without waiting for it.

``concurrent.futures`` does not fit: the interpreter ends its threads before it runs the functions registered for the
exit. A save that a program waits for in such a function would find no thread for its next part.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class BackgroundTask(Generic[T]):
    """Runner of ``work`` in a thread of its own, or in the calling thread if the interpreter starts no threads any
    more.
    """

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
        except BaseException as fault:  # noqa: BLE001  # raised again by ``result``
            self._fault = fault
        finally:
            del self._work  # and every object that it refers to

    @property
    def is_busy(self) -> bool:
        return self._thread.is_alive()

    def wait(self, within_s: float | None = None) -> bool:
        """Wait for the end of the work, at most ``within_s`` seconds, and return whether it has ended."""
        if self._thread.ident is not None:
            self._thread.join(within_s)
        return not self._thread.is_alive()

    def result(self) -> T:
        """Wait for the work and return its result, or raise the exception that it raised."""
        self.wait()
        if self._fault is not None:
            raise self._fault
        return self._outcome[0]
