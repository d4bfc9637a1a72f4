"""A result's whole way: a program writes it on its host, and its tenant lists and fetches it from the control plane."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from muster.client.rest import RestClient
from muster.ports import free_port
from tests.stack.forked_up import forked_up
from tests.stack.harness import gone_within, processes_marked
from tests.waiting import wait_until as wait_with_pauses
from tests.warm_python import WarmPython

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
REPOSITORY = Path(__file__).resolve().parents[2]
WRITES = """
import os, pathlib
out = pathlib.Path(os.environ["MUSTER_OUTPUT_DIR"])
(out / "model.pt").write_bytes(b"weights" * 1_000_000)
pathlib.Path("metrics.csv").write_text("1,2")
"""
wait_until = partial(wait_with_pauses, pause_s=0.5)


@pytest.fixture
def up(server_folder: Path, warm_python: WarmPython) -> Iterator[tuple[RestClient, Path]]:
    """``muster up`` with one host; yield a client of its tenant, and the folder of its user."""
    folder = server_folder / "user"
    folder.mkdir()
    command = forked_up(warm_python, "--hosts", "h100", "--gpus", "1", "--port", str(free_port()))
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "MUSTER_JOB_PYTHON": str(warm_python.daemon)}
    with (folder / "up.txt").open("wb") as output:
        stack = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder, env=environment)
    try:
        wait_until((folder / ".muster" / "cli.json").exists, timeout_s=240)
        profile = json.loads((folder / ".muster" / "cli.json").read_text(encoding="utf-8"))
        with RestClient(profile["api_url"], Path(profile["key_file"]).read_text(encoding="ascii").strip()) as client:
            yield client, folder
    finally:
        stack.terminate()
        stack.wait(120)
        assert gone_within(str(folder), 60), processes_marked(str(folder))


def test_a_model_comes_from_its_host_to_its_tenants_disk(up: tuple[RestClient, Path]) -> None:
    client, folder = up
    (folder / "train.py").write_text(WRITES)
    program = {"launcher": "command", "argv": [sys.executable, str(folder / "train.py")], "working_dir": str(folder)}
    spec = {"name": "makes-a-model", "program": program, "outputs": ["*.csv"]}
    job_id = client.submit_job(spec)["id"]
    wait_until(lambda: client.job(job_id)["state"] == "SUCCEEDED", timeout_s=300)
    wait_until(lambda: {file["path"] for file in client.files(job_id)} == {"metrics.csv", "model.pt"}, timeout_s=60)
    [sizes] = [{file["path"]: file["num_bytes"] for file in client.files(job_id)}]
    assert sizes == {"metrics.csv": 3, "model.pt": 7_000_000}
    command = [sys.executable, "-m", "muster", "job", "get", job_id, "-o", "fetched"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    answer = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert (folder / "fetched" / "model.pt").read_bytes() == b"weights" * 1_000_000
    assert (folder / "fetched" / "metrics.csv").read_text() == "1,2"
    wait_until(lambda: list((folder / ".muster").rglob("set_aside/*")) == [], timeout_s=60)
