"""The main job of Muster as its user sees it: a GPU fails under a running job, and the job continues without it."""

import importlib.util
import json
import math
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from muster.client.rest import RestClient
from muster.domain.policy.document import DEFAULT_POLICY
from muster.ports import free_port
from tests.slow_at_first import slow_at_first
from tests.stack.forked_up import forked_up
from tests.stack.harness import gone_within, processes_marked
from tests.waiting import wait_until as wait_with_pauses
from tests.warm_python import WarmPython

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="TORCH IS NOT INSTALLED: nothing is trained"),
]
REPOSITORY = Path(__file__).resolve().parents[2]
MARGIN_S = DEFAULT_POLICY.training.taint_margin_s
TRAINS = "examples/train_transformer.py --steps 200 --step-sleep 0.1"
wait_until = partial(wait_with_pauses, pause_s=0.5)  # a check is a request or a command, and slows what it waits for


class Up:
    """``muster up`` in a folder, of forks of ``parts``, and ``muster`` typed next to it, which ``python`` runs.

    ``job_python`` runs jobs.
    """

    def __init__(self, folder: Path, python: Path, parts: WarmPython, job_python: Path) -> None:
        self.folder = folder
        self.python = python
        self.state = folder / ".muster"
        output = (folder / "up.txt").open("wb")
        command = forked_up(parts, "--hosts", "h100", "--gpus", "4", "--port", str(free_port()))
        with output:
            environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "MUSTER_JOB_PYTHON": str(job_python)}
            self.process = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder, env=environment)
        wait_until((self.state / "cli.json").exists, timeout_s=240)
        profile = json.loads((self.state / "cli.json").read_text(encoding="utf-8"))
        self.client = RestClient(profile["api_url"], Path(profile["key_file"]).read_text(encoding="ascii").strip())

    def type(self, *words: str, **environment: str) -> str:
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.folder), **environment}
        answer = subprocess.run(
            [self.python, "-m", "muster", *words],
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

    def kinds(self, *, after: int) -> list[str]:
        """Return the kinds of the events since that position, in their order."""
        return [event["kind"] for event in self.events() if event["position"] > after]

    def stop(self) -> None:
        self.client.close()
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(120) == 0


@pytest.fixture
def up(server_folder: Path, warm_muster: WarmPython, warm_stack: WarmPython, warm_python: WarmPython) -> Iterator[Up]:
    folder = Path(tempfile.mkdtemp(prefix="recovery-", dir=server_folder))
    folder.chmod(0o711)
    up = Up(folder, warm_muster.path, warm_stack, warm_python.daemon)
    yield up
    up.stop()
    assert gone_within(str(up.state), 60), processes_marked(str(up.state))


def test_the_readme_may_be_typed_word_by_word_and_its_xid_costs_a_job_the_gpu_and_nothing_else(up: Up) -> None:
    """Put in: the example that goes slowly at first, the job's id and GPU for ``job_…`` and ``GPU-…``.

    No event is followed: all of them are read at the end.
    """
    use_it = (REPOSITORY / "README.md").read_text(encoding="utf-8").split("## Use it")[1].split("\n## ")[0]
    lines = [line for line in use_it.splitlines() if line.startswith(".venv/bin/muster ")]
    verbs = [" ".join(line.split()[1:3]) for line in lines]
    assert verbs == ["job submit", "job submit", "job show", "sim inject", "event list", "gpu show"]
    hello, submit, show, inject, listen, look = (line.split()[1:] for line in lines)
    assert "[1] rank 1 of 2: the sum over all ranks is 3, expected 3" in up.type(*put_in(hello))

    wait_until(lambda: "job.succeeded" in up.kinds(after=0))
    hello_ended = up.events()[-1]["position"]
    slowly = {TRAINS: f"{slow_at_first(up.folder)} --steps 80 --checkpoint-every 5"}
    job_id = up.type(*put_in(submit, **slowly)).split()[0]
    wait_until(lambda: sum(bool(row["committed_at"]) for row in up.client.checkpoints(job_id)) >= 2, timeout_s=300)
    held = up.client.job(job_id)["attempts"][0]["hosts"][0]["gpus"]
    assert held[0] in up.type(*put_in(show, **{"job_…": job_id}))
    injected = time.time()
    up.type(*put_in(inject, **{"GPU-…": held[0]}))
    up.type(*(word for word in listen if word != "--follow"))
    wait_until(lambda: f"{held[0]}  QUARANTINED" in up.type(*put_in(look, **{"GPU-…": held[0]})), timeout_s=300)

    wait_until(lambda: up.client.job(job_id)["finished_at"] is not None, timeout_s=300)
    job = up.client.job(job_id)
    assert (job["state"], job["restarts_used"]) == ("SUCCEEDED", 0)
    assert [attempt["cause"] for attempt in job["attempts"]] == ["evacuated", "succeeded"]
    assert held[0] not in job["attempts"][1]["hosts"][0]["gpus"]
    assert held[1] in job["attempts"][1]["hosts"][0]["gpus"], "the good GPU is kept"
    assert [step["step"] for step in up.client.steps(job_id)] == list(range(1, 81))
    of_first = [row for row in up.client.checkpoints(job_id) if row["attempt_id"] == job["attempts"][0]["id"]]
    assert all(row["committed_at"] for row in of_first), "nothing stays WRITING once its attempt has ended"
    doubtful = [row for row in of_first if _when(row["committed_at"]) >= injected - MARGIN_S]
    unmarked = [row for row in doubtful if not row["reason"] and row["status"] != "EXPIRED"]
    assert any(row["reason"] for row in doubtful), "each that came within the margin before the fault is marked"
    assert not unmarked, "except the checkpoints that retention had taken before"
    order = ["evidence.found", "gpu.quarantined", "attempt.evacuating", "job.recovering", "job.succeeded"]
    wait_until(lambda: "job.succeeded" in up.kinds(after=hello_ended))
    assert [kind for kind in up.kinds(after=hello_ended) if kind in order] == order


def put_in(words: list[str], **places: str) -> list[str]:
    """The README's words, with what they name as it is here."""
    line = " ".join(words)
    for name, here in places.items():
        assert name in line
        line = line.replace(name, here)
    return line.replace("examples/", f"{REPOSITORY}/examples/").split()


def _when(stamp: str | None) -> float:
    """Unix time; what has not happened is infinitely late."""
    if stamp is None:
        return math.inf
    return datetime.fromisoformat(stamp).timestamp()
