"""Every layout trains as one process does, and a checkpoint of one continues in any other."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.scaled import IS_SOAK
from tests.train.marks import TRAINS
from tests.train.train_case import Attempt, Training, Zygote

pytestmark = TRAINS
GPT = Path(__file__).resolve().parents[3] / "examples" / "pretrain_gpt.py"
STEPS = 8
SAVED_AT = 4
"""Before the last step, where every run saves."""
LAYOUTS = {
    "ddp": (2, ("--layout", "ddp")),
    "fsdp": (2, ("--layout", "fsdp")),
    "tensor": (2, ("--layout", "tensor", "--tensor", "2")),
    "ddp of 4": (4, ("--layout", "ddp")),
    "hsdp": (4, ("--layout", "fsdp", "--copies", "2")),
    "fsdp and tensor": (4, ("--layout", "fsdp", "--tensor", "2")),
}
if IS_SOAK:
    # What four ranks shard is also held by `saved_by_four`, and a tensor that is cut by "fsdp and tensor".
    LAYOUTS |= {"fsdp of 4": (4, ("--layout", "fsdp")), "tensor of 4": (4, ("--layout", "tensor", "--tensor", "4"))}
EXACT = 1e-5
EXACT_NORM = 1e-4
EVEN = ("--batch-size", "24")
"""What 1, 2, 3, 4 and 8 ranks share evenly."""


@dataclass(frozen=True)
class Undisturbed:
    """One run of a layout. ``norms``: of all gradients, as it clipped them."""

    losses: dict[int, float]
    norms: dict[int, float]
    checkpoints: Path

    def generation(self, step: int) -> Path:
        """Return the folder of the checkpoint of a step."""
        (found,) = self.checkpoints.glob(f"step-{step:08d}")
        return found


def losses(training: Training, num_ranks: int, *words: str, steps: int = STEPS) -> dict[int, float]:
    """Of each step, over the whole batch: the mean of the ranks, which all have shares of one size."""
    return _losses(training.run("--steps", str(steps), *words, num_ranks=num_ranks, program=GPT))


def _losses(attempt: Attempt) -> dict[int, float]:
    ranks = attempt.steps
    return {step: sum(float(rank[step][0]) for rank in ranks) / len(ranks) for step in ranks[0]}


@pytest.fixture(scope="module")
def of_layout(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Undisturbed]:
    """Train in a layout by its name, once for all tests. "alone" is one process."""
    found: dict[str, Undisturbed] = {}

    def of(name: str) -> Undisturbed:
        if name not in found:
            training = Training(zygote, tmp_path_factory.mktemp(name.replace(" ", "-")))
            num_ranks, words = {"alone": (1, ()), **LAYOUTS}[name]
            asked = ("--steps", str(STEPS), "--checkpoint-every", str(SAVED_AT), *words)
            attempt = training.run(*asked, num_ranks=num_ranks, program=GPT)
            norms = {step: float(said[1]) for step, said in attempt.steps[0].items()}
            found[name] = Undisturbed(_losses(attempt), norms, training.checkpoints)
        return found[name]

    return of


@pytest.fixture(scope="module")
def alone(of_layout: Callable[[str], Undisturbed]) -> dict[int, float]:
    return of_layout("alone").losses


def goes_on_from(training: Training, before: Undisturbed, after: str) -> dict[int, float]:
    """Return the losses of the rest of a run, in the layout ``after``, behind the first checkpoint of ``before``."""
    generation = before.generation(SAVED_AT)
    shutil.copytree(generation, training.checkpoints / generation.name)
    num_ranks, words = LAYOUTS[after]
    found = losses(training, num_ranks, *words)
    assert list(found) == list(range(SAVED_AT + 1, STEPS + 1))
    return found


@pytest.mark.parametrize("name", LAYOUTS)
def test_losses_and_norms_are_those_of_one_process(
    of_layout: Callable[[str], Undisturbed], alone: dict[int, float], name: str
) -> None:
    found, norms = of_layout(name), of_layout("alone").norms
    assert found.losses.keys() == alone.keys()
    assert max(abs(found.losses[step] - alone[step]) for step in alone) <= EXACT
    assert max(abs(found.norms[step] - norms[step]) for step in norms) <= EXACT_NORM
    assert max(norms.values()) > 1, "so that some were clipped"
    assert alone[STEPS] < 0.8 * alone[1], "it learns"


def test_what_saves_memory_changes_no_loss(training: Training, alone: dict[int, float]) -> None:
    found = losses(training, 2, "--layout", "fsdp", "--recompute", "--accumulate", "4")
    assert max(abs(found[step] - alone[step]) for step in alone) <= EXACT


def test_what_an_attempt_short_of_memory_hands_on_changes_no_loss(training: Training, alone: dict[int, float]) -> None:
    attempt = training.run("--steps", str(STEPS), num_ranks=2, program=GPT, MUSTER_ACCUMULATION="4")
    found = _losses(attempt)
    assert max(abs(found[step] - alone[step]) for step in alone) <= EXACT


def test_bf16_with_sums_in_fp32_stays_within_its_tolerance(training: Training, alone: dict[int, float]) -> None:
    """bf16 keeps 8 bits of a number: a loss is within a few per cent, and falls alike."""
    found = losses(training, 2, "--layout", "fsdp", "--bf16")
    assert max(abs(found[step] - alone[step]) / alone[step] for step in alone) <= 0.03
    assert any(found[step] != alone[step] for step in alone), "it is another arithmetic"


@pytest.mark.parametrize("name", ["fsdp and tensor", "hsdp"])
def test_a_resume_in_the_same_layout_is_exact(
    training: Training, of_layout: Callable[[str], Undisturbed], name: str
) -> None:
    whole = of_layout(name)
    again = goes_on_from(training, whole, name)
    assert again == {step: whole.losses[step] for step in again}


@pytest.mark.parametrize(("before", "after"), [("ddp", "fsdp and tensor"), ("fsdp and tensor", "ddp")])
def test_a_checkpoint_of_one_layout_goes_on_in_another(
    training: Training, of_layout: Callable[[str], Undisturbed], alone: dict[int, float], before: str, after: str
) -> None:
    """On other numbers of ranks too."""
    found = goes_on_from(training, of_layout(before), after)
    assert max(abs(found[step] - alone[step]) for step in found) <= EXACT


@pytest.fixture(scope="module")
def saved_by_four(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    training = Training(zygote, tmp_path_factory.mktemp("four"))
    losses(training, 4, "--layout", "fsdp", *EVEN, steps=3)
    return training.checkpoints


@pytest.fixture(scope="module")
def alone_evenly(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    return losses(Training(zygote, tmp_path_factory.mktemp("even")), 1, *EVEN, steps=6)


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 8] if IS_SOAK else [1, 3, 8])
def test_what_four_ranks_saved_goes_on_on_any_number_of_them(
    training: Training, saved_by_four: Path, alone_evenly: dict[int, float], num_ranks: int
) -> None:
    """Sharded over four before, over so many behind it; three do not even divide what four have."""
    shutil.copytree(saved_by_four, training.checkpoints)
    found = losses(training, num_ranks, "--layout", "fsdp", *EVEN, steps=6)
    assert list(found) == [4, 5, 6], "the next step"
    assert max(abs(found[step] - alone_evenly[step]) for step in found) <= EXACT


def test_each_value_is_saved_once(of_layout: Callable[[str], Undisturbed]) -> None:
    """Replicas of a shard are not written again: what HSDP saves is as large as what one process does."""
    sizes = {}
    for name in ("alone", *LAYOUTS):
        files = of_layout(name).generation(SAVED_AT).rglob("rank-*.pt")
        sizes[name] = sum(path.stat().st_size for path in files)
    assert max(sizes.values()) < 1.5 * sizes["alone"], sizes


def test_sizes_that_do_not_make_up_the_ranks_are_stated(training: Training) -> None:
    attempt = training.start("--layout", "fsdp", "--tensor", "3", num_ranks=2, program=GPT)
    assert attempt.ended() == [1, 1]
    assert "1 × -1 × 3 does not make up 2 ranks" in attempt.ranks[0].errors
