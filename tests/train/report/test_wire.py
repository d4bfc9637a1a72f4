"""The socket to the supervisor: never in training's way, whether or not a process is at the other end."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.train.report import wire
from muster.train.report.wire import Channel


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        yield listener


def test_words_go_out_and_orders_come_in(listener: socket.socket) -> None:
    channel = Channel(listener.getsockname())
    supervisor, _ = listener.accept()
    with supervisor:
        channel.send("step", step=1, loss=0.5)
        assert json.loads(supervisor.recv(4096)) == {"type": "step", "step": 1, "loss": 0.5}
        assert channel.dropped_lines == 0
        assert channel.receive() == []
        supervisor.sendall(b'{"type": "stop", "reason": "reclaim"}\nnonsense\n[1]\n{"type": "chec')
        supervisor.sendall(b'kpoint_now"}\n')
        assert channel.receive() == [{"type": "stop", "reason": "reclaim"}, {"type": "checkpoint_now"}]
    channel.close()


def test_none_at_the_other_end_is_no_fault(tmp_path: Path) -> None:
    for path in (None, str(tmp_path / "nobody")):
        channel = Channel(path)
        channel.send("step", step=1)
        assert channel.dropped_lines == 1
        assert channel.receive() == []
        channel.close()


def test_one_that_never_reads_blocks_nothing(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_LAST_WORDS_S", 0.1)
    channel = Channel(listener.getsockname())
    supervisor, _ = listener.accept()
    for number in range(20_000):
        channel.send("step", step=number, text="x" * 200)
    assert channel.dropped_lines > 0
    dropped = channel.dropped_lines
    channel.send("outcome", exit="done")
    assert channel.dropped_lines == dropped, "steps leave room for what matters more"
    channel.close()
    supervisor.close()


def test_one_that_goes_away_is_not_missed(listener: socket.socket) -> None:
    channel = Channel(listener.getsockname())
    listener.accept()[0].close()
    for number in range(10):
        channel.send("step", step=number)
    assert channel.receive() == []
    channel.close()


def test_a_full_backlog_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_CONNECT_S", 0.1)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen(0)
        channels = [Channel(str(tmp_path / "s")) for _ in range(4)]
    for channel in channels:
        channel.send("step", step=1)
        channel.close()


def test_a_long_word_is_cut(listener: socket.socket) -> None:
    channel = Channel(listener.getsockname())
    supervisor, _ = listener.accept()
    with supervisor:
        channel.send("outcome", exit="failed", message="x" * 10_000)
        assert len(json.loads(supervisor.recv(20_000))["message"]) == wire.LONGEST_TEXT
    channel.close()
