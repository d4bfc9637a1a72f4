"""A program that runs out of GPU memory continues with smaller pieces: same samples, and the losses of before."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.warm_python import WarmPython

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="TORCH IS NOT INSTALLED: nothing trains here"),
]
TOLERANCE = 1e-5
PROGRAM = """
import sys, torch
from torch.nn import functional
from muster import train

most, at = int(sys.argv[1]), int(sys.argv[2])
torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
data = torch.randn(64, 4, generator=torch.Generator().manual_seed(5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
run = train.start(model, optimizer, checkpoint_every=2, asynchronous=False)
for step in run.steps(8):
    chosen = run.sample_indices(len(data), 8)
    batch = data[chosen]
    optimizer.zero_grad()
    total = 0.0
    for piece in batch.chunk(run.accumulation):
        if step >= at and len(piece) > most:  # a longer sequence comes, as it were
            raise torch.OutOfMemoryError(f"CUDA out of memory: {len(piece)} samples at once")
        loss = functional.mse_loss(run.model(piece), piece.sum(1, keepdim=True)) * (len(piece) / len(batch))
        loss.backward()
        total += loss.item()
    optimizer.step()
    run.report(loss=total)
    print(f"step {step} pieces {run.accumulation} samples {chosen} loss {total!r}", flush=True)
run.finish()
"""


def _run(folder: Path, python: Path, *words: str) -> subprocess.CompletedProcess[str]:
    script = folder / "train.py"
    script.write_text(PROGRAM, encoding="utf-8")
    options = ("--ranks", "1", "--gpus", "0", "--max-restarts", "0", "--pause", "0s", "--python", str(python))
    command = [sys.executable, "-m", "muster", "run", *options, *words[:-2], "--", str(script), *words[-2:]]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=500, check=False)


def _steps(reported: str) -> dict[int, tuple[int, str, float]]:
    found = re.findall(r"^step (\d+) pieces (\d+) samples (\[.*?\]) loss (\S+)$", reported, re.MULTILINE)
    return {int(step): (int(pieces), samples, float(loss)) for step, pieces, samples, loss in found}


def test_it_goes_on_with_smaller_pieces_and_the_same_samples_and_losses(
    tmp_path: Path, warm_python: WarmPython
) -> None:
    undisturbed = _run(tmp_path, warm_python.daemon, "--name", "whole", "8", "0")
    assert undisturbed.returncode == 0, undisturbed.stderr
    ended = _run(tmp_path, warm_python.daemon, "--name", "short", "--oom-doublings", "3", "2", "5")
    assert ended.returncode == 0, ended.stderr
    about = json.loads((tmp_path / "muster-runs/short/run.json").read_text(encoding="utf-8"))
    assert [each["cause"] for each in about["attempts"]] == ["gpu_oom", "gpu_oom", "succeeded"]
    assert [each["resumed_step"] for each in about["attempts"]] == [0, 4, 4]
    assert about["oom_doublings"] == 2
    assert "with 4 times as many pieces a batch; 0 of 0 restarts used" in ended.stderr
    expected, found = _steps(undisturbed.stdout), _steps(ended.stdout)
    assert [found[step][0] for step in range(8)] == [1, 1, 1, 1, 4, 4, 4, 4]
    assert {step: samples for step, (_, samples, _) in found.items()} == {
        step: samples for step, (_, samples, _) in expected.items()
    }
    for step, (_, _, loss) in expected.items():
        assert found[step][2] == pytest.approx(loss, rel=TOLERANCE)


def test_past_its_bound_it_fails_with_the_advice(tmp_path: Path, warm_python: WarmPython) -> None:
    ended = _run(tmp_path, warm_python.daemon, "--name", "short", "--oom-doublings", "1", "2", "0")
    assert ended.returncode == 20, ended.stderr
    assert "FAILED: gpu_oom:" in ended.stderr
    assert "accumulate their gradients (2 attempts" in ended.stderr
