"""The REST API for people and programs, as a client that waits for its answers."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import httpx

from muster.client.calls import Call, SyncCaller, rest_of
from muster.client.every_call import EveryCall
from muster.client.key_file import KeyFile
from muster.client.retries import RetryFault, RetryPolicy
from muster.client.streams import Following
from muster.client.transport import Problem, UnreachableError, open_http, raise_for_problem, read_answer, send

T = TypeVar("T")
STREAM_TIMEOUT: Final = httpx.Timeout(10.0, read=60.0)


class RestClient(EveryCall, SyncCaller):
    """Every call of the API as a method. Each raises ``UnreachableError`` or ``Problem``.

    Reads, and changes under an Idempotency-Key, are repeated as ``retries`` says. It may be used by several threads.
    """

    def __init__(self, api_url: str, token: str | KeyFile, *, ca_file: Path | None = None) -> None:
        self._http = open_http(api_url, token, ca_file=ca_file, has_version=True)
        self._retry_policy = RetryPolicy(api_url, time.monotonic)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def _answer(self, call: Call[T]) -> T:
        answer: T = self._sent(call)
        return answer

    def _list(self, call: Call[T]) -> list[T]:
        return list(self._walk(call))

    def _walk(self, call: Call[T]) -> Iterator[T]:
        more: dict[str, Any] | None = {}
        while more is not None:
            page = self._sent(call, **more)
            yield from page["items"]
            more = rest_of(page)

    def _sent(self, call: Call[Any], **more: Any) -> Any:
        retries = self._retry_policy.begin(is_repeatable=call.is_repeatable)
        request = call.request(**more)
        while True:
            try:
                answer = send(self._http, call.method, call.url, answer_s=call.answer_s, **request)
            except (UnreachableError, Problem) as fault:
                time.sleep(retries.pause_after(fault))
            else:
                retries.succeeded()
                return read_answer(answer, call.answer)

    def _follow(self, call: Call[T]) -> Iterator[T]:
        following = Following(call, self._retry_policy)
        while True:
            fault: RetryFault = following.broke()
            try:
                with self._http.stream(call.method, call.url, timeout=STREAM_TIMEOUT, **following.request()) as answer:
                    if not answer.is_success:
                        answer.read()
                        raise_for_problem(answer)
                    for line in answer.iter_lines():
                        yield from following.take(line)
                        if following.is_over:
                            return
            except httpx.HTTPError as error:
                fault = following.broke(error)
            except Problem as problem:
                fault = problem
            time.sleep(following.pause_after(fault))
