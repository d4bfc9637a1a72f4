"""A value that is not finite, under each rule: rolled back, skipped, or the end of the run."""

import math
from pathlib import Path

import pytest

from tests.scaled import examples
from tests.train.marks import TRAINS
from tests.train.train_case import Listening, Training

from .conftest import WATCHED, Steps

pytestmark = TRAINS


def test_a_weight_that_is_no_number_is_rolled_back_and_the_module_named(
    training: Training, three_undisturbed: Steps, tmp_path: Path
) -> None:
    with Listening(tmp_path / "supervisor") as supervisor:
        words = ("weight", "--on-fault", "rollback")
        attempt = training.start(*words, num_ranks=3, program=WATCHED, MUSTER_TRAIN_SOCKET=str(supervisor.path))
        assert attempt.ended() == [0, 0, 0], attempt.ranks[0].errors
    (fault,) = supervisor.received("value_fault")
    assert (fault["step"], fault["ranks"]) == (11, [1])
    assert fault["reason"] == (
        "diverged at step 11: the loss is nan on rank 1; first in norm.weight, which holds nan on rank 1"
    )
    (back,) = supervisor.received("rolled_back")
    assert (back["from_step"], back["step"], back["number"], back["budget"]) == (11, 8, 1, 3)
    assert back["skipped_from"] == back["skipped_to"]
    assert attempt.steps == three_undisturbed, "bit for bit"


def test_after_a_rollback_the_module_whose_output_is_no_number_is_named(training: Training) -> None:
    """Its parameters are finite, and after the step no value shows where the first one was."""
    attempt = training.start("activation", "--again", "--on-fault", "rollback:1:1", num_ranks=3, program=WATCHED)
    assert attempt.ended() == [17, 17, 17]
    first, last = (line for line in attempt.ranks[0].errors.splitlines() if "diverged" in line)
    assert "the loss is nan on rank 1; rollback 1 of 1: from step 10 to step-00000008/gen-1" in first
    assert "first in the output of the model, which holds nan on rank 1" in last
    assert last.endswith("not rolled back: 1 rollbacks of this attempt are spent; the newest checkpoint is of step 8")


def test_the_samples_of_a_faulty_step_are_skipped(training: Training, three_undisturbed: Steps, tmp_path: Path) -> None:
    """The same sample spoils the step each time that it is drawn: here by rank 2 in the tenth step."""
    sample = three_undisturbed[2][10][-1]
    with Listening(tmp_path / "supervisor") as supervisor:
        words = ("sample", "--at", sample, "--on-fault", "skip")
        attempt = training.start(*words, num_ranks=3, program=WATCHED, MUSTER_TRAIN_SOCKET=str(supervisor.path))
        assert attempt.ended() == [0, 0, 0], attempt.ranks[0].errors
    (back,) = supervisor.received("rolled_back")
    assert (back["from_step"], back["step"]) == (10, 8)
    assert (back["skipped_from"], back["skipped_to"]) == (108, 120)
    assert back["skipped"] == "samples 108 to 119"
    drawn = [[rank[step][3:] for step in range(1, 17)] for rank in attempt.steps]
    usual = [[rank[step][3:] for step in range(1, 17)] for rank in three_undisturbed]
    assert [rank[:9] for rank in drawn] == [rank[:9] for rank in usual]
    assert [rank[9:15] for rank in drawn] == [rank[10:] for rank in usual], (
        "each step after it trains on the next batch"
    )


def test_a_rollback_over_two_checkpoints_removes_the_newer_one_and_never_uses_its_name_again(
    training: Training, three_undisturbed: Steps, tmp_path: Path
) -> None:
    with Listening(tmp_path / "supervisor") as supervisor:
        words = ("weight", "--every", "3", "--on-fault", "rollback:2")
        attempt = training.start(*words, num_ranks=3, program=WATCHED, MUSTER_TRAIN_SOCKET=str(supervisor.path))
        assert attempt.ended() == [0, 0, 0], attempt.ranks[0].errors
    assert supervisor.received("rolled_back", from_step=11, step=6)
    assert supervisor.received("checkpoint_expired", generation="step-00000009/gen-1")
    committed = [each["step"] for each in supervisor.received("checkpoint", status="committed")]
    assert committed == [3, 6, 9, 10, 12, 15, 16]
    assert attempt.steps == three_undisturbed


def test_without_a_checkpoint_of_before_the_run_ends(training: Training) -> None:
    words = ("weight", "--at", "2", "--check", "0", "--on-fault", "rollback")
    attempt = training.start(*words, num_ranks=2, program=WATCHED)
    assert attempt.ended() == [17, 17]
    last = attempt.ranks[0].errors.splitlines()[-1]
    assert last.endswith("not rolled back: there is no checkpoint of a step before 4; there is no checkpoint")


def test_the_jobs_rule_comes_before_the_programs(training: Training) -> None:
    attempt = training.start(
        "weight", "--on-fault", "stop", num_ranks=2, program=WATCHED, MUSTER_ON_VALUE_FAULT="rollback"
    )
    assert attempt.ended() == [0, 0]
    refused = training.start(num_ranks=1, program=WATCHED, MUSTER_ON_VALUE_FAULT="retry")
    assert refused.ended() == [1]
    assert "MUSTER_ON_VALUE_FAULT: on_value_fault='retry': must be stop, rollback" in refused.ranks[0].errors


@pytest.mark.parametrize("number", range(examples(200, quick=3)))
def test_nothing_is_good_after_a_value_at_any_step_of_any_rank(training: Training, number: int) -> None:
    """The newest finite checkpoint is there, and the run is rolled back or ends as diverged."""
    at, rank, rule = 3 + 5 * number % 12, number % 2, ("stop", "rollback", "skip")[(number + 1) % 3]
    words = ("last_weight", "--at", str(at), "--rank", str(rank), "--on-fault", rule, "--check", "0")
    attempt = training.start(*words, num_ranks=2, program=WATCHED, MUSTER_RESUME='{"good_after_steps": 2}')
    newest = at // 4 * 4  # a checkpoint of the step that ends with the value is refused
    codes = attempt.ended()
    is_over = rule == "stop" or newest == 0
    assert codes == ([17, 17] if is_over else [0, 0]), attempt.ranks[0].errors
    good = [int(path.parents[1].name.removeprefix("step-")) for path in training.checkpoints.glob("step-*/*/GOOD")]
    if is_over:
        assert all(step <= newest for step in good)
        assert good or newest < 8, "the checkpoint of step 4 is good as the one of step 8 is verified"
        assert [name[5:13] for name in training.generations()][-1:] == ([f"{newest:08d}"] if newest else [])
    else:
        assert all(math.isfinite(float(said[0])) for said in attempt.steps[0].values())
        assert list(attempt.steps[0])[-1] == 16
