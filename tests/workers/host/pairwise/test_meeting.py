"""One host's process of one gather: however it ends, the host says why; and what arrives wrong is no success."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.wire.meeting import CANNOT
from tests.train.marks import TRAINS
from tests.waiting import wait_until
from workers.host.pairwise.meeting import Found, meet

from .meet_case import meeting

NEEDS_TORCH = TRAINS[-1]
OTHER_WORDS = """
from muster.train.parallel import pairwise
right = pairwise._pattern
pairwise._pattern = lambda rank, *more: right(rank, *more) + (rank == 1)
pairwise.main()
"""
"""A host that gives other bytes than it should."""


def met(python: str, *, timeout_s: float = 100.0, is_called_off: bool = False) -> Found:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return meet(meeting(timeout_s=timeout_s), python, listening, lambda: is_called_off)


@pytest.fixture
def interpreter(tmp_path: Path) -> Callable[[str], str]:
    """A program in an interpreter's place."""

    def make(script: str) -> str:
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\ncat > /dev/null\n{script}\n")
        path.chmod(0o755)
        return str(path)

    return make


def test_no_interpreter_is_stated() -> None:
    assert met("/nowhere/python").why.startswith("/nowhere/python cannot be started")


def test_an_interpreter_without_torch_is_stated(tmp_path: Path) -> None:
    path = tmp_path / "python"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    path.chmod(0o755)
    why = met(str(path)).why
    assert why.startswith(CANNOT)
    assert "No module named 'torch'" in why


def test_a_crash_is_stated_with_its_last_line(interpreter: Callable[[str], str]) -> None:
    found = met(interpreter("echo 'NCCL WARN no device' >&2; kill -SEGV $$"))
    assert found.why == "its process ended by signal 11: NCCL WARN no device"


def test_a_hang_is_killed_with_all_that_it_started(interpreter: Callable[[str], str], tmp_path: Path) -> None:
    child = tmp_path / "child"
    found = met(interpreter(f"sleep 1000 & echo $! > {child}; wait"), timeout_s=5)
    assert found.why == "it did not end within 5 s"
    wait_until(lambda: is_over(child.read_text().strip()))


def is_over(pid: str) -> bool:
    """A signal takes its time, and its new parent may not have reaped it yet: then it is no more than a name."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_what_is_called_off_ends_before_its_time(interpreter: Callable[[str], str]) -> None:
    assert met(interpreter("sleep 1000"), timeout_s=900, is_called_off=True).why == "called off"


def test_what_is_no_answer_is_stated(interpreter: Callable[[str], str]) -> None:
    assert met(interpreter("echo hello")).why == "its process ended with exit code 0"


@NEEDS_TORCH
@pytest.mark.timeout(400)
def test_bytes_that_arrive_wrong_are_named_by_their_sender() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        common = {"key": "k", "hosts": ["gpu-00", "gpu-01"], "address": "127.0.0.1", "port": port, "device": "cpu"}
        common |= {"gather_bytes": 1024, "num_gathers": 1, "timeout_s": 200}
        orders = [{**common, "rank": 0, "listen_fd": listening.fileno()}, {**common, "rank": 1, "listen_fd": None}]
        programs = [["-m", "muster.train.parallel.pairwise"], ["-c", OTHER_WORDS]]
        processes = [
            subprocess.Popen(
                [sys.executable, *program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=(listening.fileno(),),
                env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
                text=True,
            )
            for program in programs
        ]
        for process, order in zip(processes, orders, strict=True):
            assert process.stdin is not None
            process.stdin.write(json.dumps(order))
            process.stdin.close()
            process.stdin = None
        said = [json.loads(process.communicate(timeout=300)[0]) for process in processes]
    assert said[0] == {"why": "WrongBytesError: what gpu-01 sent is not what arrived"}
