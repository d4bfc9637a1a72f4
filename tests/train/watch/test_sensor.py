"""The sensor's thread: what it reports, what it answers, and what it leaves alone."""

import io
import json
import os
import select
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load as load_checkpoint
from torch.distributed.checkpoint.state_dict_saver import save as save_checkpoint
from torch.utils.data import DataLoader, Dataset

from muster.train.runtime.environment import Environment
from muster.train.watch import activity, sensor
from muster.train.watch.activity import Activity
from muster.train.watch.sensor import Sensor
from muster.train.watch.stacks import Glance


class Supervisor:
    """The other end of the socket."""

    def __init__(self, folder: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self.path = str(folder / "w")
        self._listener.bind(self.path)
        self._listener.listen()
        self._content = b""

    def accept(self) -> None:
        self.channel, _ = self._listener.accept()

    def next(self, kind: str) -> dict[str, Any]:
        while True:
            line, found, rest = self._content.partition(b"\n")
            if found:
                self._content = rest
                message: dict[str, Any] = json.loads(line)
                if message["type"] == kind:
                    return message
                continue
            assert select.select([self.channel], [], [], 60)[0], f"no {kind} came"
            self._content += self.channel.recv(1 << 16)

    def close(self) -> None:
        self.channel.close()
        self._listener.close()


@pytest.fixture
def supervisor(short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervisor]:
    monkeypatch.setattr(sensor, "REPORT_EVERY_S", 0.01)
    supervisor = Supervisor(short_folder)
    yield supervisor
    supervisor.close()
    for thread in threading.enumerate():
        if thread.name == "muster-watch":
            thread.join(60)  # it ends with its connection


def started(supervisor: Supervisor, state: Activity) -> Sensor:
    around = cast("Environment", SimpleNamespace(rank=3, world_size=4))
    found = Sensor(supervisor.path, around, state)
    supervisor.accept()
    return found


def test_it_reports_changes_alone(supervisor: Supervisor) -> None:
    state = Activity()
    started(supervisor, state)
    hello = supervisor.next("hello")
    assert (hello["rank"], hello["world_size"], hello["stack_file"]) == (3, 4, "stack-3.txt")
    assert supervisor.next("progress")["phase"] == "start"
    state.begin_steps(7)
    state.end_step(8)
    found = supervisor.next("progress")
    while found["step"] != 8:
        found = supervisor.next("progress")
    assert (found["phase"], found["is_declared"]) == ("step", False)


def test_it_answers_with_the_stack_of_the_main_thread(supervisor: Supervisor) -> None:
    state = Activity()
    started(supervisor, state)
    with state.agreeing("max"):
        supervisor.channel.sendall(b'{"type": "collect", "id": 5}\n')
        found = supervisor.next("stack")
    assert found["id"] == 5
    name = "test_it_answers_with_the_stack_of_the_main_thread"
    own = next(each for each in found["frames"] if each["function"] == name)
    assert own["file"].endswith("test_sensor.py")
    assert own["line"] > 0
    (entry,) = [each for each in found["collectives"] if each["source"] == "muster"]
    assert (entry["sequence"], entry["operation"], entry["state"]) == (1, "max", "scheduled")


def test_the_stack_shows_the_phase_that_nothing_declares() -> None:
    namespace: dict[str, Any] = {}
    for name, file in (
        ("load", "/x/torch/utils/data/dataloader.py"),
        ("compiled", "/x/torch/_dynamo/convert_frame.py"),
    ):
        exec(compile(f"def {name}(look): return look()", file, "exec"), namespace)  # noqa: S102  # of that file's name

    def evaluate() -> Glance:
        return Glance()

    def trains() -> Glance:
        return Glance()

    assert trains().phase is None
    assert evaluate().phase == activity.EVALUATION
    assert namespace["load"](Glance).phase == activity.DATA
    assert namespace["compiled"](Glance).phase == activity.COMPILE
    assert trains().functions != evaluate().functions


class Glancing(io.BytesIO):
    """A file that reads the stack while a program writes or reads it."""

    def __init__(self, content: bytes = b"") -> None:
        super().__init__(content)
        self.shown: list[str | None] = []

    def write(self, content: Any) -> int:
        self.shown.append(Glance().phase)
        return super().write(content)

    def read(self, size: int | None = -1) -> bytes:
        self.shown.append(Glance().phase)
        return super().read(size)


def test_a_save_or_load_of_the_programs_own_is_one() -> None:
    saved = Glancing()
    torch.save({"weight": torch.ones(3)}, saved)
    assert set(saved.shown) == {activity.SAVE}
    loaded = Glancing(saved.getvalue())
    torch.load(loaded)
    assert set(loaded.shown) == {activity.RESTORE}

    class Samples(Dataset[torch.Tensor]):
        def __getitem__(self, _: int) -> torch.Tensor:
            sample = Glancing(saved.getvalue())
            weight: torch.Tensor = torch.load(sample)["weight"]
            assert set(sample.shown) == {activity.DATA}  # the file of a sample
            return weight

        def __len__(self) -> int:
            return 1

    assert len(list(DataLoader(Samples()))) == 1


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_distributed_checkpoint_of_the_programs_own_is_a_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str | None] = []
    for owner, name in ((FileSystemWriter, "write_data"), (FileSystemReader, "read_data")):
        monkeypatch.setattr(owner, name, recording(shown, getattr(owner, name)))
    state = {"weight": torch.ones(3)}
    save_checkpoint(state, checkpoint_id=str(tmp_path / "saved"), no_dist=True)
    load_checkpoint(state, checkpoint_id=str(tmp_path / "saved"), no_dist=True)
    assert shown == [activity.SAVE, activity.RESTORE]


