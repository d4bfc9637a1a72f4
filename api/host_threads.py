"""Threads for requests of hosts alone: heartbeats and reports never wait for the requests of persons and tenants."""

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

T = TypeVar("T")
HOST_THREADS: Final = 12


class HostThreads:
    """A pool of threads, each of which may take one database connection."""

    def __init__(self, num_threads: int = HOST_THREADS) -> None:
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="of-hosts")

    async def run(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Return the function's result, computed in one of the threads, in the caller's context."""
        call = partial(contextvars.copy_context().run, function, *arguments, **named)
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    def close(self) -> None:
        self._pool.shutdown(wait=False)
