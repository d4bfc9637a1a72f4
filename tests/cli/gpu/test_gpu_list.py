"""``muster gpu list``: the server filters, pages are followed, names stay good to type."""

import json
from pathlib import Path
from typing import Any

from tests.cli.command import Command
from tests.recorded_server import Answer, Requested, serving


def gpu(number: int) -> dict[str, Any]:
    uuid = f"GPU-51300000-0001-4000-8000-{number:012d}"
    return {
        "uuid": uuid,
        "slot_index": number,
        "model": "NVIDIA H100",
        "standing": "SUSPECT",
        "override": None,
        "score": 61.5,
        "node_id": "node_1",
    }


def in_two_pages(requested: Requested, _number: int) -> Answer:
    if "cursor=second" in requested.path:
        return Answer(200, {"items": [gpu(2)], "next_cursor": None})
    return Answer(200, {"items": [gpu(1)], "next_cursor": "second"})


def test_filters_go_to_the_server_and_pages_are_followed(tmp_path: Path) -> None:
    words = ("--standing", "suspect", "--node", "node_1", "--model", "h100", "--below", "70")
    with serving(in_two_pages) as server:
        shown = Command(tmp_path).run("gpu", "list", *words, url=server.url, COLUMNS="80")
        told = Command(tmp_path).run("gpu", "list", "--json", url=server.url)
    assert shown.returncode == 0, shown.stderr
    assert "GPU-51300000-0001..0001" in shown.stdout, "as much as distinguishes it from the GPUs that are not shown"
    assert "GPU-51300000-0001..0002" in shown.stdout
    filters = "standing=SUSPECT&node=node_1&model=h100&below=70.0"
    assert [asked.path for asked in server.requested[:2]] == [
        f"/v1/gpus?{filters}",
        f"/v1/gpus?{filters}&cursor=second",
    ]
    assert [item["uuid"] for item in json.loads(told.stdout)] == [gpu(1)["uuid"], gpu(2)["uuid"]]


def test_none_is_stated_by_what_was_requested(tmp_path: Path) -> None:
    with serving(lambda _asked, _number: Answer(200, {"items": [], "next_cursor": None})) as server:
        assert Command(tmp_path).run("gpu", "list", url=server.url).stdout == "No GPUs are enrolled.\n"
        narrow = Command(tmp_path).run("gpu", "list", "--below", "5", url=server.url)
    assert narrow.stdout == "No GPU is like that.\n"


def test_place_holder_and_order_go_to_the_server(tmp_path: Path) -> None:
    words = (
        "--rack",
        "r1",
        "--label",
        "zone",
        "--label",
        "gen=2",
        "--tenant",
        "ten_1",
        "--tier",
        "spot",
        "--order",
        "score",
    )
    with serving(in_two_pages) as server:
        shown = Command(tmp_path).run("gpu", "list", *words, url=server.url)
    assert shown.returncode == 0, shown.stderr
    assert server.requested[0].path == "/v1/gpus?rack=r1&label=zone&label=gen%3D2&tenant_id=ten_1&tier=spot&order=score"
