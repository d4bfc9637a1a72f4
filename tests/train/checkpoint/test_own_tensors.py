"""Parameters that are each rank's own are never mixed: each rank gets its own back, or the save is refused."""

import pytest

from muster.train.checkpoint.replicas import COMPARE_EVERY
from tests.train.marks import TRAINS
from tests.train.train_case import HERE, Attempt, Training

pytestmark = TRAINS
PROGRAM = HERE / "own_tensors_program.py"


def digests(attempt: Attempt, word: str) -> list[str]:
    lines = [line.split() for rank in attempt.ranks for line in rank.output.splitlines()]
    return [" ".join(line[1:]) for line in lines if line[0] == word]


@pytest.mark.parametrize(
    ("kind", "name"), [("stages", "0.weight"), ("named_stages", "0.weight"), ("experts", "expert.weight")]
)
def test_undeclared_ones_are_refused_by_name_and_ranks_and_nothing_is_saved(
    training: Training, kind: str, name: str
) -> None:
    attempt = training.start(kind, num_ranks=2, program=PROGRAM)
    assert attempt.ended() == [1, 1]
    assert all(f"ranks differ in {name}: rank 0 unlike rank 1" in rank.errors for rank in attempt.ranks)
    assert training.generations() == []


@pytest.mark.parametrize(("kind", "own"), [("stages", "*"), ("named_stages", "*"), ("experts", "expert")])
def test_declared_ones_return_to_their_ranks_bit_for_bit_and_another_number_of_ranks_is_refused(
    training: Training, kind: str, own: str
) -> None:
    first = training.run(kind, "--own", own, num_ranks=2, program=PROGRAM)
    again = training.run(kind, "--own", own, num_ranks=2, program=PROGRAM)
    assert digests(again, "begins") == digests(first, "ends")
    assert len(set(digests(first, "ends"))) == 2
    other = training.start(kind, "--own", own, num_ranks=3, program=PROGRAM)
    assert other.ended() == [1, 1, 1]
    assert all("were saved for 2 places, and here are 3" in rank.errors for rank in other.ranks)
    undeclared = training.start(kind, num_ranks=2, program=PROGRAM)
    assert undeclared.ended() == [1, 1]
    assert "declare them by own= of train.start" in undeclared.ranks[0].errors


def test_each_rank_may_name_its_own_tensors_alone(training: Training) -> None:
    """As the stages of a pipeline do: ``own=["0", "1"]`` on one rank and ``own=["2", "3"]`` on the next."""
    first = training.run("named_stages", "--own-layers", num_ranks=2, program=PROGRAM)
    again = training.run("named_stages", "--own-layers", num_ranks=2, program=PROGRAM)
    assert digests(again, "begins") == digests(first, "ends")


def test_a_first_save_that_failed_leaves_the_comparison_to_the_next(training: Training) -> None:
    attempt = training.start("stages", "--fails-first", num_ranks=2, program=PROGRAM)
    assert attempt.ended() == [1, 1]
    assert "was not saved, training continues: rank 0: the disk is full" in attempt.ranks[0].errors
    assert "ranks differ in 0.weight" in attempt.ranks[0].errors
    assert training.generations() == []


def test_replicas_of_a_stage_share_its_write_and_fewer_of_them_continue(training: Training) -> None:
    first = training.run("stages", "--own", "*", "--places", "2", num_ranks=4, program=PROGRAM)
    again = training.run("stages", "--own", "*", "--places", "2", num_ranks=2, program=PROGRAM)
    assert digests(again, "begins") == digests(first, "ends")[::2]


def test_a_name_that_fits_nothing_is_refused(training: Training) -> None:
    attempt = training.start("stages", "--own", "stage", num_ranks=2, program=PROGRAM)
    assert attempt.ended() == [1, 1]
    assert "'stage' names no parameter of any rank" in attempt.ranks[0].errors


def test_replicas_that_drift_apart_later_are_refused_at_the_next_comparison(training: Training) -> None:
    """Saves between two comparisons do not notice it."""
    steps = str(COMPARE_EVERY + 1)
    attempt = training.start("alike", "--every", "1", "--drift-at", "2", "--steps", steps, num_ranks=2, program=PROGRAM)
    assert attempt.ended() == [1, 1]
    assert all("ranks differ in 0.weight: rank 0 unlike rank 1" in rank.errors for rank in attempt.ranks)
    assert training.generations()[-1] == f"step-{COMPARE_EVERY:08}/gen-1"


def test_replicas_of_one_place_that_differ_are_refused(training: Training) -> None:
    attempt = training.start("stages", "--own", "*", "--places", "2", "--drift-at", "2", num_ranks=4, program=PROGRAM)
    assert attempt.ended() == [1, 1, 1, 1]
    words = "ranks at one place of own_mesh differ in 0.weight: rank 2 unlike rank 3"
    assert all(words in rank.errors for rank in attempt.ranks)
    assert training.generations() == []


@pytest.mark.parametrize("kind", ["flat", "names"])
def test_the_optimizer_of_fsdp1_is_each_ranks_own(training: Training, kind: str) -> None:
    program = HERE / "fsdp1_program.py"
    undeclared = training.start(kind, num_ranks=2, program=program)
    assert undeclared.ended() == [1, 1]
    assert "ranks differ in the optimizer's state of _fsdp_wrapped_module." in undeclared.ranks[0].errors
    assert training.generations() == []
    first = training.run(kind, "*", num_ranks=2, program=program)
    again = training.run(kind, "*", num_ranks=2, program=program)
    assert digests(again, "begins") == digests(first, "ends")
    assert len(set(digests(first, "ends"))) == 2
