"""Programs that misbehave, submitted by REST to the real stack: causes named, words capped, everything freed."""

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.documents import JobDetail
from tests.fleet_factory import ENDS_AT_ITS_FAULT
from tests.slow_at_first import slow_at_first
from tests.stack.harness import Stack, gone_within, own_folder, running_stack
from tests.warm_python import WarmPython
from workers.host.supervisor.record.log_streams import TAIL_BYTES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(999)", MARK])
time.sleep(0.3)
"""


@pytest.fixture(scope="module")
def stack(server_folder: Path, warm_stack: WarmPython, warm_python: WarmPython) -> Iterator[Stack]:
    with running_stack(own_folder(server_folder, "programs"), warm_stack, warm_python) as stack:
        yield stack


def run(stack: Stack, name: str, code: str, **spec: Any) -> JobDetail:
    body = {
        "name": name,
        "program": {"launcher": "command", "argv": [sys.executable, "-c", code]},
        **ENDS_AT_ITS_FAULT,
        **spec,
    }
    job_id = stack.client.submit_job(body)["id"]
    stack.wait(lambda: stack.client.job(job_id)["finished_at"] is not None)
    return stack.client.job(job_id)


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("exits-3", "import sys; sys.exit(3)", "3"),
        ("raises", "raise RuntimeError('no data here')", "no data here"),
        ("killed", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
        ("segfault", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
    ],
)
def test_a_failing_program_fails_its_job_with_the_proof(stack: Stack, name: str, code: str, words: str) -> None:
    job = run(stack, name, code)
    assert (job["state"], job["attempts"][0]["cause"]) == ("FAILED", "user_error")
    assert words in (job["attempts"][0]["proof"] or "")
    stack.require_order()


def test_a_missing_program_is_the_tenants_fault_and_holds_the_job_until_it_is_there(stack: Stack) -> None:
    script = stack.folder / "late.py"
    job_id = stack.client.submit_job({"name": "missing", "program": {"script": str(script)}})["id"]
    job = stack.wait_for(job_id, "HELD")
    assert [attempt["cause"] for attempt in job["attempts"]] == ["user_error"]
    assert f"the script {script} does not exist; held" in job["state_reason"]
    script.touch()
    stack.client.release_job(job_id)
    assert len(stack.wait_for(job_id, "SUCCEEDED")["attempts"]) == 2
    stack.require_order()


def test_a_jobs_arguments_are_its_programs_own(stack: Stack) -> None:
    script = stack.folder / "args.py"
    script.write_text("import sys; print('ARGS', sys.argv[1:], flush=True)")
    own = ["--log", "x", "--run", "y", "--max", "3", "--node", "a", "--", "-h"]
    job_id = stack.client.submit_job({"name": "args", "program": {"script": str(script), "args": own}})["id"]
    assert len(stack.wait_for(job_id, "SUCCEEDED")["attempts"]) == 1
    assert f"ARGS {own}" in "".join(piece["text"] for piece in stack.client.logs(job_id))
    stack.require_order()


def test_a_program_past_its_wall_time_is_stopped(stack: Stack) -> None:
    job = run(stack, "hangs", "import time; time.sleep(999)", wall_time_s=1.0, stop_grace_s=1.0)
    assert (job["state"], job["attempts"][0]["cause"]) == ("FAILED", "walltime")
    stack.require_order()


def test_a_hundred_megabytes_of_words_are_capped(stack: Stack) -> None:
    job = run(stack, "loud", "import sys\nfor _ in range(100): sys.stdout.write('x' * (1 << 20))")
    assert job["state"] == "SUCCEEDED"
    stored = sum(len(piece["text"]) for piece in stack.client.logs(job["id"]))
    assert 4 << 20 <= stored <= (8 << 20) + TAIL_BYTES + 4096
    stack.require_order()


def test_a_daemon_that_left_its_session_is_ended_with_its_attempt(stack: Stack) -> None:
    mark = str(stack.folder / "daemon-mark")
    job = run(stack, "daemon", DAEMON.replace("MARK", repr(mark)))
    assert job["state"] == "SUCCEEDED"
    stack.require_order()
    assert gone_within(f"time.sleep(999) {mark}", 30)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="TORCH IS NOT INSTALLED: nothing is trained")
def test_training_that_is_killed_goes_on_at_the_exact_next_step(stack: Stack) -> None:
    """Two ranks; its supervisor is killed after a checkpoint. Each step is trained, none is skipped."""
    args = ["--steps", "40", "--checkpoint-every", "5"]
    program = {"script": slow_at_first(stack.folder), "args": args}
    job_id = stack.client.submit_job({"name": "training", "program": program, "shape": {"gpus_per_node": 2}})["id"]
    stack.wait(lambda: any(row["committed_at"] for row in stack.client.checkpoints(job_id)))
    stack.kill_supervisor(job_id)
    job = stack.wait_for(job_id, "SUCCEEDED")
    assert [item["cause"] for item in job["attempts"]] == ["node_lost", "succeeded"]
    stack.wait(lambda: len(stack.client.ranks(job_id)) == 2)
    steps = list(stack.client.steps(job_id))
    assert [step["step"] for step in steps] == list(range(1, 41))
    resumed_at = min(step["step"] for step in steps if step["attempt_id"] == job["attempts"][1]["id"])
    assert resumed_at % 5 == 1, "the step behind a checkpoint"
    assert resumed_at > 1
    first, last = steps[0]["loss"], steps[-1]["loss"]
    assert first is not None
    assert last is not None
    assert last < first
    statuses = [item["status"] for item in stack.client.checkpoints(job_id)]
    assert statuses.count("EXPIRED") >= 2
    assert {"VERIFIED", "GOOD"} & set(statuses)
    stack.require_order()


def test_a_job_runs_in_its_tenants_virtual_environment(stack: Stack, tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True, timeout=300)
    code = f"import sys; sys.exit(0 if sys.prefix == {str(venv)!r} else 3)"
    program = {"launcher": "command", "argv": ["python", "-c", code], "venv": str(venv)}
    job_id = stack.client.submit_job({"name": "in-a-venv", "program": program})["id"]
    stack.wait(lambda: stack.client.job(job_id)["finished_at"] is not None)
    job = stack.client.job(job_id)
    assert job["state"] == "SUCCEEDED", job["state_reason"]


def test_a_virtual_environment_that_is_not_there_is_the_tenants_fault(stack: Stack) -> None:
    program = {"launcher": "command", "argv": ["python"], "venv": "/nowhere/venv"}
    job_id = stack.client.submit_job({"name": "no-venv", "program": program, **ENDS_AT_ITS_FAULT})["id"]
    job = stack.wait_for(job_id, "FAILED")
    assert job["attempts"][0]["cause"] == "user_error"
    assert "/nowhere/venv is no virtual environment on this host" in (job["attempts"][0]["proof"] or "")


def test_out_of_gpu_memory_a_job_goes_on_with_smaller_pieces(stack: Stack) -> None:
    code = (
        "import os, sys\n"
        "if int(os.environ.get('MUSTER_ACCUMULATION', '1')) < 4:\n"
        "    sys.exit('torch.OutOfMemoryError: CUDA out of memory')\n"
    )
    job = run(stack, "short", code, restart={"gpu_oom_doublings": 3})
    assert [attempt["cause"] for attempt in job["attempts"]] == ["gpu_oom", "gpu_oom", "succeeded"]
    assert (job["state"], job["restarts_used"], job["accumulation"]) == ("SUCCEEDED", 0, 4)
