"""A search through a job's logs by REST: pages, filters, and what is refused."""

import pytest

from control.hosts import protocol
from muster.domain.ids import AttemptId
from muster.wire.host import PROTOCOL_VERSION, LogBatch, LogChunk
from tests.api.conftest import Api
from tests.played_host import PlayedHost


@pytest.fixture
def lines(api: Api) -> str:
    """Where the lines of a job are that has printed on two ranks."""
    job_id = api.fleet.submit(shape={"gpus_per_node": 2})
    host = PlayedHost(api.units, api.fleet.node_id, boot_id="boot-of-alpha")
    host.beat()
    api.fleet.cycle()
    attempt = api.fleet.attempts(job_id)[-1].attempt
    assert host.claim(attempt.id, attempt.fence).granted
    chunks = (
        LogChunk(stream="0", offset=0, content=b"loss nan\nloss NaN\n\x00nan\xff"),
        LogChunk(stream="1", offset=0, content=b"loss 1\nnan at the end"),
    )
    batch = LogBatch(protocol=PROTOCOL_VERSION, fence=attempt.fence, chunks=chunks)
    with api.units.begin(host.principal, protocol.LOGS, quiet=True) as unit:
        protocol.store_logs(unit, AttemptId(attempt.id), batch)
    return f"/v1/jobs/{job_id}/logs/lines"


def test_pages_walk_through_all_lines(api: Api, lines: str) -> None:
    told, cursor = [], ""
    while cursor is not None:
        more = {"cursor": cursor} if cursor else {}
        page = api.client.get(
            lines, params={"contains": "nan", "ignore_case": "true", "limit": 1, **more}, headers=api.headers()
        ).json()
        told += [(one["stream"], one["offset"], one["text"]) for one in page["items"]]
        cursor = page["next_cursor"]
    assert told == [
        ("0", 0, "loss nan"),
        ("0", 9, "loss NaN"),
        ("0", 18, "\ufffdnan\ufffd"),
        ("1", 7, "nan at the end"),
    ]


def test_filters_state_which_stream_and_case(api: Api, lines: str) -> None:
    def texts(**requested: str) -> list[str]:
        answer = api.client.get(lines, params=requested, headers=api.headers())
        return [one["text"] for one in answer.json()["items"]]

    assert texts(contains="NaN") == ["loss NaN"]
    assert texts(contains="nan", stream="1") == ["nan at the end"]
    assert texts(contains="nan", attempt_id="att_of_nobody") == []


@pytest.mark.parametrize(
    ("requested", "status"),
    [
        ({}, 422),
        ({"contains": ""}, 422),
        ({"contains": "x" * 501}, 422),
        ({"contains": "x", "stream": "two"}, 422),
        ({"contains": "x", "attempt_id": "a\x00b"}, 422),
        ({"contains": "x", "cursor": "made-up"}, 400),
        ({"contains": "\x00"}, 200),
    ],
)
def test_what_cannot_be_sought_is_refused(api: Api, lines: str, requested: dict[str, str], status: int) -> None:
    assert api.client.get(lines, params=requested, headers=api.headers()).status_code == status


def test_a_cursor_is_of_one_search(api: Api, lines: str) -> None:
    page = api.client.get(lines, params={"contains": "nan", "limit": 1}, headers=api.headers()).json()
    asked = {"contains": "loss", "limit": 1, "cursor": page["next_cursor"]}
    assert api.client.get(lines, params=asked, headers=api.headers()).status_code == 400
