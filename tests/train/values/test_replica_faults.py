"""Copies that drift apart: named at the next check, rolled back, and the run ends as if nothing had happened."""

import random
from pathlib import Path

import pytest

from tests.scaled import examples
from tests.train.marks import TRAINS
from tests.train.train_case import HERE, Listening, Training

from .conftest import WATCHED, Steps

pytestmark = TRAINS
KINDS = ("bit", "swapped", "cancelling", "dropped", "moment", "buffer")
LAYOUTS = HERE / "layouts_watched_program.py"


@pytest.mark.parametrize(
    ("what", "at", "rank", "tensor"),
    [
        ("bit", 9, 1, "first.weight"),
        ("swapped", 10, 2, "first.weight"),
        ("cancelling", 11, 0, "first.weight"),
        ("dropped", 9, 1, "first.weight"),
        ("moment", 10, 2, "last.weight"),
        ("buffer", 11, 1, "table"),
    ],
)
def test_the_rank_is_named_at_the_next_check_and_the_run_ends_as_the_undisturbed_one(
    training: Training, three_undisturbed: Steps, tmp_path: Path, what: str, at: int, rank: int, tensor: str
) -> None:
    """Bit for bit. A false moment is in its weight by the next step; DDP itself repairs a buffer at the next one."""
    with Listening(tmp_path / "supervisor") as supervisor:
        words = (what, "--at", str(at), "--rank", str(rank))
        attempt = training.start(*words, num_ranks=3, program=WATCHED, MUSTER_TRAIN_SOCKET=str(supervisor.path))
        assert attempt.ended() == [0, 0, 0], attempt.ranks[0].errors
    (fault,) = supervisor.received("replica_fault")
    assert (fault["verdict"], fault["ranks"], fault["num_copies"]) == ("corruption", [rank], 3)
    assert (fault["tensor"], fault["step"], fault["since"]) == (tensor, 12, 9)
    assert fault["is_of_buffers"] is (what == "buffer")
    (back,) = supervisor.received("rolled_back")
    assert (back["from_step"], back["step"], back["cause"]) == (12, 8, "replica_fault")
    assert attempt.steps == three_undisturbed
    assert training.generations()[-2:] == ["step-00000012/gen-1", "step-00000016/gen-1"]


@pytest.mark.parametrize("number", range(examples(100, quick=2)))
def test_a_fault_at_any_step_of_any_rank_is_named(
    training: Training, three_undisturbed: Steps, tmp_path: Path, number: int
) -> None:
    """At the next check: of each third step, or of a save. A table names its rank after three agreements."""
    draw = random.Random(number)  # noqa: S311  # the same faults in each run
    what, rank, at = draw.choice(KINDS), draw.randrange(3), draw.randrange(5, 16)
    at = draw.choice((8, 11, 14)) if what == "buffer" else at
    next_check = next(step for step in range(at + 1, 17) if step % 3 == 0 or step % 4 == 0)
    with Listening(tmp_path / "supervisor") as supervisor:
        words = (what, "--at", str(at), "--rank", str(rank))
        attempt = training.start(*words, num_ranks=3, program=WATCHED, MUSTER_TRAIN_SOCKET=str(supervisor.path))
        assert attempt.ended() == [0, 0, 0], attempt.ranks[0].errors
    (fault,) = supervisor.received("replica_fault")
    assert (fault["ranks"], fault["step"]) == ([rank], next_check)
    assert attempt.steps == three_undisturbed


def test_a_save_is_checked_before_it_is_made(training: Training, three_undisturbed: Steps, tmp_path: Path) -> None:
    """No check by steps comes before it."""
    with Listening(tmp_path / "supervisor") as supervisor:
        words = ("bit", "--at", "6", "--check", "1000")
        attempt = training.start(*words, num_ranks=3, program=WATCHED, MUSTER_TRAIN_SOCKET=str(supervisor.path))
        assert attempt.ended() == [0, 0, 0], attempt.ranks[0].errors
    (fault,) = supervisor.received("replica_fault")
    assert (fault["ranks"], fault["step"], fault["since"]) == ([1], 8, 4)
    assert attempt.steps == three_undisturbed


def test_among_two_it_is_undecided_and_rolled_back_all_the_same(training: Training, tmp_path: Path) -> None:
    with Listening(tmp_path / "supervisor") as supervisor:
        attempt = training.start("bit", num_ranks=2, program=WATCHED, MUSTER_TRAIN_SOCKET=str(supervisor.path))
        assert attempt.ended() == [0, 0], attempt.ranks[0].errors
    (fault,) = supervisor.received("replica_fault")
    assert (fault["verdict"], fault["ranks"], fault["num_copies"]) == ("divergence", [], 2)
    assert "differ on ranks 0, 1; undecided which is true" in fault["reason"]
    assert supervisor.received("rolled_back", from_step=12, step=8)


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ("stop", "its steps were run again and gave the same fault"),
        ("rollback:1:1", "1 rollbacks of this attempt are spent"),
    ],
)
def test_a_fault_that_comes_again_ends_the_run(training: Training, rule: str, why: str) -> None:
    attempt = training.start("bit", "--again", num_ranks=3, program=WATCHED, MUSTER_ON_VALUE_FAULT=rule)
    assert attempt.ended() == [16, 16, 16]
    last = attempt.ranks[1].errors.splitlines()[-1]
    assert "the copy of first.weight is false on rank 1 of 3 ranks with copies; they agreed at step 9" in last
    assert last.endswith(f"not rolled back: {why}; the newest checkpoint is of step 8")


