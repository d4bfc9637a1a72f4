"""``muster run`` of programs without the runtime that use the processor: a dead loop ends as a hang, work does not."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.domain.policy.watch import KnownLimits, WatchPolicy
from tests.workers.host.burial import bury
from tests.workers.local.runs import Runs
from workers.local import hangs, local_run

BARE = Path(__file__).with_name("bare_program.py")
POLICY = WatchPolicy(quiet_s=3.0, busy_quiet_s=3.0, known=KnownLimits(step_s=1.0))
SIGNS = """
import os, subprocess, sys, time
def prints():
    print("x", flush=True)
def reads():
    with open("/dev/zero", "rb") as zeros:
        zeros.read(1 << 20)
def begins():
    children.append(subprocess.Popen([sys.executable, "-Sc", "input()"], stdin=subprocess.PIPE))
children = []
for shows in (prints, reads, begins):
    until = time.monotonic() + 4.5
    while time.monotonic() < until:
        shows()
        again = time.monotonic() + 0.25
        while time.monotonic() < again:
            pass
for child in children:
    child.kill()
"""


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runs]:
    monkeypatch.setattr(hangs, "TURN_S", 0.2)
    monkeypatch.setattr(local_run, "HUNG_GRACE_MS", 100)
    yield Runs(tmp_path)
    for folder in tmp_path.rglob("attempts/*/"):
        bury(folder)


def test_of_ranks_without_the_runtime_the_one_in_a_dead_loop_is_named(runs: Runs) -> None:
    """The other rank waits for it in a collective over gloo."""
    program = {"script": str(BARE), "args": ["spins"], "python": sys.executable}
    ended = runs.run(program, POLICY, ranks=2, restart={"max_restarts": 0})
    (attempt,) = ended["attempts"]
    assert (ended["state"], attempt["cause"], attempt["culprit_rank"]) == ("FAILED", "hang", 1), runs.reported
    (sentence,) = runs.sentences()
    assert sentence.startswith("hang: Rank 1 has used the processor for 3 s without output, I/O, "), sentence
    assert "No progress for 3 s; ending the attempt" in sentence


def test_the_loop_of_a_single_command_holds_the_run_if_its_job_wants_that(runs: Runs) -> None:
    argv = [sys.executable, "-u", "-c", "print('here')\nwhile True: pass"]
    program = {"launcher": "command", "argv": argv}
    ended = runs.run(program, POLICY, on_hang="hold", restart={"max_restarts": 5})
    assert [each["cause"] for each in ended["attempts"]] == ["hang"]
    assert ended["state_reason"].endswith("its rule is to hold")
    (sentence,) = runs.sentences()
    assert sentence.startswith("hang: Rank 0 has used the processor for 3 s without output, I/O, "), sentence


def test_a_program_that_computes_and_prints_reads_or_starts_processes_is_not_accused(runs: Runs) -> None:
    """Each sign lasts longer than the limit, and none of the others shows meanwhile."""
    program = {"launcher": "command", "argv": [sys.executable, "-c", SIGNS]}
    ended = runs.run(program, POLICY, restart={"max_restarts": 0})
    assert (ended["state"], runs.sentences()) == ("SUCCEEDED", []), runs.reported
