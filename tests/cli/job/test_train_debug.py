"""``muster train debug``: a job's program run again, small and here, and the job left as it is."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.recorded_server import Answer, RecordedServer, serving

JOB = "job_01m80mb6x23m9ss7tbkcpajbb7"
TINY = Path(__file__).resolve().parents[2] / "train/tiny_program.py"
CHECK = """
import os, sys
names = ("NCCL_DEBUG", "TORCH_DISTRIBUTED_DEBUG", "MUSTER_TRAIN_SYNCHRONOUS", "LEARNING_RATE", "MUSTER_CHECKPOINT_DIR")
print({name: os.environ.get(name) for name in names})
sys.exit("the very fault")
"""


def spec_of(**program: Any) -> dict[str, Any]:
    """Return a spec as the API gives it: with all that a big job has."""
    whole = {"launcher": "torchrun", "script": None, "args": [], "argv": [], "python": None, "env": {}, **program}
    return {
        "name": "big",
        "program": {"working_dir": None, **whole},
        "shape": {"nodes": 64, "gpus_per_node": 8, "ranks_per_node": None},
        "topology": {"required": "rack", "preferred": None},
        "tier": "reserved",
        "restart": {"max_restarts": 50},
        "checkpoint": {"folder": "/mnt/of-the-fleet"},
        "limits": {"memory_bytes": None, "pids": None, "cpus": None},
        "wall_time_s": 86400.0,
        "stop_grace_s": None,
        "on_node_loss": "wait",
        "labels": {},
    }


def debug(server: RecordedServer, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    key = folder / "key"
    key.write_text("mst_test")
    key.chmod(0o600)
    access = {"MUSTER_API_URL": server.url, "MUSTER_API_KEY_FILE": str(key)}
    return subprocess.run(
        [sys.executable, "-m", "muster", "train", "debug", JOB, *words],
        cwd=folder,
        env={**os.environ, **access, "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )


def test_its_own_environment_a_loud_nccl_and_one_attempt(tmp_path: Path) -> None:
    script = tmp_path / "look.py"
    script.write_text(CHECK)
    spec = spec_of(script=str(script), env={"LEARNING_RATE": "0.1"})
    with serving(lambda _asked, _number: Answer(document={"id": JOB, "spec": spec})) as server:
        for number in ("1", "2"):
            ended = debug(server, tmp_path, "--ranks", "1")
            assert ended.returncode == 20, ended.stderr
            assert "user_error: rank 0 ended with code 1: the very fault" in ended.stderr
            place = tmp_path / f"muster-runs/debug-{JOB}/{number}"
            said = next(line for line in ended.stdout.splitlines() if "NCCL_DEBUG" in line)
            assert ast.literal_eval(said) == {
                "NCCL_DEBUG": "INFO",
                "TORCH_DISTRIBUTED_DEBUG": "INFO",
                "MUSTER_TRAIN_SYNCHRONOUS": "1",
                "LEARNING_RATE": "0.1",
                "MUSTER_CHECKPOINT_DIR": str(place / "checkpoints"),
            }
            assert len(json.loads((place / "run.json").read_text())["attempts"]) == 1
    assert {(asked.method, asked.path) for asked in server.requested} == {("GET", f"/v1/jobs/{JOB}")}, "it only looks"


def test_a_job_that_was_short_of_gpu_memory_goes_in_as_many_pieces_and_its_secrets_are_missed(tmp_path: Path) -> None:
    script = tmp_path / "look.py"
    script.write_text(
        "import os\nprint('pieces', os.environ['MUSTER_ACCUMULATION'], 'MUSTER_SECRETS_DIR' in os.environ)"
    )
    spec = {**spec_of(script=str(script)), "secrets": ["hub-token", "wandb"]}
    with serving(lambda _asked, _number: Answer(document={"id": JOB, "spec": spec, "accumulation": 8})) as server:
        ended = debug(server, tmp_path, "--ranks", "1")
    assert ended.returncode == 0, ended.stderr
    assert "pieces 8 False" in ended.stdout
    assert "Not given here, as only the fleet's hosts have them: secrets hub-token, wandb." in ended.stderr


@pytest.mark.slow
def test_a_training_runs_on_two_ranks(tmp_path: Path) -> None:
    spec = spec_of(script=str(TINY), args=["--steps", "8", "--every", "4"])
    with serving(lambda _asked, _number: Answer(document={"id": JOB, "spec": spec})) as server:
        ended = debug(server, tmp_path, "--json")
    assert ended.returncode == 0, ended.stderr
    (attempt,) = json.loads(ended.stdout)["attempts"]
    assert (attempt["step"], attempt["saved_step"]) == (8, 8)


def test_a_program_that_is_not_on_this_machine_is_stated(tmp_path: Path) -> None:
    spec = spec_of(script="/mnt/of-the-fleet/train.py")
    with serving(lambda _asked, _number: Answer(document={"id": JOB, "spec": spec})) as server:
        ended = debug(server, tmp_path)
    assert ended.returncode == 3
    assert "the script /mnt/of-the-fleet/train.py does not exist" in ended.stderr
    assert not (tmp_path / "muster-runs").exists()
