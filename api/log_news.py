"""News of jobs' output: one query a process for all followers, which read only when there is something new."""

import asyncio
from collections import defaultdict
from contextlib import suppress
from typing import Final

import structlog
from starlette.concurrency import run_in_threadpool

from control.core.unit_of_work import UnitOfWorkFactory
from control.jobs.job_logs import LogMark, log_marks
from muster.domain.errors import MusterError
from muster.domain.ids import JobId

POLL_S: Final = 0.25
WAIT_S: Final = 5.0
"""Longest wait of a follower, after which it may send a comment, so that proxies see that the stream lives."""
_log = structlog.get_logger(__name__)


class LogNews:
    """Wakes followers of a job when it has new output or has ended. For the loop's thread."""

    def __init__(self, units: UnitOfWorkFactory) -> None:
        self._units = units
        self._waiting: defaultdict[JobId, set[_Waiter]] = defaultdict(set)
        self._task: asyncio.Task[None] | None = None

    async def wait(self, job_id: JobId, seen: LogMark | None) -> LogMark | None:
        """Wait until the job's mark is another than ``seen``, for ``WAIT_S`` at most; return the newest known one."""
        waiter = _Waiter(seen)
        self._waiting[job_id].add(waiter)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._poll())
        try:
            with suppress(TimeoutError):
                return await asyncio.wait_for(waiter.news, WAIT_S)
            return seen
        finally:
            self._waiting[job_id].discard(waiter)
            if not self._waiting[job_id]:
                del self._waiting[job_id]

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _poll(self) -> None:
        while self._waiting:
            try:
                marks = await run_in_threadpool(log_marks, self._units, tuple(self._waiting))
            except MusterError as error:
                _log.warning("log_news_pause", fault=error.detail)
                marks = {}
            for job_id, mark in marks.items():
                for waiter in self._waiting.get(job_id, ()):
                    waiter.wake(mark)
            await asyncio.sleep(POLL_S)


class _Waiter:
    def __init__(self, seen: LogMark | None) -> None:
        self._seen = seen
        self.news: asyncio.Future[LogMark] = asyncio.get_running_loop().create_future()

    def wake(self, mark: LogMark) -> None:
        if mark != self._seen and not self.news.done():
            self.news.set_result(mark)
