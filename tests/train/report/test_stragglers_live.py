"""Real ranks over gloo, one of which is slow: own compute and waits distinguish it from the others, in any layout."""

import statistics
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from muster.domain.policy.stragglers import StragglerPolicy
from tests.train.marks import TRAINS
from tests.train.train_case import HERE, Listening, Training
from tests.watch.stragglers.worlds import Folded
from watch.stragglers.findings import Judgement
from watch.stragglers.windows import RankWindows

pytestmark = TRAINS
PROGRAM = HERE / "straggling_program.py"
RULES = StragglerPolicy(window_s=0.4)
"""Windows of a few steps: the program's steps are short."""
ONSET = 64
"""The step from which a rank is slow: four windows or more are over."""


def reported_by(training: Training, folder: Path, *arguments: str, num_ranks: int) -> list[list[dict[str, Any]]]:
    """Return what each rank reports of its pace."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(Listening(folder / f"{rank}" / "s")) for rank in range(num_ranks)]
        only = {rank: {"MUSTER_TRAIN_SOCKET": str(each.path)} for rank, each in enumerate(sockets)}
        attempt = training.start(*arguments, num_ranks=num_ranks, program=PROGRAM, only=only)
        assert attempt.ended() == [0] * num_ranks, [rank.errors for rank in attempt.ranks]
    return [each.received("pace") for each in sockets]


def judged(paces: list[list[dict[str, Any]]]) -> tuple[list[Judgement], list[RankWindows]]:
    """Return the judgements as windows of rank 0 end, and the windows."""
    folded = Folded(len(paces), RULES)
    found = []
    of_all = sorted((pace["step"], rank, pace) for rank, told in enumerate(paces) for pace in told)
    for step, rank, pace in of_all:
        if folded.take(rank, step, pace):
            found.append(folded.judgement())
    return found, list(folded.ranks.values())


@pytest.mark.parametrize(
    ("kind", "cause"), [("compute", "compute"), ("data", "data"), ("garbage", "host"), ("thread", "host")]
)
def test_a_slow_rank_of_three_is_named_with_its_cause_within_five_windows(
    training: Training, tmp_path: Path, kind: str, cause: str
) -> None:
    found, ranks = judged(reported_by(training, tmp_path, kind, "--at", str(ONSET), "--steps", "160", num_ranks=3))
    named = [each for judgement in found for each in judgement.stragglers]
    assert {each.rank for each in named} == {1}, ranks
    size = max(each.size for each in found if each.last_step <= ONSET)  # a rank that slows much gets smaller windows
    assert named[0].last_step <= ONSET + 6 * size, named  # reports overlap the onset in one of them
    assert named[-1].cause == cause, (named[-1], ranks)


def test_a_rank_that_shares_its_processor_with_busy_processes_is_named_with_its_host(
    training: Training, tmp_path: Path
) -> None:
    options = ("cpu", "--at", str(ONSET), "--steps", "144", "--base-s", "0.06", "--busy-s", "0.04")
    found, ranks = judged(reported_by(training, tmp_path, *options, num_ranks=3))
    named = [each for judgement in found for each in judgement.stragglers]
    assert {each.rank for each in named} == {1}, ranks
    assert named[-1].cause == "host", (named[-1], ranks)
    assert any(words.startswith("ready without a processor for ") for words in named[-1].evidence), named[-1]


@pytest.mark.parametrize(("layout", "num_ranks"), [("ddp", 2), ("fsdp", 2), ("own", 2), ("tensor", 4)])
def test_the_wait_for_a_slow_rank_is_no_own_compute_in_any_layout(
    training: Training, tmp_path: Path, layout: str, num_ranks: int
) -> None:
    options = ("compute", "--layout", layout, "--steps", "40", "--more-s", "0.06")
    paces = reported_by(training, tmp_path, *options, num_ranks=num_ranks)
    peer = 0 if layout != "tensor" else 3  # of the same tensor index
    usual = {
        (rank, name): statistics.median(pace[name] for pace in paces[rank] if "own_s" in pace)
        for rank in (1, peer)
        for name in ("own_s", "wait_s")
    }
    assert usual[1, "own_s"] - usual[peer, "own_s"] >= 0.02, usual  # it sleeps 0.06 s longer
    assert usual[peer, "wait_s"] - usual[1, "wait_s"] >= 0.02, usual
    places = {rank: told[-1].get("place") for rank, told in enumerate(paces)}
    if layout == "tensor":
        assert places == {rank: f"data ranks of {rank % 2}" for rank in range(4)}
    else:
        assert len(set(places.values())) == 1, places
        assert str(places[0]).startswith("model ")
