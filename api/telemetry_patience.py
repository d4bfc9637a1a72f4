"""Time limit on the bodies of telemetry: one timer for all bodies in progress.

A timer for each costs more than reading the body, which nearly always has come with its headers.
"""

import asyncio
from types import TracebackType
from typing import Any

from muster.domain.errors import MalformedRequestError

_Task = asyncio.Task[Any]


def running_task() -> _Task:
    """Return the task that runs now. Raises ``RuntimeError`` outside of any."""
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("a body is read in a task")
    return task


class BodyPatience:
    """Time limit: ``with patience.with_body(task):`` around the reading of one body, in its request's task."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._until_s: dict[_Task, float] = {}
        """Oldest first, since all have the same patience."""
        self._overdue: set[_Task] = set()
        self._timer: asyncio.TimerHandle | None = None

    def with_body(self, task: _Task) -> "_OfBody":
        """Return the limit of the body that this running task reads."""
        return _OfBody(self, task)

    def begin(self, task: _Task) -> None:
        loop = task.get_loop()
        self._until_s[task] = loop.time() + self._patience_s
        if self._timer is None:
            self._timer = loop.call_later(self._patience_s, self._check, loop)

    def end(self, task: _Task, kind: type[BaseException] | None) -> None:
        """End the limit. Raises ``MalformedRequestError`` where the body took too long."""
        self._until_s.pop(task, None)
        if task not in self._overdue:
            return
        self._overdue.discard(task)
        if task.uncancel() == 0 and kind is asyncio.CancelledError:
            raise MalformedRequestError(f"the body did not come within {self._patience_s:.0f} s") from None

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer, now_s = None, loop.time()
        for task, until_s in list(self._until_s.items()):
            if until_s > now_s:
                self._timer = loop.call_at(until_s, self._check, loop)
                return
            del self._until_s[task]
            self._overdue.add(task)
            task.cancel()


class _OfBody:
    __slots__ = ("_patience", "_task")

    def __init__(self, patience: BodyPatience, task: _Task) -> None:
        self._patience = patience
        self._task = task

    def __enter__(self) -> None:
        self._patience.begin(self._task)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._patience.end(self._task, kind)
