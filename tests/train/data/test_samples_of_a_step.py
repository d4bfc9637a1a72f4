"""Each rank requests its samples once a step, and all ranks equally many: on ranks that really train."""

import pytest

from muster.train.checkpoint import generations
from muster.train.data.samples import sample_at
from tests.train.marks import TRAINS
from tests.train.train_case import HERE, Attempt, Training

pytestmark = TRAINS
PROGRAM = HERE / "drawing_program.py"
TWICE = "sample_indices was called twice in one step, and would return the same samples again"
UNLIKE = "the ranks requested different numbers of samples in one step"


def samples(attempt: Attempt) -> list[int]:
    """Return the samples of all steps in the order of steps and ranks."""
    steps = attempt.steps
    return [int(sample) for step in sorted(steps[0]) for rank in steps for sample in rank[step]]


def test_accumulation_that_requests_each_micro_batch_by_itself_ends_instead_of_training_on_one_half_twice(
    training: Training,
) -> None:
    attempt = training.start("--calls", "2", program=PROGRAM)
    assert attempt.ended() == [1]
    assert f"ValueError: {TWICE}: request all samples of the step at once (4 + 4)" in attempt.ranks[0].errors
    assert training.generations() == []


def test_requests_before_the_first_step_are_not_counted(training: Training) -> None:
    attempt = training.run("--warm-up", program=PROGRAM)
    assert samples(attempt) == [sample_at(number, 64, 5) for number in range(16)]


@pytest.mark.parametrize(
    ("batches", "reported"),
    [(["4", "4", "2"], "2 on rank 2; 4 on ranks 0, 1"), (["4", "0"], "0 on ranks 1, 2; 4 on rank 0")],
)
def test_ranks_that_request_different_numbers_all_end_at_the_first_step(
    training: Training, batches: list[str], reported: str
) -> None:
    attempt = training.start("--batches", *batches, num_ranks=3, program=PROGRAM)
    assert attempt.ended() == [1, 1, 1]
    assert all(f"ValueError: {UNLIKE}" in rank.errors and reported in rank.errors for rank in attempt.ranks)
    assert [list(rank) for rank in attempt.steps] == [[1]] * 3


def test_a_rank_may_leave_the_reading_to_another_that_shares_its_samples_and_the_position_is_saved(
    training: Training,
) -> None:
    """Rank 0 writes the manifest, and rank 1 reads: the position must count the samples of rank 1."""
    attempt = training.run("--batches", "0", "4", "--sharing", "2", num_ranks=2, program=PROGRAM)
    assert samples(attempt) == [sample_at(number, 64, 5) for number in range(16)]
    newest = generations.list_generations(training.checkpoints)[0]
    assert generations.read_manifest(training.checkpoints, newest).position == 16
