"""Cost of reporting each step, with the parts of its time, as a share of a small GPT's step on one core.

The cost is the hooks', the message's and the socket's, whatever the model. So it is measured with nearly no other work,
with and without, turn by turn, in a program of a real supervisor that receives each message (``pace_program``). The
least of the rounds counts: the machine's own noise only adds. The peers have the supervisor's own CPU time for it.
"""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from benchmarks import pace_program
from benchmarks.figures import Basis, Figure, Groups
from benchmarks.pace_program import Plan
from benchmarks.sizes import Sizes

ROOT: Final = Path(__file__).resolve().parents[1]
BAR_PERCENT: Final = 1.0
SIZES: Final = Sizes(full=Plan(rounds=8, tiny_steps=300, gpt_steps=40), smallest=Plan(1, tiny_steps=5, gpt_steps=2))


def measure(size: Plan) -> Groups:
    """Measure. Raises RuntimeError if the supervisor did not receive all reports."""
    with tempfile.TemporaryDirectory(prefix="muster-pace-") as name:
        folder = Path(name)
        found = _measured(folder, size)
        heard = sum(_steps_in(path) for path in folder.glob("run/attempts/*/train.jsonl"))
    told = size.rounds * size.tiny_steps
    if heard != told:
        message = f"the supervisor received {heard} of {told} steps: the figure is not the cost of reporting them"
        raise RuntimeError(message)
    cost_us = found["reported_us"] - found["unreported_us"]
    peers = {"reports µs": cost_us, "step µs": found["step_us"], "supervisor µs": found["listener_us"]}
    share = cost_us / found["step_us"] * 100
    name = "reports of a step's parts, of a rank's step on a CPU"
    yield [Figure(name, share, "%", BAR_PERCENT, peers=peers, basis=Basis.RATIO)]


def _measured(folder: Path, size: Plan) -> dict[str, float]:
    answer = folder / "answer.json"
    command = [sys.executable, "-m", "muster", "run", "--ranks", "1", "--gpus", "0", "--max-restarts", "0"]
    command += ["--folder", str(folder / "run"), "--env", f"PYTHONPATH={ROOT}"]
    command += [str(Path(pace_program.__file__)), str(answer), json.dumps(asdict(size))]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603  # our own module
    if ended.returncode != 0:
        raise RuntimeError(ended.stdout[-2000:] + ended.stderr[-2000:])
    found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    return {name: float(value) for name, value in found.items()}


def _steps_in(path: Path) -> int:
    words = (json.loads(line)["message"] for line in path.read_text(encoding="utf-8").splitlines())
    return sum(word["type"] == "step" for word in words)
