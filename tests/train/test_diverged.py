"""A training with a value that is not finite ends on all ranks, and its newest finite checkpoint stays."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.warm_python import WarmPython

from .marks import TRAINS
from .train_case import HERE, Listening, Training

pytestmark = TRAINS
PROGRAM = HERE / "diverging_program.py"
CASE = """
from muster import train
import torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
run = train.start(model, optimizer, checkpoint_every=5)
for step in run.steps(total=40):
    if step == 12:
        model.weight.data[0, 0] = float("nan")
    loss = run.model(torch.randn(4, 8)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    run.report(loss=loss)
run.finish()
"""


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("loss", "diverged at step 10: the loss is inf on rank 1"),
        (
            "gradient",
            "diverged at step 10: the gradient norm is inf on rank 1; in the gradient of linear.weight on rank 1",
        ),
    ],
)
def test_a_loss_or_a_gradient_norm_ends_the_run_after_its_step_on_every_rank(
    training: Training, tmp_path: Path, what: str, why: str
) -> None:
    with Listening(tmp_path / "supervisor") as supervisor:
        attempt = training.start(what, num_ranks=2, program=PROGRAM, MUSTER_TRAIN_SOCKET=str(supervisor.path))
        assert attempt.ended() == [17, 17], attempt.ranks[0].errors
    reported = f"{why}; the newest checkpoint is of step 8"
    assert [list(steps)[-1] for steps in attempt.steps] == [10, 10]
    assert all(rank.errors.splitlines()[-1] == f"muster.train: {reported}" for rank in attempt.ranks)
    assert [each["message"] for each in supervisor.received("outcome", exit="failed")] == [reported] * 2
    assert training.generations()[-1] == "step-00000008/gen-1", "the newest finite one is there"


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("weight", "linear.weight holds nan"),
        ("buffer", "norm.running_var holds inf on rank 1"),
        ("moment", "the optimizer's exp_avg of linear.bias holds -inf"),
        ("average", "extra average, module.weight holds nan"),
    ],
)
@pytest.mark.parametrize("mode", ["", "--synchronous"])
def test_a_state_that_is_not_finite_is_never_saved_and_retention_keeps_the_one_before(
    training: Training, what: str, why: str, mode: str
) -> None:
    """It reports no loss, and keeps one checkpoint: so the finite one would go as soon as another was verified."""
    words = ["--silent", "--at", "11", *([mode] if mode else [])]
    attempt = training.start(what, *words, num_ranks=2, program=PROGRAM)
    assert attempt.ended() == [17, 17], attempt.ranks[0].errors
    last = attempt.ranks[0].errors.splitlines()[-1]
    assert last.startswith(f"muster.train: diverged before step 12, which is not saved: {why}")
    assert last.endswith("; the newest checkpoint is of step 8")
    assert training.generations()[-1] == "step-00000008/gen-1"


@pytest.mark.parametrize("what", ["nothing", "skipped", "stage"])
def test_masks_skipped_steps_and_ranks_without_a_loss_end_nothing(training: Training, what: str) -> None:
    attempt = training.run(what, num_ranks=2, program=PROGRAM)
    assert [list(steps)[-1] for steps in attempt.steps] == [14, 14]
    assert training.generations()[-1] == "step-00000014/gen-1"


def test_a_run_that_diverges_again_from_the_same_checkpoint_is_failed(tmp_path: Path, warm_python: WarmPython) -> None:
    """Under a real torchrun and supervisor, with restarts left."""
    script = tmp_path / "train.py"
    script.write_text(CASE, encoding="utf-8")
    options = ("--ranks", "2", "--gpus", "0", "--max-restarts", "3", "--pause", "0s", "--name", "nan")
    command = [sys.executable, "-m", "muster", "run", *options, "--python", str(warm_python.daemon), "--", str(script)]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=500, check=False)
    assert ended.returncode == 20, ended.stderr
    folder = tmp_path / "muster-runs/nan"
    about = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    assert [(each["cause"], each["resumed_step"], each["saved_step"]) for each in about["attempts"]] == [
        ("diverged", 0, 10),
        ("diverged", 10, None),
    ]
    assert "diverged at step 13: the loss is nan on ranks 0, 1" in about["state_reason"]
    assert "a restart from the same checkpoint repeats it" in about["state_reason"]
    assert sorted(path.parent.name for path in folder.glob("checkpoints/step-*/gen-*")) == [
        "step-00000005",
        "step-00000010",
    ]
