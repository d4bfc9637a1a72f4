"""The sensors' socket at the supervisor: what it writes of the ranks, however they behave."""

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from workers.host.supervisor import files
from workers.host.supervisor.record import watch_socket
from workers.host.supervisor.record.rank_socket import LONGEST_LINE
from workers.host.supervisor.record.watch_socket import WatchSocket
from workers.host.supervisor.user.redaction import Redactor


@pytest.fixture
def sensors(short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WatchSocket]:
    monkeypatch.setattr(watch_socket, "WRITE_EVERY_NS", 0)
    sensors = WatchSocket(short_folder, short_folder / "w", {0, 1}, Redactor([b"secret-value"]))
    yield sensors
    sensors.close()


@pytest.fixture
def rank(sensors: WatchSocket) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as rank:
        rank.connect(str(sensors.path))
        yield rank


def send(rank: socket.socket, sensors: WatchSocket, *messages: dict[str, Any]) -> None:
    rank.sendall(b"".join(json.dumps(message).encode() + b"\n" for message in messages))
    sensors.pump()
    sensors.turn()


def progress(sensors: WatchSocket) -> dict[str, Any]:
    document = files.read_json(sensors.path.parent / files.SENSORS / "progress.json")
    return {} if document is None else dict(document["ranks"])


HELLO = {"type": "hello", "rank": 1, "world_size": 2}
STEP = {"type": "progress", "phase": "step", "step": 4, "ticks": 9, "is_declared": False, "moves": 1, "other": "x" * 99}


def test_the_newest_progress_of_a_rank_is_in_a_file(rank: socket.socket, sensors: WatchSocket) -> None:
    send(rank, sensors, HELLO, STEP)
    found = progress(sensors)["1"]
    assert found["pid"] == os.getpid()
    assert (found["phase"], found["step"], "other" in found) == ("step", 4, False)
    send(rank, sensors, {**STEP, "moves": 2})
    again = progress(sensors)["1"]
    assert again["changed_ns"] == found["changed_ns"]
    assert again["moved_ns"] > found["moved_ns"]
    send(rank, sensors, {**STEP, "ticks": 10})
    assert progress(sensors)["1"]["changed_ns"] > found["changed_ns"]


def test_one_that_is_no_rank_of_this_host_leaves_nothing(rank: socket.socket, sensors: WatchSocket) -> None:
    send(rank, sensors, STEP, {**HELLO, "rank": 7}, STEP)
    assert progress(sensors) == {}


def test_a_stack_is_stored_without_secrets_and_not_at_any_pace(rank: socket.socket, sensors: WatchSocket) -> None:
    frames = [{"function": "secret-value", "file": "a.py", "line": 1}]
    send(rank, sensors, HELLO, *({"type": "stack", "id": number, "frames": frames} for number in range(50)))
    document = files.read_json(sensors.path.parent / files.SENSORS / "stack-1.json")
    assert document is not None
    assert document["stack"] == {"id": 0, "frames": [{"function": "[secret]", "file": "a.py", "line": 1}]}


def test_words_without_sense_end_nothing(rank: socket.socket, sensors: WatchSocket) -> None:
    rank.sendall(b"[1]\n{\n" + b'{"type": "progress", "phase": ' + b"9" * (LONGEST_LINE + 9) + b"}\n")
    send(rank, sensors, HELLO, {"type": "progress", "phase": ["step"], "step": -1, "ticks": "many"})
    assert progress(sensors)["1"]["step"] == -1  # the reader of the file checks the values
    assert "phase" not in progress(sensors)["1"]


@pytest.mark.parametrize("depth", [100, 980, 990, 999])
@pytest.mark.parametrize(("kind", "field"), [("progress", "phase"), ("stack", "frames"), ("hello", "world_size")])
def test_a_message_of_any_depth_ends_nothing(
    rank: socket.socket, sensors: WatchSocket, kind: str, field: str, depth: int
) -> None:
    send(rank, sensors, HELLO)
    deep = b"[" * depth + b"]" * depth
    rank.sendall(b'{"type": "%s", "rank": 1, "%s": %s}\n' % (kind.encode(), field.encode(), deep))
    send(rank, sensors, STEP)
    assert progress(sensors)["1"]["step"] == 4
    assert sensors.dropped_lines == 1


def test_a_request_reaches_every_rank(rank: socket.socket, sensors: WatchSocket) -> None:
    send(rank, sensors, HELLO)
    sensors.report({"type": "collect", "id": 3})
    assert json.loads(rank.recv(4096)) == {"type": "collect", "id": 3}
