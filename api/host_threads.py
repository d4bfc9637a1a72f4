"""Threads for requests of hosts alone: heartbeats and reports never wait for the requests of persons and tenants."""

import asyncio
import contextvars
import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from starlette.concurrency import run_in_threadpool

T = TypeVar("T")
HOST_THREADS: Final = 12
MOST_KNOWN: Final = 200_000
"""Tokens that are remembered; a host has a new one each hour."""


class HostThreads:
    """A pool of threads, each of which may take one database connection.

    A request gets in by a token that was a host's before: others are asked for in the threads of everybody.
    """

    def __init__(self, num_threads: int = HOST_THREADS) -> None:
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="of-hosts")
        self._known: set[bytes] = set()

    async def authenticate(self, token: bytes, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Return the result of ``function``, which checks the token and raises if it is no host's."""
        digest = hashlib.blake2b(token, digest_size=16).digest()
        if digest in self._known:
            return await self.run(function, *arguments, **named)
        found = await run_in_threadpool(function, *arguments, **named)
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known.add(digest)
        return found

    async def run(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Return the function's result, computed in one of the threads, in the caller's context."""
        call = partial(contextvars.copy_context().run, function, *arguments, **named)
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    def close(self) -> None:
        self._pool.shutdown(wait=False)
