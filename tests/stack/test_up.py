"""``muster up`` as its user meets it: a taken port, a second one, its terminal closed with a job that runs."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.cli.framework.exits import Exit
from muster.client.rest import RestClient
from muster.ports import free_port
from tests.stack.harness import gone_within, processes_marked
from tests.waiting import wait_until
from tests.warm_python import WarmPython

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
COMMAND = [sys.executable, "-m", "muster", "up", "--hosts", "h100", "--gpus", "2", "--state-dir"]


@pytest.fixture
def state(server_folder: Path, warm_python: WarmPython, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Its GPUs are proved by a warm interpreter."""
    monkeypatch.setenv("MUSTER_JOB_PYTHON", str(warm_python.daemon))
    folder = server_folder / "up"
    yield folder
    assert gone_within(str(folder), 60), processes_marked(str(folder))


def test_a_taken_port_a_second_stack_and_a_closed_terminal_with_a_running_job(state: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = holder.getsockname()[1]
        output = state.parent / "up.txt"
        with output.open("wb") as file:
            stack = subprocess.Popen([*COMMAND, str(state), "--port", str(taken)], stdout=file, stderr=file)
        wait_until((state / "cli.json").exists, timeout_s=240)
    assert f"port {taken} is taken" in output.read_text()
    second = subprocess.run([*COMMAND, str(state)], capture_output=True, text=True, check=False, timeout=180)
    assert second.returncode == 1
    assert "another `muster up` works in" in second.stderr
    assert "Traceback" not in second.stderr
    profile = json.loads((state / "cli.json").read_text())
    marker = str(state / "runs-on")
    program = {"launcher": "command", "argv": [sys.executable, "-c", "import time; time.sleep(900)", marker]}
    with RestClient(profile["api_url"], Path(profile["key_file"]).read_text().strip()) as client:
        client.submit_job({"name": "long", "program": program})
    wait_until(lambda: processes_marked(marker) != [], timeout_s=300)  # burn-in and probation come first
    stack.send_signal(signal.SIGHUP)  # its terminal was closed; Ctrl-C takes the same way
    assert stack.wait(120) == 0
    assert gone_within(str(state), 30), processes_marked(str(state))
    assert not (state / "cli.json").exists()


def test_killed_it_takes_everything_along(state: Path) -> None:
    with (state.parent / "up-killed.txt").open("wb") as file:
        stack = subprocess.Popen([*COMMAND, str(state), "--port", str(free_port())], stdout=file, stderr=file)
    wait_until((state / "cli.json").exists, timeout_s=240)
    stack.kill()
    stack.wait(60)
    assert gone_within(str(state), 30), processes_marked(str(state))


def test_interrupted_before_it_is_up_it_does_not_go_on_starting(state: Path) -> None:
    output = state.parent / "up-interrupted.txt"
    with output.open("wb") as file:
        command = [*COMMAND, str(state), "--port", str(free_port())]
        stack = subprocess.Popen(command, stdout=file, stderr=file, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    wait_until(lambda: "database" in output.read_text(), timeout_s=180)
    stack.send_signal(signal.SIGINT)
    assert stack.wait(120) == Exit.INTERRUPTED
    said = output.read_text()
    assert "Muster is up" not in said
    assert "Traceback" not in said
    assert gone_within(str(state), 30), processes_marked(str(state))
