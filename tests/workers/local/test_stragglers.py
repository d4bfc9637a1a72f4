"""``muster run`` of ranks of which one is slow: the sentence on the terminal."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.domain.policy.stragglers import StragglerPolicy
from muster.domain.policy.watch import WatchPolicy
from muster.wire.training import Pace
from tests.warm_python import WarmPython
from tests.workers.host.burial import bury
from tests.workers.local.runs import run_job
from watch.stragglers.judge import LONGEST_QUIET
from workers.local.stragglers import LocalStragglers

PROGRAM = Path(__file__).parents[2] / "train" / "straggling_program.py"
NUM_RANKS = 3


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for attempt in tmp_path.rglob("attempts/*/"):
        bury(attempt)


def test_the_fault_slow_is_named_on_the_terminal(folder: Path, warm_python: WarmPython) -> None:
    program = {
        "script": str(PROGRAM),
        "args": ["nothing", "--base-s", "0.05", "--steps", "120"],
        "python": str(warm_python.daemon),
    }
    faults = {"MUSTER_TRAIN_FAULTS": "slow@48-120/1=0.02"}
    watch = WatchPolicy(stragglers=StragglerPolicy(window_s=0.4))
    reported: list[str] = []
    ended = run_job(folder / "run", {**program, "env": faults}, watch, reported.append, ranks=NUM_RANKS)
    assert ended["state"] == "SUCCEEDED", reported
    named = [words for words in reported if words.startswith("straggler: ")]
    assert re.match(r"straggler: Rank 1 computes \d\d% longer than the 2 ranks of its place: ", named[0]), reported
    assert {words.split()[2] for words in named} == {"1"}


class Played:
    """Reports of ranks with windows of 4 steps each."""

    def __init__(self, num_ranks: int = NUM_RANKS, **rules: Any) -> None:
        self.reported: list[str] = []
        self.num_ranks = num_ranks
        self.stragglers = LocalStragglers(StragglerPolicy(window_s=1, **rules), num_ranks, self.reported.append)
        self.step = 0

    def window(self, *own_s: float, **of_last: float) -> None:
        self.step += 4
        for rank, each in enumerate(own_s):
            more = of_last if rank == len(own_s) - 1 else {}
            self.stragglers.take(rank, pace_of(self.step, each, max(own_s) + 0.01 - each, more))


def pace_of(step: int, own_s: float, wait_s: float, more: dict[str, float]) -> Pace:
    parts = dict.fromkeys(("data_s", "forward_s", "backward_s", "collective_s", "optimizer_s"), 0.0)
    figures: dict[str, Any] = {**parts, "other_s": 0.0, "checkpoint_s": 0.0, **more}
    return Pace(step=step, num_steps=4, own_s=own_s, wait_s=wait_s, own_steps=4, **figures)


def test_a_slow_rank_is_reported_once_until_it_is_fast_again() -> None:
    played = Played()
    for _ in range(5):
        played.window(0.3, 0.3, 0.3)
    for _ in range(20):
        played.window(0.3, 0.3, 0.4)
    (sentence,) = played.reported
    assert sentence.startswith("straggler: Rank 2 computes 33% longer than the 2 ranks of its place: 0.400 s a step")
    for _ in range(LONGEST_QUIET + 1):
        assert len(played.reported) == 1
        played.window(0.3, 0.3, 0.3)
    assert played.reported[1:] == ["rank 2 is not slow any more"]


def test_a_rank_that_is_slow_now_and_then_is_reported_once() -> None:
    played = Played()
    for _ in range(5):
        played.window(0.3, 0.3, 0.3)
    for number in range(60):
        played.window(0.3, 0.3, 0.4 if number % 12 < 6 else 0.3)
    assert len(played.reported) == 1


def test_constant_additional_work_is_reported_once_and_accuses_no_rank() -> None:
    played = Played()
    for _ in range(20):
        played.window(0.3, 0.3, 0.4, threads_s=0.1)
    (sentence,) = played.reported
    assert sentence.startswith("imbalance: Rank 2 computes 33% longer than its peers since its first windows, and no")
    assert "(other threads of its process computed 0.100 s a step" in sentence


def test_more_tokens_are_reported_as_imbalance() -> None:
    played = Played()
    for _ in range(8):
        played.step += 4
        for rank, own_s in enumerate((0.3, 0.3, 0.4)):
            more = {"tokens_per_step": 1000.0 * own_s}
            played.stragglers.take(rank, pace_of(played.step, own_s, 0.41 - own_s, more))
    (sentence,) = played.reported
    assert sentence.startswith("imbalance: Rank 2 computes 33% longer than its peers, and has 33% more work")


def test_ranks_that_the_run_does_not_have_are_left_out_and_the_judge_can_be_off() -> None:
    played = Played(num_ranks=2)
    for _ in range(8):
        played.window(0.3, 0.3, 0.9)
    off = Played(is_on=False)
    for _ in range(8):
        off.window(0.3, 0.3, 0.9)
    assert (played.reported, off.reported) == ([], [])
