"""A torchrun that waits with its imports done: the same to the program as a fresh one, and never in its way."""

import importlib.util
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from workers.host import supervisor
from workers.host.supervisor import standby
from workers.host.supervisor.proof.processes import read_process
from workers.host.supervisor.user.job_user import JobUser

from .attempt_case import Attempt, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        importlib.util.find_spec("torch") is None, reason="TORCH IS NOT INSTALLED: torchrun is not tested here"
    ),
]

REPORTS_ENVIRONMENT = """
import json, os, signal, sys
umask = os.umask(0)
ignored = [number for number in range(1, 32) if signal.getsignal(number) is signal.SIG_IGN]
blocked = [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())]
descriptors = sorted(os.listdir('/proc/self/fd'))
launcher = int(open(f'/proc/{os.getppid()}/stat').read().rsplit(')', 1)[1].split()[1])
found = dict(env=dict(os.environ), path=sys.path, cwd=os.getcwd(), umask=umask, ignored=ignored, blocked=blocked,
             argv=sys.argv, descriptors=len(descriptors), launcher=launcher)
print(json.dumps(found))
"""
TAKES_AN_ORDER = """
import os, socket, sys
channel = socket.socket(fileno=int(sys.argv[1]))
channel.sendall(b"r")
while not channel.recv(1 << 16).endswith(b"\\n"):
    pass
channel.close()
os._exit(7)
"""
SPAWNS = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from workers.host.supervisor import WaitingSupervisor
waiting = WaitingSupervisor(sys.executable, Path(sys.argv[2]))  # it ends with this reference
print(waiting.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hand-over is late only where a test sets its patience."""
    monkeypatch.setattr(supervisor.spawning, "_HAND_OVER_PATIENCE_S", 60.0)


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[supervisor.WaitingSupervisor]:
    one = supervisor.WaitingSupervisor(sys.executable, tmp_path / "standby.log")
    yield one
    one.close()


def order(attempt: Attempt, source: str, **fields: object) -> None:
    script = attempt.folder / "program.py"
    script.write_text(source, encoding="utf-8")
    attempt.order(**{"launcher": "torchrun", "script": str(script), "ranks_per_node": 1, **fields})


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]


def torchrun_of(pid: int) -> int:
    until(lambda: bool(children_of(pid)), "its torchrun")
    [torchrun] = children_of(pid)
    return torchrun


def is_gone(pid: int) -> bool:
    found = read_process(pid)
    return found is None or found.state == "Z"


def environment(attempt: Attempt) -> dict[str, object]:
    attempt.ended(180)
    found = json.loads(attempt.log().splitlines()[-1])
    found.pop("launcher")
    # torchrun makes up these for each run.
    for name in ("TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_RUN_ID"):
        found["env"].pop(name, None)
    return dict(found)


def test_a_program_cannot_report_a_warm_start_from_a_cold_one(
    attempt: Attempt, waiting: supervisor.WaitingSupervisor
) -> None:
    fields = {"args": ["--lr", "0.1"], "env": {"GREETING": "hällo\nyou"}}
    order(attempt, REPORTS_ENVIRONMENT, **fields)
    supervisor.spawn_supervisor(attempt.folder)
    cold = environment(attempt)
    for path in sorted(attempt.folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    order(attempt, REPORTS_ENVIRONMENT, **fields)
    torchrun = torchrun_of(waiting.pid)
    assert waiting.take(attempt.folder)
    warm = environment(attempt)
    assert warm == cold
    assert attempt.read("supervisor.json")["pid"] == waiting.pid
    assert attempt.read("exit.json")["launcher_exit_code"] == 0
    assert is_gone(torchrun)


def test_the_waiting_torchrun_itself_becomes_the_launcher(
    attempt: Attempt, waiting: supervisor.WaitingSupervisor
) -> None:
    order(attempt, REPORTS_ENVIRONMENT)
    torchrun = torchrun_of(waiting.pid)
    assert waiting.take(attempt.folder)
    attempt.ended(180)
    assert json.loads(attempt.log().splitlines()[-1])["launcher"] == torchrun


def test_one_that_runs_before_its_order_is_sent_to_the_end_is_not_started_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "takes.py").write_text(TAKES_AN_ORDER, encoding="utf-8")
    monkeypatch.setattr(standby, "_WARM_TORCHRUN", tmp_path / "takes.py")
    send = socket.send_fds

    def sends_to_a_fast_one(channel: socket.socket, buffers: list[bytes], fds: list[int]) -> int:
        sent = send(channel, buffers, fds)
        closed = select.poll()
        closed.register(channel, select.POLLHUP)
        assert closed.poll(60_000)
        return sent

    monkeypatch.setattr(socket, "send_fds", sends_to_a_fast_one)
    warm = standby.Standby(sys.executable)
    assert warm.run(["--help"], {}, "/", 2, lambda _: None, JobUser(None, None))
    assert os.waitpid(warm.pid, 0) == (warm.pid, 7 << 8)


def test_what_torchrun_states_is_in_the_launchers_log(attempt: Attempt, waiting: supervisor.WaitingSupervisor) -> None:
    order(attempt, "raise SystemExit(3)")
    assert waiting.take(attempt.folder)
    record = attempt.ended(180)
    assert record["ranks"]["0"]["exit_code"] == 3
    assert "ChildFailedError" in attempt.log("launcher")


@pytest.mark.parametrize(
    "fields",
    [
        {"launcher": "command", "command": [sys.executable, "-c", "print('ran')"]},
        {"env": {"PYTHONPATH": "/nowhere"}},
        {"env": {"TORCH_LOGS": "all"}},
        {"python": "/usr/bin/env"},
    ],
)
def test_an_order_that_it_does_not_fit_finds_it_gone(
    attempt: Attempt, waiting: supervisor.WaitingSupervisor, fields: dict[str, object]
) -> None:
    order(attempt, "print('ran')", **fields)
    torchrun = torchrun_of(waiting.pid)
    assert waiting.take(attempt.folder)
    attempt.ended(180)
    assert is_gone(torchrun)
    assert "ran" in attempt.log() or fields.get("python") == "/usr/bin/env"
    assert attempt.read("clean.json")["clean"]


def test_one_whose_torchrun_has_died_starts_a_fresh_one(
    attempt: Attempt, waiting: supervisor.WaitingSupervisor
) -> None:
    order(attempt, "print('ran')")
    torchrun = torchrun_of(waiting.pid)
    os.kill(torchrun, signal.SIGKILL)
    assert waiting.take(attempt.folder)
    assert attempt.ended(180)["ranks"]["0"]["exit_code"] == 0


def test_one_that_has_died_takes_nothing(attempt: Attempt, waiting: supervisor.WaitingSupervisor) -> None:
    order(attempt, "print('ran')")
    os.kill(waiting.pid, signal.SIGKILL)
    until(lambda: is_gone(waiting.pid), "its end")
    assert not waiting.take(attempt.folder)
    assert supervisor.adopt(attempt.folder).state == "not_started"


def test_a_stop_reaches_a_program_that_was_started_warm(
    attempt: Attempt, waiting: supervisor.WaitingSupervisor
) -> None:
    order(attempt, "import time; print('up', flush=True); time.sleep(600)", grace_s=5.0)
    assert waiting.take(attempt.folder)
    attempt.wait_for_log("up")
    attempt.stop("cancelled", 5.0)
    record = attempt.ended()
    assert record["ranks"]["0"]["signal"] == signal.SIGTERM
    assert record["stop_reason"] == "cancelled"
    assert attempt.read("clean.json")["clean"]


def test_it_dies_with_its_launcher_before_an_order_and_lives_on_after_one(attempt: Attempt, tmp_path: Path) -> None:
    root = str(Path(__file__).resolve().parents[4])
    command = [sys.executable, "-c", SPAWNS, root, str(tmp_path / "standby.log")]
    launcher = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert launcher.stdout is not None
    pid = int(launcher.stdout.readline())
    torchrun = torchrun_of(pid)
    launcher.kill()
    launcher.wait()
    launcher.stdout.close()
    until(lambda: is_gone(pid) and is_gone(torchrun), "the end of both")
    waiting = supervisor.WaitingSupervisor(sys.executable, tmp_path / "standby.log")
    order(attempt, "import time; print('up', flush=True); time.sleep(0.5)")
    assert waiting.take(attempt.folder)  # this closes the launcher's end
    assert attempt.ended(180)["ranks"]["0"]["exit_code"] == 0
