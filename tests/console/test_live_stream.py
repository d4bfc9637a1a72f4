"""The one stream of a page: it begins where the page was read, not where the stream was opened."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from api.dependencies import AppDependencies
from api.streams import Broadcast, position_in
from console.pages import live
from control.core.sequencer import sequence_once
from muster.db.queries.events import newest_position
from tests.console.conftest import Console
from tests.fleet_factory import OPERATOR


def _first(seen: Console, positions: tuple[int, int], wanted: str, num: int) -> list[bytes]:
    dependencies, broadcast = AppDependencies(units=seen.units, secret_key=b"x" * 32), Broadcast(seen.units)

    async def read() -> list[bytes]:
        stream: AsyncIterator[bytes] = live._frames(dependencies, OPERATOR, (wanted,), broadcast, positions)
        return [await asyncio.wait_for(anext(stream), 30) for _ in range(num)]

    try:
        return asyncio.run(read())
    finally:
        broadcast.close()


def _newest(seen: Console) -> int:
    while sequence_once(seen.units):
        pass
    with seen.units.read() as session:
        return newest_position(session)


def test_what_came_between_the_page_and_its_stream_is_reported(seen: Console) -> None:
    before = _newest(seen)
    seen.fleet.submit(name="in-between")
    after = _newest(seen)
    connected, changed = _first(seen, (before, after), "job.", 2)
    assert connected == b": connected\n\n"
    assert b"event: changed\n" in changed
    assert b"job.queued" in changed
    assert f"id: {after}\n".encode() in changed, "a browser that loses it continues from there"


def test_one_that_was_away_for_long_requests_all_at_once(seen: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "PAGE", 1)
    newest = _newest(seen)
    assert newest > 1
    for position in (0, newest + 7):  # the database may have been restored to an earlier day
        _, changed = _first(seen, (position, newest), "nothing.is-called-so", 2)
        assert changed == f'event: changed\nid: {newest}\ndata: {{"kinds":[]}}\n\n'.encode()


@pytest.mark.parametrize(
    ("reported", "position"),
    [(None, None), ("", None), ("7", 7), ("-1", None), ("٣", None), ("1e3", None), ("9" * 30, 2**63 - 1)],
)
def test_what_a_browser_states_it_has_read(reported: str | None, position: int | None) -> None:
    assert position_in(reported, None) == position


def test_the_page_states_where_it_was_read(seen: Console) -> None:
    newest = _newest(seen)
    assert f'data-position="{newest}"' in seen.get("/console/jobs", "operator").text
