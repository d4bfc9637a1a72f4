"""The REST API for people and programs, as a client for an event loop: the same calls as ``RestClient``."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx

from muster.client.calls import AsyncCaller, Call, rest_of
from muster.client.every_call import EveryCall
from muster.client.key_file import KeyFile
from muster.client.rest import STREAM_TIMEOUT
from muster.client.retries import RetryFault, RetryPolicy
from muster.client.streams import Following
from muster.client.transport import (
    Problem,
    UnreachableError,
    open_async_http,
    raise_for_problem,
    read_answer,
    send_async,
)

T = TypeVar("T")


class AsyncRestClient(EveryCall, AsyncCaller):
    """Every call of the API as a method to be awaited, or to be iterated over with ``async for``.

    Each raises ``UnreachableError`` or ``Problem``, and is repeated as ``retries`` says.
    """

    def __init__(self, api_url: str, token: str | KeyFile, *, ca_file: Path | None = None) -> None:
        self._http = open_async_http(api_url, token, ca_file=ca_file)
        self._retry_policy = RetryPolicy(api_url, time.monotonic)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def _answer(self, call: Call[T]) -> T:
        answer: T = await self._sent(call)
        return answer

    async def _list(self, call: Call[T]) -> list[T]:
        return [item async for item in self._walk(call)]

    async def _walk(self, call: Call[T]) -> AsyncIterator[T]:
        more: dict[str, Any] | None = {}
        while more is not None:
            page = await self._sent(call, **more)
            for item in page["items"]:
                yield item
            more = rest_of(page)

    async def _sent(self, call: Call[Any], **more: Any) -> Any:
        retries = self._retry_policy.begin(is_repeatable=call.is_repeatable)
        request = call.request(**more)
        while True:
            try:
                answer = await send_async(self._http, call.method, call.url, answer_s=call.answer_s, **request)
            except (UnreachableError, Problem) as fault:
                await asyncio.sleep(retries.pause_after(fault))
            else:
                retries.succeeded()
                return read_answer(answer, call.answer)

    async def _follow(self, call: Call[T]) -> AsyncIterator[T]:
        following = Following(call, self._retry_policy)
        while True:
            fault: RetryFault = following.broke()
            try:
                request = following.request()
                async with self._http.stream(call.method, call.url, timeout=STREAM_TIMEOUT, **request) as answer:
                    if not answer.is_success:
                        await answer.aread()
                        raise_for_problem(answer)
                    async for line in answer.aiter_lines():
                        for item in following.take(line):
                            yield item
                        if following.is_over:
                            return
            except httpx.HTTPError as error:
                fault = following.broke(error)
            except Problem as problem:
                fault = problem
            await asyncio.sleep(following.pause_after(fault))
