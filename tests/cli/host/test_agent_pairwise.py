"""``muster agent pairwise``, as real processes: a whole check by hand, and what it says to a slip of the hand."""

import json
import os
import re
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from muster.cli.framework.exits import Exit
from tests.cli.command import Command
from tests.train.marks import TRAINS

NEEDS_TORCH = TRAINS[-1]
WORDS = [sys.executable, "-m", "muster", "agent", "pairwise"]


@contextmanager
def lead(folder: Path, *more: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """The process that leads, and where it does."""
    with subprocess.Popen(
        [*WORDS, "lead", "--listen", "127.0.0.1:0", *more],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            assert select.select([process.stderr], [], [], 200)[0], "it does not lead"
            found = re.search(r"leads at port (\d+), run (\S+),", process.stderr.readline())
            assert found is not None
            yield process, f"127.0.0.1:{found[1]} --run {found[2]}"
        finally:
            process.kill()


@NEEDS_TORCH
@pytest.mark.timeout(900)
def test_two_hosts_meet_and_all_that_was_found_is_reported(tmp_path: Path) -> None:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    options = ("--hosts", "gpu-01,gpu-02", "--size", "64KiB", "--round-time", "200s", "--device", "cpu", "--json")
    with lead(tmp_path, *options) as (leading, there):
        joined = [
            subprocess.Popen(
                [*WORDS, "join", *there.split(), "--name", name], cwd=tmp_path, env=environment, stdout=subprocess.PIPE
            )
            for name in ("gpu-01", "GPU-02")
        ]
        said = [process.communicate(timeout=400)[0].decode() for process in joined]
        document = json.loads(leading.communicate(timeout=100)[0])
    assert said == ["gpu-01: cleared\n", "gpu-02: cleared\n"]
    assert [leading.returncode, *(process.returncode for process in joined)] == [0, 0, 0]
    assert document["is_good"]
    assert document["device"] == "cpu"
    assert document["is_speed_compared"] is False
    assert [(each["host"], each["verdict"]) for each in document["hosts"]] == [
        ("gpu-01", "cleared"),
        ("gpu-02", "cleared"),
    ]
    assert document["rounds"][0][0]["rate_bytes_per_s"] > 0


@pytest.mark.timeout(400)
def test_none_came_is_a_finding(muster: Command) -> None:
    said = muster.run("agent", "pairwise", "lead", "--hosts", "a,b", "--listen", "127.0.0.1:0", "--wait", "1s")
    assert said.returncode == Exit.FAILED
    assert [line.split()[:2] for line in said.stdout.splitlines()[1:3]] == [["a", "ABSENT"], ["b", "ABSENT"]]
    assert "did not come within 1 s: a, b" in said.stderr


def test_no_lead_is_stated(muster: Command) -> None:
    said = muster.run("agent", "pairwise", "join", "127.0.0.1:1", "--run", "some-run", "--wait", "1s")
    assert said.returncode == Exit.UNREACHABLE
    assert "no lead at 127.0.0.1:1" in said.stderr


@pytest.mark.parametrize(
    ("words", "names"),
    [
        pytest.param(("lead", "--hosts", "a"), "--hosts: a check needs at least two hosts", id="one host"),
        pytest.param(("lead", "--hosts", "a,b,a"), "--hosts: a is named twice", id="twice"),
        pytest.param(("lead", "--hosts", "a,b c"), "--hosts: 'b c' is no host's name", id="no name"),
        pytest.param(("lead", "--hosts", "a,b", "--run", "x"), "--run 'x': must be 4 to 64", id="short run"),
        pytest.param(("lead", "--hosts", "a,b", "--listen", "here"), "--listen 'here': must be", id="no address"),
        pytest.param(("lead", "--hosts", "a,b", "--listen", "256.0.0.1:1"), "--listen 256.0.0.1:1: ", id="not ours"),
        pytest.param(("lead", "--hosts", "a,b", "--size", "8GiB"), "--size 8GiB: must be", id="too large"),
        pytest.param(("lead", "--hosts", "a,b", "--round-time", "0s"), "--round-time 0s: must be", id="no time"),
        pytest.param(("join", "there:99999", "--run", "some-run"), "LEAD 'there:99999': must be", id="no port"),
        pytest.param(
            ("join", "a:1", "--run", "some-run", "--name", "ä"), "--name 'ä': a host's name", id="no such name"
        ),
    ],
)
def test_a_slip_of_the_hand_is_named(muster: Command, words: tuple[str, ...], names: str) -> None:
    said = muster.run("agent", "pairwise", *words)
    assert said.returncode == Exit.USAGE, said.stderr
    assert names in said.stderr
    assert "Traceback" not in said.stderr
