"""``muster train check`` as its user meets it: real supervisors, torchrun and ranks, and no control plane."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.train.marks import TRAINS
from tests.warm_python import WarmPython

pytestmark = TRAINS
ROOT = Path(__file__).resolve().parents[3]
FAULTY = ROOT / "tests/train/reproducibility/faulty_program.py"
SHORT = """
from muster import train
import torch
model = torch.nn.Linear(1, 1)
run = train.start(model, checkpoint_every=100)
for step in run.steps(total=4):
    run.report(loss=0.5)
run.finish()
"""


def checked(
    folder: Path,
    warm_muster: WarmPython,
    warm_python: WarmPython,
    program: Path,
    *words: str,
    options: tuple[str, ...] = (),
) -> subprocess.CompletedProcess[str]:
    """Type the command in a folder."""
    command = [str(warm_muster.path), "-m", "muster", "train", "check", "--gpus", "0"]
    command += ["--python", str(warm_python.daemon)]
    return subprocess.run(
        [*command, *options, "--", str(program), *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


def test_a_fault_ends_with_1_and_its_cause_after_a_second_straight_run(
    tmp_path: Path, warm_muster: WarmPython, warm_python: WarmPython
) -> None:
    ended = checked(
        tmp_path, warm_muster, warm_python, FAULTY, "average", options=("--steps", "6", "--at", "3", "--json")
    )
    assert ended.returncode == 1, ended.stderr
    document: dict[str, Any] = json.loads(ended.stdout)
    assert (document["cause"], document["step"], document["tensor"]) == ("copy", 4, "variable module main.average")
    assert document["runs"] == ["straight", "resumed", "straight-again"]
    assert [row["step"] for row in document["table"]] == [4, 5, 6]
    again = checked(
        tmp_path, warm_muster, warm_python, FAULTY, "average", options=("--ignore", "average", "--steps", "6")
    )
    assert again.returncode == 0, again.stderr
    assert "the same: 6 steps, bit for bit, with a kill and a resume after step 3" in again.stdout
    assert [path.name for path in sorted((tmp_path / "muster-runs/check-faulty_program").iterdir())] == ["1", "2"]


@pytest.mark.parametrize(
    ("program", "options", "reported"),
    [
        ("print('no training')", (), "the program ended without train.start"),
        ("raise SystemExit(3)", (), "the straight run failed before its first step"),
        (SHORT, (), "the straight run ended after 4 steps, and the check needs 12"),
        (SHORT, ("--steps", "4", "--at", "3"), "--at 3: 2 steps must follow the saved one, and --steps is 4"),
        (
            f"import os; os.environ['MUSTER_CHECKPOINT_DIR'] = ''\n{SHORT}",
            ("--steps", "4"),
            "began at step 0, and not at 2",
        ),
    ],
    ids=["no-training", "fails", "short", "too-late", "no-checkpoint"],
)
def test_what_cannot_be_checked_ends_with_2_and_what_to_do(
    tmp_path: Path,
    warm_muster: WarmPython,
    warm_python: WarmPython,
    program: str,
    options: tuple[str, ...],
    reported: str,
) -> None:
    script = tmp_path / "train.py"
    script.write_text(program, encoding="utf-8")
    ended = checked(tmp_path, warm_muster, warm_python, script, options=options)
    assert ended.returncode == 2, ended.stdout
    assert reported in ended.stderr
