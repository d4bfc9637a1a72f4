"""Hosts over HTTP while requests of persons and tenants occupy every shared thread."""

import asyncio
import threading

import anyio.to_thread
import pytest
from starlette.concurrency import run_in_threadpool

from tests.api.conftest import Api

BEAT = {"protocol": 1, "boot_id": "b", "seq": 1}


@pytest.mark.parametrize(
    ("path", "status"), [("hosts/self/heartbeat", 200), ("telemetry", 422), ("hosts/self/absent", 404)]
)
def test_a_known_host_is_answered_while_all_shared_threads_are_busy(api: Api, path: str, status: int) -> None:
    url, headers = f"/v1/{path}", api.headers("node")
    assert api.client.post(url, json=BEAT, headers=headers).status_code == status
    end = threading.Event()
    portal = api.client.portal
    assert portal is not None

    async def occupy() -> list[asyncio.Task[bool]]:
        loop = asyncio.get_running_loop()
        began: asyncio.Queue[None] = asyncio.Queue()

        def work() -> bool:
            loop.call_soon_threadsafe(began.put_nowait, None)
            return end.wait(60)

        number = int(anyio.to_thread.current_default_thread_limiter().total_tokens)
        busy = [asyncio.create_task(run_in_threadpool(work)) for _ in range(number)]
        for _ in busy:
            await began.get()
        return busy

    async def left(busy: list[asyncio.Task[bool]]) -> list[bool]:
        return list(await asyncio.gather(*busy))

    busy = portal.call(occupy)
    try:
        assert api.client.post(url, json={**BEAT, "seq": 2}, headers=headers).status_code == status
    finally:
        end.set()
    assert all(portal.call(left, busy))
