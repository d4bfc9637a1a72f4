"""The soak's books: what it strikes, what counts as training, and whatever was left behind is found."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from local.soak import guide
from local.soak.books import Leftovers, effective_ratio, text_of
from local.soak.faults import SOAK_FAULTS, in_turn
from local.soak.guide import Soak
from local.tour.world import World
from muster.client.rest import RestClient
from tests.local.test_tour import world_of
from tests.waiting import wait_until

LISTENER = "import socket, sys; s = socket.create_server(('127.0.0.1', 0)); print(1, flush=True); sys.stdin.read()"


@pytest.fixture
def shared_memory(tmp_path: Path) -> Path:
    folder = tmp_path / "shm"
    folder.mkdir()
    return folder


@pytest.fixture
def world(tmp_path: Path) -> World:
    return world_of(RestClient("http://127.0.0.1:1", "mst_test"), tmp_path)[0]


@pytest.fixture
def groups(tmp_path: Path) -> Path:
    folder = tmp_path / "cgroup"
    folder.mkdir()
    return folder


@pytest.fixture
def leftovers(world: World, shared_memory: Path, groups: Path) -> Leftovers:
    return Leftovers(world, shared_memory=shared_memory, groups_below=[groups])


@contextmanager
def running(program: str, folder: Path, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", program, str(folder)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env={**os.environ, **variables}, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_each_kind_comes_once_a_round_in_an_order_that_the_seed_gives() -> None:
    rounds = [list(islice(in_turn(seed), 3 * len(SOAK_FAULTS))) for seed in (1, 1, 2)]
    assert rounds[0] == rounds[1] != rounds[2]
    for begin in range(0, 3 * len(SOAK_FAULTS), len(SOAK_FAULTS)):
        assert sorted(rounds[0][begin : begin + len(SOAK_FAULTS)]) == sorted(SOAK_FAULTS)


def test_only_the_steps_that_counted_are_effective() -> None:
    steps: list[dict[str, Any]] = [{"step_s": 2.0}, {"step_s": None}, {"step_s": 3.0}]
    assert effective_ratio(steps, submitted_s=100.0, ended_s=110.0) == 0.5


def test_a_short_soak_has_room_for_a_fault() -> None:
    assert Soak(0.1, 1).steps == 120


def test_a_soak_lasts_as_long_as_was_requested_even_where_no_fault_costs_time() -> None:
    asked = Soak(30, 1)
    assert asked.steps * guide.USUAL_STEP_S > 60 * asked.minutes - 1


def test_nothing_left_is_nothing_found(leftovers: Leftovers) -> None:
    found = leftovers.found()
    assert set(found) == {"processes", "ports", "folders", "shared memory", "descriptors", "groups"}
    assert what_is_left(leftovers) == {}
    assert text_of(found) == "no process, port, folder, shared memory, descriptor or group"


def what_is_left(leftovers: Leftovers) -> dict[str, list[str]]:
    """Of the kinds of which there is something."""
    return {kind: which for kind, which in leftovers.found().items() if which}


def test_a_program_of_an_attempt_is_found(leftovers: Leftovers, tmp_path: Path) -> None:
    program = "import sys; print(1, flush=True); sys.stdin.read()"
    with running(program, tmp_path, MUSTER_ATTEMPT_ID="att_left") as process:
        assert what_is_left(leftovers) == {"processes": [str(process.pid)]}
        assert text_of(leftovers.found()) == f"processes: {process.pid}"


def test_a_port_that_none_closed_is_found(leftovers: Leftovers, tmp_path: Path) -> None:
    with running(LISTENER, tmp_path):
        left = what_is_left(leftovers)
        assert (set(left), len(left["ports"])) == ({"ports"}, 1)
    wait_until(lambda: what_is_left(leftovers) == {})


def test_a_strangers_port_is_none_of_it(leftovers: Leftovers) -> None:
    with socket.create_server(("127.0.0.1", 0)):
        assert what_is_left(leftovers) == {}


def test_folders_of_attempts_and_of_unfinished_saves_are_found(leftovers: Leftovers, tmp_path: Path) -> None:
    left = [
        tmp_path / "hosts" / "h100-1" / "attempts" / "att_left",
        tmp_path / "checkpoints" / "job_1" / "step-00000005" / ".gen-7.partial",
    ]
    for path in left:
        path.mkdir(parents=True)
    assert what_is_left(leftovers) == {"folders": [str(path) for path in left]}


def test_a_file_of_an_attempt_that_another_still_holds_is_found(leftovers: Leftovers, tmp_path: Path) -> None:
    path = tmp_path / "hosts" / "h100-1" / "attempts" / "att_left" / "train.jsonl"
    path.parent.mkdir(parents=True)
    path.touch()
    holds = f"import sys; held = open({str(path)!r}); print(1, flush=True); sys.stdin.read()"
    with running(holds, tmp_path) as process:
        shutil.rmtree(path.parent)
        assert what_is_left(leftovers) == {"descriptors": [f"{path} (deleted) of process {process.pid}"]}


def test_shared_memory_that_none_holds_is_found(leftovers: Leftovers, shared_memory: Path) -> None:
    path = shared_memory / "torch_7"
    (shared_memory / "PostgreSQL.7").touch()  # as one leaves it that was killed
    with path.open("wb") as held:
        held.write(b"left")
        held.flush()
        assert what_is_left(leftovers) == {}, "it is in use"
    assert what_is_left(leftovers) == {"shared memory": [str(path)]}


def test_a_group_of_the_kernels_in_which_none_lives_is_found(leftovers: Leftovers, groups: Path) -> None:
    left, lived_in = (groups / f"muster-att_{name}-node_1" for name in ("left", "another"))
    for group, members in ((left, ""), (lived_in, "17\n")):
        group.mkdir()
        (group / "cgroup.procs").write_text(members, encoding="ascii")
    assert what_is_left(leftovers) == {"groups": [str(left)]}


def test_what_never_goes_is_counted_by_its_kind_and_not_taken_for_gone(
    world: World, leftovers: Leftovers, shared_memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guide, "GONE_WITHIN_S", 0.0)
    (shared_memory / "psm_left").touch()
    (tmp_path / "hosts" / "h100-1" / "attempts" / "att_left").mkdir(parents=True)
    found = guide.what_is_left(world, leftovers)
    assert {kind: len(which) for kind, which in found.items() if which} == {"folders": 1, "shared memory": 1}
    assert world.teller.checks == []
