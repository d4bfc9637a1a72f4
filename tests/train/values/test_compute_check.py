"""Compute that no other rank has a copy of: a rank that computes wrong is named, and a sound run notices nothing."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from muster.train.values.compute_check import require_compute_every  # noqa: E402  # it imports torch
from muster.train.values.local_passes import require_fit  # noqa: E402
from tests.train.marks import TRAINS  # noqa: E402
from tests.train.train_case import HERE, Attempt, Listening, Training  # noqa: E402

pytestmark = TRAINS
COMPUTING = HERE / "computing_program.py"


class Reported:
    """One attempt with what it reported."""

    def __init__(
        self, training: Training, folder: Path, *words: str, num_ranks: int, codes: int = 0, **variables: str
    ) -> None:
        with Listening(folder / f"supervisor-{len(list(folder.iterdir()))}") as supervisor:
            variables["MUSTER_TRAIN_SOCKET"] = str(supervisor.path)
            self.attempt: Attempt = training.start(
                *words, num_ranks=num_ranks, only=None, program=COMPUTING, **variables
            )
            assert self.attempt.ended() == [codes] * num_ranks, [rank.errors for rank in self.attempt.ranks]
        self._supervisor = supervisor

    def got(self, kind: str) -> list[dict[str, Any]]:
        return self._supervisor.received(kind)

    @property
    def not_compared(self) -> list[str]:
        return [each["message"] for each in self._supervisor.received("warning", code="compute_not_compared")]

    @property
    def num_calls(self) -> list[int]:
        """How often each rank computed a loss."""
        return [int(rank.output.split("calls ")[1].split()[0]) for rank in self.attempt.ranks]


@pytest.mark.parametrize(("layout", "num_ranks"), [("shard", 3), ("ddp", 2), ("hybrid", 4), ("tensor", 4)])
def test_a_sound_run_is_bit_for_bit_as_without_the_check(
    training: Training, tmp_path: Path, layout: str, num_ranks: int
) -> None:
    """Parameters, moments, buffers, gradients, random numbers and samples of each step."""
    checked = Reported(training, tmp_path, "--layout", layout, "--check", "2", num_ranks=num_ranks)
    assert not checked.got("replica_fault")
    assert checked.not_compared == []
    training.checkpoints.rename(training.checkpoints.with_name("of the checked"))
    plain = Reported(training, tmp_path, "--layout", layout, num_ranks=num_ranks)
    assert (checked.num_calls, plain.num_calls) == ([20 + 5 * 2] * num_ranks, [20] * num_ranks)
    assert len(plain.attempt.steps[0]) == 10
    assert checked.attempt.steps == plain.attempt.steps


@pytest.mark.parametrize(
    ("layout", "num_ranks", "words", "tensor"),
    [
        ("shard", 3, (), "loss"),
        ("shard", 3, ("--backward",), "the gradient of first."),
        ("hybrid", 4, (), "loss"),
        ("ddp", 3, (), "loss"),
    ],
)
def test_of_three_ranks_the_one_that_computes_wrong_is_named(
    training: Training, tmp_path: Path, layout: str, num_ranks: int, words: tuple[str, ...], tensor: str
) -> None:
    """Its steps give the same again, so the attempt ends for other GPUs to decide."""
    found = Reported(
        training,
        tmp_path,
        *("--layout", layout, "--check", "2", "--flips", "1:6-99", *words),
        num_ranks=num_ranks,
        codes=16,
        MUSTER_RERUN="{}",
    )
    first, again = found.got("replica_fault")
    assert (first["verdict"], first["ranks"], first["num_copies"]) == ("corruption", [1], num_ranks)
    assert (first["step"], first["since"], first["is_of_compute"]) == (8, 6, True)
    assert first["tensor"].startswith(tensor)
    assert f"of one micro-batch, {first['tensor']} and " in first["reason"]
    assert f"is false on rank 1 of {num_ranks} ranks; it agreed at step 6" in first["reason"]
    assert again == first
    (back,) = found.got("rolled_back")
    assert (back["from_step"], back["step"]) == (8, 4)
    (rerun,) = found.got("rerun")
    assert (rerun["found"], rerun["ranks"], rerun["step"]) == ("repeated", [1], 8)


def test_a_single_wrong_result_is_named_and_the_run_ends_as_the_undisturbed_one(
    training: Training, tmp_path: Path
) -> None:
    """It is in one pair alone, so a second shift asks a third rank."""
    words = ("--check", "2", "--flips", "2:7-7", "--once")
    found = Reported(training, tmp_path, *words, num_ranks=3)
    (fault,) = found.got("replica_fault")
    assert (fault["ranks"], fault["step"], fault["since"]) == ([2], 8, 6)
    (rerun,) = found.got("rerun")
    assert (rerun["found"], rerun["ranks"]) == ("transient", [2])
    training.checkpoints.rename(training.checkpoints.with_name("of the fault"))
    assert found.attempt.steps == training.run(num_ranks=3, program=COMPUTING).steps


def test_of_two_ranks_the_pair_is_reported_and_the_run_of_the_same_steps_names_the_rank(
    training: Training, tmp_path: Path
) -> None:
    found = Reported(training, tmp_path, "--check", "2", "--flips", "1:7-7", "--once", num_ranks=2)
    (fault,) = found.got("replica_fault")
    assert (fault["verdict"], fault["ranks"], fault["num_copies"]) == ("divergence", [], 2)
    assert "differ on ranks 0, 1; undecided which is true" in fault["reason"]
    (rerun,) = found.got("rerun")
    assert (rerun["found"], rerun["ranks"]) == ("transient", [1])
    assert "it was transient" in rerun["reason"]


def test_of_two_ranks_with_one_always_wrong_other_gpus_decide(training: Training, tmp_path: Path) -> None:
    words = ("--check", "2", "--flips", "1:6-99")
    found = Reported(training, tmp_path, *words, num_ranks=2, codes=16, MUSTER_RERUN="{}")
    (rerun,) = found.got("rerun")
    assert (rerun["found"], rerun["ranks"]) == ("repeated", [0, 1])


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_a_function_that_depends_on_its_rank_is_reported_once_and_stops_nothing(
    training: Training, tmp_path: Path, num_ranks: int
) -> None:
    found = Reported(training, tmp_path, "--check", "2", "--odd", "1", num_ranks=num_ranks)
    (message,) = found.not_compared
    assert "its GPU is faulty, or the function depends on its rank" in message
    (fault,) = found.got("replica_fault")
    assert (fault["ranks"], fault["step"], fault["verdict"]) == ([], 2, "divergence")
    assert len(found.attempt.steps[0]) == 10


def test_a_checkpoint_from_before_the_last_check_is_kept(training: Training, tmp_path: Path) -> None:
    """Though newer ones are saved each step, of which one is kept."""
    words = ("--check", "6", "--every", "1", "--keep", "1", "--steps", "14", "--flips", "1:11-11", "--once")
    found = Reported(training, tmp_path, *words, num_ranks=3, MUSTER_RESUME='{"good_after_steps": 1}')
    (back,) = found.got("rolled_back")
    assert (back["from_step"], back["step"]) == (12, 6)
    assert found.got("rerun")[0]["found"] == "transient"
    expired = [each["generation"] for each in found.got("checkpoint_expired")]
    assert {f"step-{step:08d}/gen-1" for step in (7, 8, 9)} <= set(expired)


def test_in_the_middle_of_an_accumulation_it_is_refused(training: Training, tmp_path: Path) -> None:
    found = Reported(training, tmp_path, "--check", "2", "--accumulated", num_ranks=2, codes=1)
    assert "call it before the first backward pass of a step" in found.attempt.ranks[0].errors


@pytest.mark.parametrize("wrong", [-1, True, 2.0, "auto"])
def test_a_number_of_steps_is_required(wrong: Any) -> None:
    assert require_compute_every(0, deterministic=False, has_own=True) == 0
    with pytest.raises(ValueError, match="must be a number of steps, or 0 for never"):
        require_compute_every(wrong, deterministic=True, has_own=False)


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(ValueError, match="needs deterministic=True"):
        require_compute_every(5, deterministic=False, has_own=False)
    with pytest.raises(ValueError, match="parameters of its own"):
        require_compute_every(5, deterministic=True, has_own=True)


def test_a_parameter_whose_hook_steps_in_the_backward_pass_is_refused() -> None:
    model = torch.nn.Linear(2, 2)
    require_fit(model)
    model.weight.register_post_accumulate_grad_hook(lambda _: None)
    with pytest.raises(ValueError, match="a hook of a parameter acts on its gradient"):
        require_fit(model)
