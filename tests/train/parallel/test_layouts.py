"""Every layout trains as one process does, and a checkpoint of one continues in any other."""

import shutil
from pathlib import Path

import pytest

from tests.train.marks import TRAINS
from tests.train.train_case import Training

pytestmark = TRAINS
GPT = Path(__file__).resolve().parents[3] / "examples" / "pretrain_gpt.py"
STEPS = 20
LAYOUTS = {
    "ddp": (2, ("--layout", "ddp")),
    "fsdp": (2, ("--layout", "fsdp")),
    "tensor": (2, ("--layout", "tensor", "--tensor", "2")),
    "ddp of 4": (4, ("--layout", "ddp")),
    "fsdp of 4": (4, ("--layout", "fsdp")),
    "tensor of 4": (4, ("--layout", "tensor", "--tensor", "4")),
    "hsdp": (4, ("--layout", "fsdp", "--copies", "2")),
    "fsdp and tensor": (4, ("--layout", "fsdp", "--tensor", "2")),
}
EXACT = 1e-5
EVEN = ("--batch-size", "24")
"""What 1, 2, 3, 4 and 8 ranks share evenly."""


def losses(training: Training, num_ranks: int, *words: str, steps: int = STEPS) -> dict[int, float]:
    """Of each step, over the whole batch: the mean of the ranks, which all have shares of one size."""
    ranks = training.run("--steps", str(steps), *words, num_ranks=num_ranks, program=GPT).steps
    return {step: sum(float(rank[step][0]) for rank in ranks) / num_ranks for step in ranks[0]}


@pytest.fixture(scope="module")
def alone(zygote: object, tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    return losses(Training(zygote, tmp_path_factory.mktemp("alone")), 1)  # type: ignore[arg-type]  # the session's


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_losses_are_those_of_one_process(training: Training, alone: dict[int, float], name: str) -> None:
    num_ranks, words = LAYOUTS[name]
    found = losses(training, num_ranks, *words)
    assert found.keys() == alone.keys()
    assert max(abs(found[step] - alone[step]) for step in alone) <= EXACT
    assert alone[STEPS] < 0.8 * alone[1], "it learns"


def test_what_saves_memory_changes_no_loss(training: Training, alone: dict[int, float]) -> None:
    found = losses(training, 2, "--layout", "fsdp", "--recompute", "--accumulate", "4")
    assert max(abs(found[step] - alone[step]) for step in alone) <= EXACT


def test_what_an_attempt_short_of_memory_hands_on_changes_no_loss(training: Training, alone: dict[int, float]) -> None:
    attempt = training.run("--steps", str(STEPS), num_ranks=2, program=GPT, MUSTER_ACCUMULATION="4")
    found = {step: sum(float(rank[step][0]) for rank in attempt.steps) / 2 for step in alone}
    assert max(abs(found[step] - alone[step]) for step in alone) <= EXACT


def test_bf16_with_sums_in_fp32_stays_within_its_tolerance(training: Training, alone: dict[int, float]) -> None:
    """bf16 keeps 8 bits of a number: a loss is within a few per cent, and falls alike."""
    found = losses(training, 2, "--layout", "fsdp", "--bf16")
    assert max(abs(found[step] - alone[step]) / alone[step] for step in alone) <= 0.03
    assert any(found[step] != alone[step] for step in alone), "it is another arithmetic"


@pytest.mark.parametrize("name", ["fsdp and tensor", "hsdp"])
def test_a_resume_in_the_same_layout_is_exact(training: Training, name: str) -> None:
    num_ranks, words = LAYOUTS[name]
    every = ("--checkpoint-every", "5")
    first = losses(training, num_ranks, *words, *every, steps=10)
    rest = losses(training, num_ranks, *words, *every, steps=15)
    assert (list(first), list(rest)) == (list(range(1, 11)), list(range(11, 16)))
    for generation in sorted(training.checkpoints.glob("step-*"))[1:]:
        for path in sorted(generation.rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
        generation.rmdir()
    again = losses(training, num_ranks, *words, *every, steps=15)
    whole = {**first, **rest}
    assert again == {step: whole[step] for step in again}
    assert min(again) == 6


@pytest.mark.parametrize(("before", "after"), [("ddp", "fsdp and tensor"), ("fsdp and tensor", "ddp")])
def test_a_checkpoint_of_one_layout_goes_on_in_another(
    training: Training, alone: dict[int, float], before: str, after: str
) -> None:
    """On other numbers of ranks too."""
    losses(training, LAYOUTS[before][0], *LAYOUTS[before][1], steps=10)
    found = losses(training, LAYOUTS[after][0], *LAYOUTS[after][1])
    assert list(found) == list(range(11, STEPS + 1))
    assert max(abs(found[step] - alone[step]) for step in found) <= EXACT


@pytest.fixture(scope="module")
def saved_by_four(zygote: object, tmp_path_factory: pytest.TempPathFactory) -> Path:
    training = Training(zygote, tmp_path_factory.mktemp("four"))  # type: ignore[arg-type]  # as above
    losses(training, 4, "--layout", "fsdp", *EVEN, steps=4)
    return training.checkpoints


@pytest.fixture(scope="module")
def alone_evenly(zygote: object, tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    return losses(Training(zygote, tmp_path_factory.mktemp("even")), 1, *EVEN, steps=8)  # type: ignore[arg-type]  # as above


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 8])
def test_what_four_ranks_saved_goes_on_on_any_number_of_them(
    training: Training, saved_by_four: Path, alone_evenly: dict[int, float], num_ranks: int
) -> None:
    """Sharded over four before, over so many behind it; three do not even divide what four have."""
    shutil.copytree(saved_by_four, training.checkpoints)
    found = losses(training, num_ranks, "--layout", "fsdp", *EVEN, steps=8)
    assert list(found) == [5, 6, 7, 8], "the next step"
    assert max(abs(found[step] - alone_evenly[step]) for step in found) <= EXACT


def test_each_value_is_saved_once(training: Training) -> None:
    """Replicas of a shard are not written again: what HSDP saves is as large as what one process does."""
    sizes = {}
    for name, (num_ranks, words) in {"alone": (1, ()), **LAYOUTS}.items():
        place = Training(training._zygote, training.checkpoints.parent / name.replace(" ", "-"))
        losses(place, num_ranks, *words, steps=1)
        sizes[name] = sum(path.stat().st_size for path in place.checkpoints.rglob("rank-*.pt"))
    assert max(sizes.values()) < 1.5 * sizes["alone"], sizes


def test_sizes_that_do_not_make_up_the_ranks_are_stated(training: Training) -> None:
    attempt = training.start("--layout", "fsdp", "--tensor", "3", num_ranks=2, program=GPT)
    assert attempt.ended() == [1, 1]
    assert "1 × -1 × 3 does not make up 2 ranks" in attempt.ranks[0].errors
