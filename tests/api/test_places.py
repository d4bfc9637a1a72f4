"""Places of requests and streams: a caller fills its own, and no other caller's."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import anyio.to_thread
import pytest
from prometheus_client import CollectorRegistry
from starlette.concurrency import run_in_threadpool
from starlette.types import Message, Receive, Scope, Send

from api import log_news
from api.host_threads import HostThreads
from api.log_news import LogNews
from api.middleware import Edge
from api.places import RequestPlaces, StreamPlaces
from control.jobs.job_logs import LogMark
from muster.domain.errors import RateLimitedError
from muster.domain.ids import JobId, KeyId, TenantId
from muster.domain.policy.limits import LimitPolicy
from muster.domain.principals import Principal, Role
from muster.domain.states import JobState

SAME = [(b"authorization", b"BEARER one"), (b"cookie", b"x=1"), (b"authorization", b"bearer one")]
"""Headers by which a caller could try to be another one."""
OF_ONE, OF_ANOTHER = (b"authorization", b"Bearer one"), (b"authorization", b"Bearer another")


class Calls:
    """Requests to an edge whose application answers when ``go`` is set."""

    def __init__(self, most: int, media_type: bytes) -> None:
        self.go = asyncio.Event()
        self.began: asyncio.Queue[None] = asyncio.Queue()
        self._media_type = media_type
        self._edge = Edge(
            self._answer,
            body_bytes=1 << 20,
            manifest_bytes=1 << 20,
            places=RequestPlaces(most),
            allowed_hosts=frozenset(),
            registry=CollectorRegistry(),
            templates={},
        )

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_stream = self._media_type.startswith(b"text/event-stream")
        if not is_stream:
            await self._wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", self._media_type)]})
        if is_stream:
            await self._wait()
        await send({"type": "http.response.body", "body": b""})

    async def _wait(self) -> None:
        self.began.put_nowait(None)
        await self.go.wait()

    async def status(self, *headers: tuple[bytes, bytes]) -> int:
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        async def receive() -> Message:
            return {"type": "http.request"}

        scope = {"type": "http", "method": "GET", "path": "/x", "headers": [(b"host", b"a"), *headers]}
        await self._edge(scope, receive, send)
        return int(sent[0]["status"])


def played(run_case: Callable[[], Awaitable[None]]) -> None:
    async def in_time() -> None:
        await asyncio.wait_for(run_case(), 60)

    asyncio.run(in_time())


def test_a_credential_has_so_many_requests_answered_at_once_and_others_are_served() -> None:
    async def run_case() -> None:
        calls = Calls(2, b"application/json")
        waiting = [asyncio.create_task(calls.status(OF_ONE)) for _ in range(2)]
        for _ in waiting:
            await calls.began.get()
        assert await calls.status(OF_ONE) == 429
        assert [await calls.status(SAME[1], OF_ONE), *[await calls.status(each) for each in SAME[::2]]] == [429] * 3
        others = asyncio.create_task(calls.status(OF_ANOTHER))
        without = asyncio.create_task(calls.status())
        calls.go.set()
        assert await asyncio.gather(*waiting, others, without) == [200] * 4
        assert await calls.status(OF_ONE) == 200, "a place that was left is free"

    played(run_case)


def test_an_open_stream_takes_no_place_of_a_request() -> None:
    async def run_case() -> None:
        calls = Calls(1, b"text/event-stream; charset=utf-8")
        streams = []
        for _ in range(5):
            streams.append(asyncio.create_task(calls.status(OF_ONE)))
            await calls.began.get()
        calls.go.set()
        assert await asyncio.gather(*streams) == [200] * 5

    played(run_case)


def caller(key: str, tenant: str | None = "ten_a") -> Principal:
    return Principal("key:x", Role.TENANT_MEMBER, KeyId(key), None if tenant is None else TenantId(tenant))


def test_streams_are_counted_by_key_and_by_tenant() -> None:
    places = StreamPlaces(LimitPolicy(streams_per_key=2, streams_per_tenant=3))
    leave = places.take(caller("key_1"))
    places.take(caller("key_1"))
    with pytest.raises(RateLimitedError, match="2 streams of this caller"):
        places.take(caller("key_1"))
    places.take(caller("key_2"))
    with pytest.raises(RateLimitedError, match="3 streams of this tenant"):
        places.take(caller("key_3"))
    places.take(caller("key_4", tenant="ten_b"))
    places.take(caller("key_5", tenant=None))
    leave()
    places.take(caller("key_3"))


def test_hosts_are_answered_while_all_other_threads_are_busy() -> None:
    async def run_case() -> None:
        threads, end, loop = HostThreads(1), threading.Event(), asyncio.get_running_loop()
        began: asyncio.Queue[None] = asyncio.Queue()

        def work() -> None:
            loop.call_soon_threadsafe(began.put_nowait, None)
            end.wait(60)

        assert await threads.authenticate(b"known", str.lower, "NODE") == "node"
        num_threads = int(anyio.to_thread.current_default_thread_limiter().total_tokens)
        busy = [asyncio.create_task(run_in_threadpool(work)) for _ in range(num_threads)]
        for _ in busy:
            await began.get()
        assert await threads.run(str.upper, "heartbeat") == "HEARTBEAT"
        assert await threads.authenticate(b"known", str.lower, "NODE") == "node"
        stranger = asyncio.create_task(threads.authenticate(b"stranger", str.lower, "NODE"))
        assert await threads.run(str.upper, "heartbeat") == "HEARTBEAT"
        assert not stranger.done(), "it waits with everybody else's requests"
        end.set()
        assert await stranger == "node"
        await asyncio.gather(*busy)
        threads.close()

    played(run_case)


def test_followers_share_one_query_and_are_woken_by_their_own_jobs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    marks = {JobId(f"job_{number}"): LogMark(5, JobState.ACTIVE, 1) for number in range(100)}
    queries: list[tuple[JobId, ...]] = []
    polled = threading.Semaphore(0)

    def marks_of(_: Any, job_ids: tuple[JobId, ...]) -> dict[JobId, LogMark]:
        queries.append(job_ids)
        polled.release()
        return {job_id: marks[job_id] for job_id in job_ids}

    monkeypatch.setattr(log_news, "log_marks", marks_of)
    monkeypatch.setattr(log_news, "POLL_S", 0.001)

    async def run_case() -> None:
        news = LogNews(None)  # type: ignore[arg-type]  # the query is played
        first = await asyncio.gather(*(news.wait(job_id, None) for job_id in marks))
        assert first == list(marks.values())
        assert len(queries) <= 2, "one query for a hundred followers"
        waiting = {job_id: asyncio.create_task(news.wait(job_id, mark)) for job_id, mark in list(marks.items())}
        num_before = len(queries)
        while len(queries) < num_before + 3:  # each query begins after the answer of the one before was handed out
            await asyncio.to_thread(polled.acquire)
        assert not any(task.done() for task in waiting.values())
        one = JobId("job_7")
        marks[one] = LogMark(6, JobState.ACTIVE, 1)
        assert await waiting.pop(one) == marks[one]
        assert not any(task.done() for task in waiting.values())
        for task in waiting.values():
            task.cancel()
        await asyncio.gather(*waiting.values(), return_exceptions=True)
        news.close()

    played(run_case)


def test_a_follower_without_news_waits_for_no_longer_than_a_proxy_does(monkeypatch: pytest.MonkeyPatch) -> None:
    mark = LogMark(5, JobState.ACTIVE, 1)
    monkeypatch.setattr(log_news, "log_marks", lambda _, job_ids: dict.fromkeys(job_ids, mark))
    monkeypatch.setattr(log_news, "WAIT_S", 0.01)

    async def run_case() -> None:
        assert await LogNews(None).wait(JobId("job_1"), mark) == mark  # type: ignore[arg-type]  # the query is played

    played(run_case)
