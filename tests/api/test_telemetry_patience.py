"""The one timer over all bodies that are in progress."""

import asyncio

import pytest

from api.telemetry_patience import BodyPatience, running_task
from muster.domain.errors import MalformedRequestError


async def read(patience: BodyPatience, comes: asyncio.Event) -> str:
    with patience.with_body(running_task()):
        await comes.wait()
    return "read"


def test_a_body_that_does_not_come_is_refused_and_others_are_left_alone() -> None:
    async def timeline() -> None:
        patience, never, soon = BodyPatience(0.2), asyncio.Event(), asyncio.Event()
        hopeless = [asyncio.create_task(read(patience, never)) for _ in range(3)]
        good = asyncio.create_task(read(patience, soon))
        soon.set()
        assert await good == "read"
        for task in hopeless:
            with pytest.raises(MalformedRequestError, match="did not come within"):
                await task
        late = asyncio.create_task(read(patience, never))
        with pytest.raises(MalformedRequestError, match="did not come within"):
            await late

    asyncio.run(asyncio.wait_for(timeline(), 60))


def test_what_is_cancelled_by_another_stays_cancelled() -> None:
    async def timeline() -> None:
        patience, never = BodyPatience(3600), asyncio.Event()
        task = asyncio.create_task(read(patience, never))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(asyncio.wait_for(timeline(), 60))
