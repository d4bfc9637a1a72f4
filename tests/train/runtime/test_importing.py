"""A rank that gets a stop before ``train.start`` leaves with its exit class and a word, whatever it waits in."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.train.marks import TRAINS
from tests.train.train_case import HERE, PATIENCE_S, ROOT, Listening, free_port, is_listening, until

pytestmark = TRAINS
PROGRAM = HERE / "importing_program.py"
LAUNCHED = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}


@contextmanager
def importing(wait: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """A process of the program, at the place where it is long."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **variables}
    command = [sys.executable, str(PROGRAM), "--wait", wait]
    with subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        while "importing" not in (line := process.stdout.readline()):
            assert line, "the program ended before it was long"
            assert "child" not in line or line == f"child ended by {int(signal.SIGTERM)}\n"
        try:
            yield process
        finally:
            process.kill()


def ended(process: subprocess.Popen[str]) -> int:
    process.send_signal(signal.SIGTERM)
    return process.wait(PATIENCE_S)


@pytest.mark.parametrize("wait", ["import", "torch", "child"])
def test_a_signal_before_the_start_ends_the_rank_with_76_and_a_word(tmp_path: Path, wait: str) -> None:
    """In ``torch`` no handler of Python's runs; the ``child`` is forked, and gets the signal before its parent."""
    port = free_port()
    with Listening(tmp_path / "s") as supervisor:
        told = {**LAUNCHED, "MASTER_PORT": str(port), "MUSTER_TRAIN_SOCKET": str(supervisor.path)}
        with importing(wait, **told) as process:
            if wait == "torch":
                until(lambda: is_listening(port), "meeting of the ranks")
            assert process.poll() is None
            assert ended(process) == 76
    assert [said["type"] for said in supervisor.reported] == ["hello", "outcome"]
    assert supervisor.reported[0]["rank"] == 0
    assert (supervisor.reported[1]["exit"], supervisor.reported[1]["step"]) == ("stopped_without", 0)
    assert supervisor.reported[1]["message"] == "SIGTERM before train.start"


def test_without_a_launcher_the_signal_has_its_usual_action() -> None:
    with importing("import") as process:
        assert ended(process) == -signal.SIGTERM


def test_what_a_rank_has_started_is_no_rank() -> None:
    with importing("import", **LAUNCHED, MUSTER_TRAIN_RANK_PID=str(os.getpid())) as process:
        assert ended(process) == -signal.SIGTERM


def test_a_program_with_a_handler_of_its_own_keeps_it() -> None:
    with importing("own", **LAUNCHED) as process:
        assert ended(process) == 3