def test_without_checkpoints_the_run_ends(training: Training) -> None:
    attempt = training.start("bit", num_ranks=2, program=WATCHED, MUSTER_CHECKPOINT_DIR="")
    assert attempt.ended() == [16, 16]
    last = attempt.ranks[1].errors.splitlines()[-1]
    assert last.endswith("not rolled back: the run saves no checkpoints; there is no checkpoint")


def test_a_loader_over_a_stream_is_set_back_in_place(training: Training) -> None:
    attempt = training.start("bit", "--stream", num_ranks=3, program=WATCHED)
    assert attempt.ended() == [0, 0, 0], attempt.ranks[0].errors
    assert "rollback 1 of 3: from step 12 to step-00000008/gen-1" in attempt.ranks[0].errors
    training.checkpoints.rename(training.checkpoints.with_name("of the fault"))
    assert attempt.steps == training.run("--stream", num_ranks=3, program=WATCHED).steps, "bit for bit"


def test_a_batch_that_the_program_holds_ahead_is_not_set_back_in_place(training: Training) -> None:
    attempt = training.start("bit", "--held", num_ranks=2, program=WATCHED)
    assert attempt.ended() == [16, 16]
    last = attempt.ranks[0].errors.splitlines()[-1]
    assert "not rolled back: the program holds a batch that it drew before its first step" in last


@pytest.mark.parametrize(("words", "folder"), [((), ""), (("--loader",), "checkpoints")])
def test_a_buffer_that_a_program_changes_on_one_rank_never_ends_the_run(
    training: Training, tmp_path: Path, words: tuple[str, ...], folder: str
) -> None:
    """It agreed at three checks, such as the best loss so far; it cannot be rolled back, and is reported once."""
    folder = folder and str(training.checkpoints)
    with Listening(tmp_path / "supervisor") as supervisor:
        attempt = training.start(
            "best",
            *("--at", "11", *words),
            num_ranks=2,
            program=WATCHED,
            MUSTER_CHECKPOINT_DIR=folder,
            MUSTER_TRAIN_SOCKET=str(supervisor.path),
        )
        assert attempt.ended() == [0, 0], attempt.ranks[0].errors
    faults = supervisor.received("replica_fault")
    assert [(each["tensor"], each["step"]) for each in faults] == [("best", 12)], faults
    assert not supervisor.received("rolled_back")
    assert "the training continues, and what differs is not compared any more" in attempt.ranks[0].errors
    assert [*attempt.steps[0]][-1] == 16
    if folder:
        assert training.generations()[-1] == "step-00000016/gen-1", "it is saved all the same"


def test_a_loader_in_the_middle_of_its_data_is_not_set_back_in_place(training: Training) -> None:
    """The next attempt continues from the newest checkpoint instead."""
    attempt = training.start("bit", "--loader", num_ranks=3, program=WATCHED)
    assert attempt.ended() == [16, 16, 16]
    assert "not rolled back: an iterator of a DataLoader is in the middle" in attempt.ranks[2].errors.splitlines()[-1]
    assert training.generations()[-1] == "step-00000008/gen-1"


def test_statistics_and_random_numbers_of_each_rank_are_never_accused(
    training: Training, three_undisturbed: Steps, tmp_path: Path
) -> None:
    """With a check after each step, and with one as often as the cost allows."""
    for every in ("1", "auto"):
        with Listening(tmp_path / f"supervisor-{every}") as supervisor:
            socket = str(supervisor.path)
            attempt = training.run("--check", every, num_ranks=3, program=WATCHED, MUSTER_TRAIN_SOCKET=socket)
        assert not supervisor.received("replica_fault")
        training.checkpoints.rename(training.checkpoints.with_name(every))
        assert attempt.steps == three_undisturbed


@pytest.mark.parametrize(("num_ranks", "words"), [(2, ("fsdp",)), (4, ("hsdp",)), (2, ("tensor",))])
def test_pieces_that_are_each_ranks_own_are_never_accused(
    training: Training, num_ranks: int, words: tuple[str, ...]
) -> None:
    attempt = training.run(*words, num_ranks=num_ranks, program=LAYOUTS)
    assert "replicas differ" not in attempt.ranks[0].errors


@pytest.mark.parametrize(
    ("num_ranks", "words", "why"),
    [
        (3, ["hsdp", "--copies", "3", "--flip", "1"], "down.bias is false on rank 1 of 3"),
        (3, ["tensor", "--flip", "2"], "down.bias is false on rank 2 of 3"),
        (4, ["hsdp", "--flip", "2"], "down.bias differ on ranks 0, 2; undecided"),
    ],
)
def test_copies_along_a_mesh_are_compared_with_each_other(
    training: Training, num_ranks: int, words: list[str], why: str
) -> None:
    """A fault is rolled back in these layouts too."""
    attempt = training.run(*words, "--every", "4", num_ranks=num_ranks, program=LAYOUTS)
    assert why in attempt.ranks[0].errors
    assert "rollback 1 of 3: from step 6 to step-00000004/gen-1" in attempt.ranks[0].errors
    usual = words[: words.index("--flip")]
    training.checkpoints.rename(training.checkpoints.with_name("of the fault"))
    assert attempt.steps == training.run(*usual, num_ranks=num_ranks, program=LAYOUTS).steps, "bit for bit"
