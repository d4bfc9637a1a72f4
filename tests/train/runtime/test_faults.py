"""Faults on purpose: each does what it says, once in a job's life, on the rank that was named or drawn."""

import importlib.util
from pathlib import Path

import pytest

from tests.train.marks import TRAINS
from tests.train.train_case import Listening, Training, until

pytestmark = TRAINS
if importlib.util.find_spec("torch") is not None:
    import torch

    from muster.train.checkpoint import generations
    from muster.train.checkpoint.manifest import UnusableError
    from muster.train.runtime.environment import Environment
    from muster.train.runtime.faults import Fault, Faults, InjectedFaultError, parse


def test_what_is_requested_is_read() -> None:
    kill, slow = parse("kill@120/1  slow@50-80/0=0.4", world_size=2, seed=0)
    assert kill == Fault("kill@120/1", "kill", 120, 120, 1, None)
    assert slow == Fault("slow@50-80/0=0.4", "slow", 50, 80, 0, 0.4)
    drawn = [parse("nan@1", world_size=8, seed=seed)[0].rank for seed in range(40)]
    assert len(set(drawn)) > 4
    assert drawn == [parse("nan@1", world_size=8, seed=seed)[0].rank for seed in range(40)]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("explode@3", "'explode@3' is no fault; one is KIND@STEP"),
        ("kill", "'kill' is no fault"),
        ("kill@x", "'kill@x' is no fault"),
        ("kill@3/-1", "is no fault"),
        ("slow@3=1e9", "is no fault"),
        ("slow@9-3", "ends before it begins"),
        ("kill@3/2", "names a rank of 2, which count from 0"),
    ],
)
def test_what_is_none_is_stated(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        parse(f"nan@1 {text}", world_size=2, seed=0)


def alone(text: str, model: "torch.nn.Module", folder: Path | None = None) -> "Faults":
    return Faults(Environment(checkpoint_dir=folder, faults=text, faults_seed=3), model)


def test_one_bit_of_one_weight_flips_and_none_is_no_number() -> None:
    model = torch.nn.Linear(8, 8)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    faults = alone("flip_weight@2=30 nan@4", model)
    for step in (0, 1, 2, 3):
        faults.meet(step)
    changed = [
        (int(old.view(torch.int32)) ^ int(new.view(torch.int32))) & 0xFFFFFFFF
        for name, value in model.state_dict().items()
        for old, new in zip(before[name].view(-1).split(1), value.view(-1).split(1), strict=True)
        if not torch.equal(old, new)
    ]
    assert changed == [1 << 30]
    faults.meet(4)
    assert sum(int(value.isnan().sum()) for value in model.state_dict().values()) == 1


def test_an_exception_comes_once_in_a_jobs_life(tmp_path: Path) -> None:
    model = torch.nn.Linear(1, 1)
    with pytest.raises(InjectedFaultError, match=r"MUSTER_TRAIN_FAULTS: exception@1/0"):
        alone("exception@1/0", model, tmp_path).meet(1)
    alone("exception@1/0", model, tmp_path).meet(1)


@pytest.mark.parametrize(
    ("text", "code"), [("kill@5/1", -9), ("exit@5/1", 3), ("exit@5/1=41", 41), ("exception@5/1", 1)]
)
def test_a_rank_that_ends_goes_on_in_the_next_attempt_bit_for_bit(
    training: Training, undisturbed: list[dict[int, list[str]]], text: str, code: int
) -> None:
    first = training.start("--synchronous", num_ranks=2, MUSTER_TRAIN_FAULTS=text)
    until(lambda: first.ranks[1].code is not None, "end of rank 1")
    assert first.ranks[1].code == code
    assert "fault on purpose before step 5" in first.ranks[1].errors
    first.ranks[0].kill()
    first.ended()
    again = training.run(num_ranks=2, MUSTER_TRAIN_FAULTS=text)
    assert again.steps == [{step: rank[step] for step in range(5, 13)} for rank in undisturbed]


def test_a_rank_that_hangs_or_is_stopped_states_no_further_step(training: Training) -> None:
    for text in ("hang@3/0", "stop@3/0"):
        attempt = training.start(MUSTER_TRAIN_FAULTS=text)
        until(lambda attempt=attempt: "on purpose" in attempt.ranks[0].errors, "fault")  # type: ignore[misc]  # bound at once
        assert attempt.ranks[0].code is None
        assert max(attempt.ranks[0].steps) == 3
        attempt.ranks[0].kill()
        attempt.ended()


def test_slow_steps_are_slow_and_a_full_disk_is_full_for_as_long(training: Training) -> None:
    with Listening(training.checkpoints.parent / "s") as supervisor:
        faults = "slow@2-4=5 full_disk@5-8"
        training.run("--synchronous", MUSTER_TRAIN_SOCKET=str(supervisor.path), MUSTER_TRAIN_FAULTS=faults)
    taken = {said["step"]: said["step_s"] for said in supervisor.received("step")}
    assert {step for step, seconds in taken.items() if seconds > 5} == {3, 4, 5}
    failed = [said["step"] for said in supervisor.received("checkpoint", status="failed")]
    assert failed[0] == 8
    assert all(5 < step <= 9 for step in failed)
    assert supervisor.received("checkpoint", status="committed", step=12)


def test_a_flipped_bit_of_a_file_is_refused(training: Training) -> None:
    training.run("--steps", "8", "--synchronous", MUSTER_TRAIN_FAULTS="flip_file@6")
    newest, flipped = generations.list_generations(training.checkpoints)
    generations.verify(training.checkpoints, newest)
    with pytest.raises(UnusableError, match="differs from what was saved"):
        generations.verify(training.checkpoints, flipped)


def test_a_fault_that_is_none_keeps_the_program_from_starting(training: Training) -> None:
    attempt = training.start(MUSTER_TRAIN_FAULTS="explode@3")
    assert attempt.ended() == [1]
    assert "'explode@3' is no fault" in attempt.ranks[0].errors
