"""Output of the tour: the expected and the seen result, the log to read, and the guaranteed times."""

import io
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from local.hosts import simulated_hosts
from local.tour import guide
from local.tour.memory import MemoryWatch
from local.tour.output import InterruptedTourError, StepFailedError, Teller
from local.tour.world import EventLog, World, training
from muster.client.rest import RestClient
from muster.client.transport import UnreachableError
from tests.recorded_server import Answer, serving


def world_of(client: RestClient, folder: Path) -> tuple[World, io.StringIO]:
    said = io.StringIO()
    teller = Teller(Console(file=said, width=100))
    hosts = tuple(simulated_hosts(["h100", "h100", "a100"], 2, folder / "hosts"))
    (folder / "logs").mkdir()
    world = World(
        client,
        client,
        EventLog(client),
        teller,
        folder,
        folder / "faults.json",
        3.0,
        5.0,
        hosts,
        {},
        {},
        threading.Event(),
    )
    return world, said


@pytest.fixture
def nowhere() -> RestClient:
    return RestClient("http://127.0.0.1:1", "mst_test")


def test_what_does_not_come_about_is_stated_with_what_was_seen_and_which_log_to_read(
    nowhere: RestClient, tmp_path: Path
) -> None:
    world, said = world_of(nowhere, tmp_path)
    world.teller.stage(3, "title", "why")
    with pytest.raises(StepFailedError) as caught:
        world.until("ten GPUs", lambda: 7, lambda n: n == 10, seen=lambda n: f"{n} GPUs", log="api", patience_s=0.3)
    world.teller.failed(caught.value)
    words = said.getvalue()
    assert "not held (step 3)" in words
    assert "expected  ten GPUs within 0 s" in words
    assert "seen      7 GPUs" in words
    assert f"read      {tmp_path / 'logs' / 'api.log'}" in words


def test_a_control_plane_that_is_away_for_a_moment_is_queried_again(nowhere: RestClient, tmp_path: Path) -> None:
    world, _ = world_of(nowhere, tmp_path)
    answers: list[Any] = [UnreachableError("away"), UnreachableError("away"), 3]

    def check() -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return int(answer)

    assert world.until("three", check, lambda n: n == 3, seen=str, log="api", patience_s=10) == 3


def test_ctrl_c_ends_a_wait_at_once(nowhere: RestClient, tmp_path: Path) -> None:
    world, _ = world_of(nowhere, tmp_path)
    world.stop.set()
    with pytest.raises(InterruptedTourError):
        world.until("never", lambda: 0, lambda _: False, seen=str, log="api")


def test_a_refusal_of_the_control_plane_ends_the_tour_as_not_on_hold(tmp_path: Path) -> None:
    with serving(lambda _asked, _number: Answer(404, {"title": "Gone", "status": 404})) as server:
        client = RestClient(server.url, "mst_test")
        world, said = world_of(client, tmp_path)
        assert not guide.lead(world, "policy/tour.yaml")
    assert "seen      the server answered 404" in said.getvalue()
    assert str(tmp_path / "logs" / "api.log") in said.getvalue().replace("\n", "")


def test_only_guarantees_decide_and_every_bar_is_shown(tmp_path: Path) -> None:
    said = io.StringIO()
    teller = Teller(Console(file=said, width=100))
    teller.measured("the whole tour", 300.0, 240.0)
    assert teller.summary()
    assert "NO" in said.getvalue()
    teller.measured("driver's event → QUARANTINED", 2.5, 2.0, is_required=True)
    assert not teller.summary()


def test_events_are_read_once_and_in_order(tmp_path: Path) -> None:
    event = {"at": "2026-01-01T00:00:00Z", "kind": "gpu.quarantined", "subject_id": "GPU-1"}
    pages = {"0": [{**event, "position": 1}, {**event, "position": 2}], "2": [{**event, "position": 3}]}

    def answer(requested: Any, _number: int) -> Answer:
        after = requested.path.split("after=")[1].split("&")[0]
        items = pages.pop(after, [])
        return Answer(200, {"items": items, "next_after": items[-1]["position"] if items else int(after)})

    with serving(answer) as server, RestClient(server.url, "mst_test") as client:
        log = EventLog(client)
        assert [each["position"] for each in log.since(0)] == [1, 2, 3]
        assert [each["position"] for each in log.since(0)] == [1, 2, 3]
        assert log.since(time.time()) == []


def test_memory_counts_the_processes_of_the_stack_alone(tmp_path: Path) -> None:
    watch = MemoryWatch(tmp_path)
    watch.start()
    assert watch.close() == 0.0


def test_hosts_of_one_model_share_a_rack_and_no_gpu(tmp_path: Path) -> None:
    hosts = simulated_hosts(["h100", "h100", "a100"], 8, tmp_path)
    assert [(host.name, host.rack) for host in hosts] == [
        ("h100-1", "rack-1"),
        ("h100-2", "rack-1"),
        ("a100-1", "rack-2"),
    ]
    assert len({host.seed for host in hosts}) == 3


def test_the_tours_jobs_ask_for_one_rack_and_carry_its_label() -> None:
    spec = training("one", steps=5, nodes=2, gpus_per_node=6, ranks_per_node=2, tier="spot")
    assert (spec["topology"], spec["labels"], spec["tier"]) == ({"required": "rack"}, {"tour": "yes"}, "spot")


def test_what_a_program_stated_is_reported_as_it_stands_whatever_brackets_it_has(tmp_path: Path) -> None:
    world, _ = world_of(RestClient("http://127.0.0.1:1", "mst_test"), tmp_path)
    words = "rank 0: [/__w/pytorch/third_party/gloo/pair.cc:537] closed"
    world.teller.passed("its proof is shown", words)
    world.teller.failed(StepFailedError("nothing", words, tmp_path))
    world.teller.summary()
    assert words in [check.seen for check in world.teller.checks]
