"""``muster job ranks`` names the figures by which a rank stands out from ranks of equal work."""

import json
from collections.abc import Mapping
from typing import Any

from tests.cli.command import JOB, Command
from tests.recorded_server import Answer, Requested, serving

AT = "2026-11-21T04:00:00Z"


def rank(number: int, **pace: object) -> dict[str, Any]:
    known: dict[str, Any] = {"rank": number, "step": 60, "loss": 2.0, "step_s": 0.75, "outcome": None, "warnings": {}}
    ids = {"attempt_id": "att_1", "node_id": "node_1", "world_size": 4}
    return {**known, **ids, "updated_at": AT, "pace": {"own_s": 0.5, "wait_s": 0.25, **pace}}


def served(ranks: list[dict[str, Any]], layout: Mapping[str, int] | None, requested: list[str]) -> Any:
    def answer(request: Requested, _number: int) -> Answer:
        requested.append(request.path)
        if "/training/ranks" in request.path:
            return Answer(200, {"items": ranks, "next_cursor": None})
        return Answer(200, {**JOB, "spec": {"layout": layout}})

    return serving(answer)


def test_the_odd_rank_is_marked_by_its_figures_and_named_in_a_sentence(muster: Command) -> None:
    ranks = [rank(number) for number in range(4)]
    ranks[2]["pace"] |= {"own_s": 0.75, "wait_s": 0.0}
    requested: list[str] = []
    with served(ranks, None, requested) as server:
        shown = muster.run("job", "ranks", JOB["id"], url=server.url).stdout
        document = muster.run("job", "ranks", JOB["id"], "--json", url=server.url).stdout
    header, *rows = shown.splitlines()
    assert "STANDS OUT BY" in header
    assert [("own_s, wait_s" in row) for row in rows[:4]] == [False, False, True, False]
    assert "Rank 2 stands out by own_s: 0.75, where ranks of equal work have 0.5." in shown
    assert [item["stands_out_by"] for item in json.loads(document)] == [[], [], ["own_s", "wait_s"], []]


def test_ranks_of_different_places_of_the_layout_are_not_compared(muster: Command) -> None:
    ranks = [rank(number, own_s=0.25 if number < 4 else 0.75) for number in range(8)]
    requested: list[str] = []
    with served(ranks, {"pp": 2, "fsdp": 4}, requested) as server:
        shown = muster.run("job", "ranks", JOB["id"], url=server.url).stdout
    assert "stands out by" not in shown
    assert len(requested) == 2, "the layout is read once"
    ranks[5]["pace"]["own_s"] = 1.5
    with served(ranks, {"pp": 2, "fsdp": 4}, requested) as server:
        assert "Rank 5 stands out by own_s: 1.5" in muster.run("job", "ranks", JOB["id"], url=server.url).stdout


def test_the_layout_is_not_requested_where_ranks_report_their_place_or_are_too_few(muster: Command) -> None:
    for ranks in ([rank(n, place="data ranks of 0") for n in range(4)], [rank(0), rank(1, own_s=5.0)]):
        requested: list[str] = []
        with served(ranks, None, requested) as server:
            shown = muster.run("job", "ranks", JOB["id"], url=server.url).stdout
        assert "stands out by" not in shown
        assert [path.partition("?")[0].rpartition("/")[2] for path in requested] == ["ranks"]
