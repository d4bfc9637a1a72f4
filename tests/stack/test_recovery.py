"""The main job of Muster as its user sees it: a GPU fails under a running job, and the job goes on without it."""

import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from muster.client.rest import RestClient
from muster.domain.policy import DEFAULT_POLICY
from muster.ports import free_port
from tests.slow_at_first import slow_at_first
from tests.stack.harness import gone_within, processes_marked
from tests.waiting import wait_until as wait_with_pauses

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="TORCH IS NOT INSTALLED: nothing is trained"),
]
REPOSITORY = Path(__file__).resolve().parents[2]
MARGIN_S = DEFAULT_POLICY.training.taint_margin_s
wait_until = partial(wait_with_pauses, pause_s=0.5)  # a look is a request or a command, and slows what it waits for


class Up:
    """``muster up`` in a folder, and ``muster`` typed beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / ".muster"
        output = (folder / "up.txt").open("wb")
        command = [sys.executable, "-m", "muster", "up", "--hosts", "h100", "--gpus", "4", "--port", str(free_port())]
        with output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder)
        wait_until((self.state / "cli.json").exists, timeout_s=240)
        profile = json.loads((self.state / "cli.json").read_text(encoding="utf-8"))
        self.client = RestClient(profile["api_url"], Path(profile["key_file"]).read_text(encoding="ascii").strip())

    def type(self, *words: str, **environment: str) -> str:
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.folder), **environment}
        answer = subprocess.run(
            [sys.executable, "-m", "muster", *words],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    def events(self) -> list[dict[str, Any]]:
        """As the operator sees them: a tenant sees its own alone."""
        profile = json.loads((self.state / "cli.json").read_text(encoding="utf-8"))
        key_file = profile["operator_key_file"]
        said = self.type("event", "list", "--json", MUSTER_API_URL=profile["api_url"], MUSTER_API_KEY_FILE=key_file)
        return [json.loads(line) for line in said.splitlines()]

    def stop(self) -> None:
        self.client.close()
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(120) == 0


@pytest.fixture
def up(server_folder: Path) -> Iterator[Up]:
    folder = Path(tempfile.mkdtemp(prefix="recovery-", dir=server_folder))
    folder.chmod(0o711)
    up = Up(folder)
    yield up
    up.stop()
    assert gone_within(str(up.state), 60), processes_marked(str(up.state))


def test_an_xid_under_a_training_job_costs_it_the_gpu_and_nothing_else(up: Up) -> None:
    args = ["--steps", "80", "--checkpoint-every", "5"]
    program = {"script": slow_at_first(up.folder), "args": args}
    job_id = up.client.submit_job({"name": "training", "program": program, "shape": {"gpus_per_node": 2}})["id"]
    wait_until(lambda: sum(bool(row["committed_at"]) for row in up.client.checkpoints(job_id)) >= 2, timeout_s=300)
    held = up.client.job(job_id)["attempts"][0]["hosts"][0]["gpus"]
    injected = time.time()
    up.type("sim", "inject", "gpu", held[0], "xid", "95")
    wait_until(lambda: "QUARANTINED" in up.type("gpu", "list"), timeout_s=300)
    wait_until(lambda: up.client.job(job_id)["finished_at"] is not None, timeout_s=300)
    job = up.client.job(job_id)
    assert (job["state"], job["restarts_used"]) == ("SUCCEEDED", 0)
    assert [attempt["cause"] for attempt in job["attempts"]] == ["evacuated", "succeeded"]
    assert held[0] not in job["attempts"][1]["hosts"][0]["gpus"]
    assert held[1] in job["attempts"][1]["hosts"][0]["gpus"], "the good GPU is kept"
    steps = list(up.client.steps(job_id))
    assert [step["step"] for step in steps] == list(range(1, 81))
    of_first = [row for row in up.client.checkpoints(job_id) if row["attempt_id"] == job["attempts"][0]["id"]]
    assert all(row["committed_at"] for row in of_first), "nothing stays WRITING once its attempt has ended"
    doubtful = [row for row in of_first if _when(row["committed_at"]) >= injected - MARGIN_S]
    unmarked = [row for row in doubtful if not row["reason"] and row["status"] != "EXPIRED"]
    assert any(row["reason"] for row in doubtful), "each that came within the margin before the fault is marked"
    assert not unmarked, "but those that retention had taken before"
    wait_until(lambda: "job.succeeded" in [event["kind"] for event in up.events()])
    kinds = [event["kind"] for event in up.events()]
    order = ["evidence.found", "gpu.quarantined", "attempt.evacuating", "job.recovering", "job.succeeded"]
    assert [kind for kind in kinds if kind in order] == order


def test_the_readme_may_be_typed_word_by_word(up: Up) -> None:
    """Put in: this checkout's examples, the job's id and GPU for ``job_…`` and ``GPU-…``; no event is followed.

    And a longer pause in each step: on a slow machine the job must not be over before it is broken.
    """
    use_it = (REPOSITORY / "README.md").read_text(encoding="utf-8").split("## Use it")[1].split("\n## ")[0]
    lines = [line for line in use_it.splitlines() if line.startswith(".venv/bin/muster ")]
    verbs = [" ".join(line.split()[1:3]) for line in lines]
    assert verbs == ["job submit", "job submit", "job show", "sim inject", "event list", "gpu show"]
    job_id = gpu = ""
    for line in lines:
        line = line.replace("--step-sleep 0.1", "--step-sleep 1.0")  # noqa: PLW2901  # as the words above say
        words = line.replace("job_…", job_id).replace("GPU-…", gpu).replace("examples/", f"{REPOSITORY}/examples/")
        said = up.type(*(word for word in words.split()[1:] if (word, line.split()[1]) != ("--follow", "event")))
        if "job submit" in line:
            job_id = said.split()[0]
        elif "job show" in line:
            gpu = _placed_on(up, job_id)[0]
            assert gpu in up.type("job", "show", job_id)
    wait_until(lambda: f"{gpu}  QUARANTINED" in up.type("gpu", "show", gpu), timeout_s=300)
    wait_until(lambda: bool(_gpus(up, job_id)) and gpu not in _gpus(up, job_id), timeout_s=240)
    up.type("job", "cancel", job_id)


def _when(stamp: str | None) -> float:
    """Unix time; what has not happened is infinitely late."""
    if stamp is None:
        return math.inf
    return datetime.fromisoformat(stamp).timestamp()


def _placed_on(up: Up, job_id: str) -> list[str]:
    wait_until(lambda: bool(_gpus(up, job_id)), timeout_s=240)
    return _gpus(up, job_id)


def _gpus(up: Up, job_id: str) -> list[str]:
    """Of its newest attempt."""
    attempts = up.client.job(job_id)["attempts"]
    return [gpu for host in attempts[-1]["hosts"] for gpu in host["gpus"]] if attempts else []
