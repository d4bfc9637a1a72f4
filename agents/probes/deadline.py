"""Calls that may never return: each runs in a thread of its own, and is waited for no longer than its deadline.

ctypes releases the interpreter's lock during a call, so a driver that hangs in one thread blocks no other. The threads
are daemons: one that hangs in the driver does not keep the process from ending.
"""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")


class NoAnswerError(Exception):
    """The deadline passed. ``waited_s``: how long the call has been running."""

    def __init__(self, waited_s: float) -> None:
        self.waited_s = waited_s
        super().__init__(f"no answer for {waited_s:.1f} s")


class Call(Generic[Result]):
    """One call in progress."""

    def __init__(self, name: str, work: Callable[[], Result]) -> None:
        self._work = work
        self._answer: list[Result] = []
        self._error: BaseException | None = None
        self._started_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    @property
    def waited_s(self) -> float:
        """Seconds since it was made."""
        return time.monotonic() - self._started_s

    def result(self, until_s: float) -> Result:
        """Return its answer, or raise its error; NoAnswerError past ``until_s`` (monotonic seconds)."""
        self._thread.join(max(0.0, until_s - time.monotonic()))
        if not self.is_over:
            raise NoAnswerError(self.waited_s)
        if self._error is not None:
            raise self._error
        return self._answer[0]

    def _run(self) -> None:
        try:
            self._answer.append(self._work())
        except BaseException as error:  # noqa: BLE001  # the thread's edge: it is raised where the answer is asked for
            self._error = error


class Callers:
    """Calls in progress, at most one per key.

    A key whose last call hangs is not called again until that one returns.
    """

    def __init__(self) -> None:
        self._calls: dict[str, Call[Any]] = {}

    @property
    def is_idle(self) -> bool:
        return all(call.is_over for call in self._calls.values())

    def all_within(
        self, timeout_s: float, work: Mapping[str, Callable[[], Result]]
    ) -> dict[str, Result | BaseException]:
        """Return key → answer or error. All are waited for together: the whole takes no longer than ``timeout_s``."""
        until_s = time.monotonic() + timeout_s
        started = {key: self._start(key, job) for key, job in work.items()}
        answers: dict[str, Result | BaseException] = {}
        for key, call in started.items():
            try:
                answers[key] = call if isinstance(call, NoAnswerError) else call.result(until_s)
            except Exception as error:  # noqa: BLE001  # each key's error is its own answer
                answers[key] = error
        return answers

    def within(self, timeout_s: float, key: str, work: Callable[[], Result]) -> Result:
        """Make one call and return its answer, or raise its error; NoAnswerError past ``timeout_s``."""
        call = self._start(key, work)
        if isinstance(call, NoAnswerError):
            raise call
        return call.result(time.monotonic() + timeout_s)

    def _start(self, key: str, work: Callable[[], Result]) -> Call[Result] | NoAnswerError:
        """Start a call; return NoAnswerError where the key's last call hangs: its answer is to an older question."""
        current = self._calls.get(key)
        if current is not None and not current.is_over:
            return NoAnswerError(current.waited_s)
        call = Call(f"probe:{key}", work)
        self._calls[key] = call
        return call
