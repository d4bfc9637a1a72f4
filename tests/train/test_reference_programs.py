"""The reference programs for vision and for Hugging Face's models: they learn, and continue exactly after a kill."""

import importlib.util
import signal
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from muster.train.checkpoint.state import unpacked
from tests.scaled import IS_SOAK

from .marks import TRAINS
from .train_case import PATIENCE_S, ROOT, Attempt, Training, Zygote, under_torchrun

pytestmark = TRAINS
VISION = ROOT / "examples" / "train_vision.py"
FINETUNE = ROOT / "examples" / "finetune_hf.py"
NUM_SHAPES = 4
ROUNDING = 1e-4
NEEDS_HUGGING_FACE = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None,
    reason="TRANSFORMERS IS NOT INSTALLED: nothing is fine-tuned; `make setup` brings it with torch",
)


def losses(steps: Mapping[int, list[str]]) -> dict[int, str]:
    """As printed: every bit of them."""
    return {step: words[0] for step, words in steps.items()}


@pytest.fixture(scope="module")
def with_transformers() -> Iterator[Zygote]:
    """Ranks that need not import Hugging Face's models again, which takes seconds."""
    with closing(Zygote("transformers", "transformers.models.llama.modeling_llama")) as zygote:
        yield zygote


@pytest.fixture
def fine_tuning(with_transformers: Zygote, tmp_path: Path) -> Iterator[Training]:
    with closing(Training(with_transformers, tmp_path / "job")) as training:
        yield training


def output_of_killed(training: Training, program: Path, *words: str, at: int) -> str:
    """Kill rank 1 before a step. In `make soak` torchrun starts the ranks, which import everything."""
    fault = f"kill@{at}/1"
    if not IS_SOAK:
        attempt = training.start(*words, num_ranks=2, program=program, MUSTER_TRAIN_FAULTS=fault, MUSTER_FENCE="")
        assert attempt.ended()[1] == -signal.SIGKILL, [rank.errors for rank in attempt.ranks]
        return "".join(rank.output for rank in attempt.ranks)
    torchrun = under_torchrun(
        program, *words, folder=training.checkpoints, MUSTER_TRAIN_FAULTS=fault, GLOO_SOCKET_IFNAME="lo"
    )
    output, errors = torchrun.communicate(timeout=PATIENCE_S)
    assert torchrun.returncode == 1, errors
    return output


def killed_and_resumed(training: Training, program: Path, *words: str, at: int) -> tuple[Attempt, Attempt]:
    """Rank 1 is killed before a step; the continued run equals an undisturbed one, on both ranks.

    Returns both runs.
    """
    output = output_of_killed(training, program, *words, at=at)
    assert f"step {at} " in output
    assert f"step {at + 1} " not in output, "rank 1 was killed, and no rank continues without it"
    resumed = training.run(*words, num_ranks=2, program=program, MUSTER_FENCE="")
    undisturbed = training.run(*words, num_ranks=2, program=program, MUSTER_CHECKPOINT_DIR="")
    for steps, whole in zip(resumed.steps, map(losses, undisturbed.steps), strict=True):
        assert 1 < min(steps) <= at + 1, "from a checkpoint"
        assert max(steps) == max(whole)
        assert losses(steps) == {step: loss for step, loss in whole.items() if step >= min(steps)}
    return resumed, undisturbed


def accuracy_of(attempt: Attempt) -> float:
    """Return the accuracy that the first rank printed."""
    (line,) = (line for line in attempt.ranks[0].output.splitlines() if line.startswith("accuracy "))
    return float(line.split()[1])


def test_vision_goes_on_bit_for_bit(training: Training) -> None:
    """Its random pictures, warm-up and momenta too: it is killed just behind the top of its learning rate."""
    resumed, undisturbed = killed_and_resumed(training, VISION, "--steps", "24", "--checkpoint-every", "5", at=18)
    assert accuracy_of(resumed) == accuracy_of(undisturbed)


def test_vision_learns_and_is_warned_of_nothing(training: Training) -> None:
    """Its norm is right under data parallelism, and each rank has samples of its own."""
    attempt = training.run("--steps", "150", num_ranks=2, program=VISION, MUSTER_CHECKPOINT_DIR="")
    assert accuracy_of(attempt) > 2 / NUM_SHAPES, "twice what guessing gives"
    assert "muster.train:" not in attempt.ranks[0].errors


def test_vision_refuses_a_norm_that_torch_has_on_gpus_only(training: Training) -> None:
    attempt = training.start("--norm", "sync-batch", program=VISION, CUDA_VISIBLE_DEVICES="-1")
    assert attempt.ended() == [2]
    assert "--norm group is right on both" in attempt.ranks[0].errors


@NEEDS_HUGGING_FACE
def test_fine_tuning_learns_and_goes_on_bit_for_bit(fine_tuning: Training) -> None:
    words = ("--layout", "fsdp", "--steps", "16", "--checkpoint-every", "4")
    _, undisturbed = killed_and_resumed(fine_tuning, FINETUNE, *words, at=10)
    for whole in map(losses, undisturbed.steps):
        assert float(whole[16]) < float(whole[1]) - 1, "it learns"


@NEEDS_HUGGING_FACE
def test_fine_tuning_changes_what_learns_and_nothing_else(fine_tuning: Training) -> None:
    fine_tuning.run("--layout", "ddp", "--steps", "4", "--checkpoint-every", "2", num_ranks=2, program=FINETUNE)
    before, after = (weights(folder) for folder in sorted(fine_tuning.checkpoints.glob("step-*/*")))
    changed = {name for name in before if not before[name].equal(after[name])}
    assert changed == {name for name in before if "lm_head" in name or ".up." in name or ".down." in name}
    assert any(".frozen." in name for name in before)


@NEEDS_HUGGING_FACE
def test_fine_tuning_has_the_same_losses_in_both_layouts(fine_tuning: Training) -> None:
    words = ("--steps", "8", "--checkpoint-every", "4")
    whole, sharded = (
        fine_tuning.run("--layout", layout, *words, num_ranks=2, program=FINETUNE, MUSTER_CHECKPOINT_DIR="").steps
        for layout in ("ddp", "fsdp")
    )
    for one, other in zip(whole, sharded, strict=True):
        assert max(abs(float(loss) - float(losses(other)[step])) for step, loss in losses(one).items()) <= ROUNDING


def weights(generation: Path) -> dict[str, Any]:
    """Of the whole model, by name."""
    parts = [unpacked(path.read_bytes()) for path in sorted(generation.rglob("rank-*.pt"))]
    return {name: value for part in parts for name, value in part["model"].items()}


def test_without_transformers_fine_tuning_states_what_to_install(training: Training, tmp_path: Path) -> None:
    hiding = tmp_path / "hiding.py"
    hiding.write_text(
        f"import runpy, sys; sys.modules['transformers'] = None; runpy.run_path({str(FINETUNE)!r}, run_name='__main__')"
    )
    attempt = training.start(program=hiding)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    requirement = extras["huggingface"][0]
    assert attempt.ended() == [2]
    assert attempt.ranks[0].errors == f"finetune_hf.py needs Hugging Face's models: pip install '{requirement}'\n"