def recording(shown: list[str | None], method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method, which first notes the phase that the stack shows."""

    def run(*words: Any, **named: Any) -> Any:
        shown.append(Glance().phase)
        return method(*words, **named)

    return run


@pytest.mark.parametrize("is_in_the_loop", [True, False])
def test_a_save_is_reported_within_the_loop_alone(supervisor: Supervisor, *, is_in_the_loop: bool) -> None:
    state = Activity()
    if is_in_the_loop:
        state.begin_steps(0)
    found = started(supervisor, state)

    class Reporting(io.BytesIO):
        def write(self, content: Any) -> int:
            state.tick()
            found.report()
            return super().write(content)

    torch.save({"weight": torch.ones(3)}, Reporting())
    state.end_step(9)
    phases = set()
    while (reported := supervisor.next("progress"))["step"] != 9:
        phases.add(reported["phase"])
    assert (activity.SAVE in phases) == is_in_the_loop


def test_a_main_function_with_the_name_of_an_evaluation_shows_none() -> None:
    def trains() -> Glance:
        return Glance(train_and_eval.__code__)

    def evaluate() -> Glance:
        return trains()

    def train_and_eval(inner: Callable[[], Glance]) -> Glance:
        return inner()

    def main_valid(inner: Callable[[], Glance]) -> Glance:
        return train_and_eval(inner)

    assert main_valid(trains).phase is None
    assert main_valid(evaluate).phase == activity.EVALUATION


def test_a_supervisor_that_offers_no_socket_costs_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MUSTER_WATCH_SOCKET", raising=False)
    before = threading.active_count()
    sensor.start(Environment())
    assert threading.active_count() == before


@pytest.mark.parametrize("place", ["kept", "missing", "own"])
def test_nccl_takes_requests_for_its_dump_where_its_folder_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Torch ends a process that cannot make its pipe, such as one in a container of its own."""
    monkeypatch.setenv("MUSTER_WATCH_SOCKET", str(tmp_path / "none"))
    monkeypatch.setattr(sensor, "Sensor", lambda *_: object())
    monkeypatch.setattr(sensor, "_sensors", [])
    record, name = str(tmp_path / "flight" / "rank_"), "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
    monkeypatch.setenv("TORCH_FR_DUMP_TEMP_FILE", record)
    monkeypatch.setenv(name, "/own/rank_")
    if place != "own":
        monkeypatch.delenv(name)
    if place != "missing":
        (tmp_path / "flight").mkdir()
    sensor.start(cast("Environment", SimpleNamespace(rank=3, world_size=4)))
    assert os.environ.get(name) == {"kept": record, "missing": None, "own": "/own/rank_"}[place]
