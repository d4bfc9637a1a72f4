"""The wake-up benchmark ends where its listener does; it hung for days."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import wakeups
from workers.host.wake_socket import WakeupSocket
from workers.wakeup.command import ListenerArguments


def test_a_listener_that_ends_at_once_ends_the_benchmark(tmp_path: Path) -> None:
    wakeup_socket = WakeupSocket(tmp_path / "wakeup.sock")
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"]) as listener:
        listener.wait()
        with pytest.raises(RuntimeError, match="does not answer: exit code 7"):
            wakeups._wake("redis://127.0.0.1:1", wakeup_socket, listener, wakeups=1)
    wakeup_socket.close()


def test_a_listener_reads_what_its_starter_writes() -> None:
    given = ListenerArguments("node_1", Path("/state/wakeup.sock"), 42)
    assert ListenerArguments.read(given.command()[3:]) == given
    with pytest.raises(ValueError, match="not enough values"):
        ListenerArguments.read(given.command()[3:5])
