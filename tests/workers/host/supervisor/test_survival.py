"""The supervisor against everybody's death, its own included."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from workers.host import supervisor
from workers.host.supervisor.proof.processes import read_process

from .attempt_case import Attempt, until

SLEEPS = "import time; print('up', flush=True); time.sleep(600)"
SPAWNS = """
import os, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from workers.host.supervisor import spawn_supervisor
spawn_supervisor(Path(sys.argv[2]))
os.kill(os.getpid(), 9)
"""


def test_killing_the_spawner_at_once_changes_nothing(attempt: Attempt) -> None:
    attempt.order(command=[sys.executable, "-c", "import time; time.sleep(0.5); print('done')"])
    root = str(Path(__file__).resolve().parents[4])
    spawner = subprocess.run(
        [sys.executable, "-c", SPAWNS, root, str(attempt.folder)], check=False, timeout=90
    )  # our own
    assert spawner.returncode == -9
    assert attempt.ended()["ranks"]["0"]["exit_code"] == 0


def test_the_supervisor_is_in_nobodys_tree_session_or_group(attempt: Attempt) -> None:
    attempt.order(command=[sys.executable, "-c", SLEEPS])
    pid = supervisor.spawn_supervisor(attempt.folder)
    attempt.wait_for_log("up")
    found = read_process(pid)
    assert found is not None
    assert found.ppid != os.getpid()
    assert os.getsid(pid) != os.getsid(0)
    assert os.getpgid(pid) != os.getpgid(0)
    adopted = supervisor.adopt(attempt.folder)
    assert (adopted.state, adopted.pid) == ("running", pid)


def test_a_second_supervisor_is_refused_while_the_first_lives(attempt: Attempt) -> None:
    attempt.start(SLEEPS)
    attempt.wait_for_log("up")
    assert attempt.supervise_again().returncode == 10
    assert len(attempt.processes()) == 1


def test_nothing_starts_twice_after_the_end(attempt: Attempt) -> None:
    attempt.start("print('done')")
    attempt.ended()
    until(lambda: attempt.supervise_again().returncode == 11, "the refusal")
    assert attempt.log() == "done\n"


def test_many_spawns_at_once_start_one_program(attempt: Attempt) -> None:
    attempt.order(command=[sys.executable, "-uc", "import time; print('up'); time.sleep(1)"])
    threads = [threading.Thread(target=supervisor.spawn_supervisor, args=(attempt.folder,)) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    attempt.ended()
    assert attempt.log() == "up\n"


def test_requesting_never_hinders_a_start(attempt: Attempt) -> None:
    attempt.order(command=[sys.executable, "-c", "print('done')"])
    assert supervisor.adopt(attempt.folder).state == "not_started"
    supervisor.spawn_supervisor(attempt.folder)
    until(lambda: supervisor.adopt(attempt.folder).state == "exited", "the end, asked for without a pause")
    assert attempt.ended()["ranks"]["0"]["exit_code"] == 0


def test_a_killed_supervisor_takes_its_program_along_and_reaping_leaves_nothing(attempt: Attempt) -> None:
    attempt.start(
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid(); time.sleep(600)\n"
        "print('up', flush=True); time.sleep(600)"
    )
    attempt.wait_for_log("up")
    assert len(attempt.processes()) == 2
    program = int(attempt.read("ranks/0.json")["pid"])
    os.kill(attempt.supervisor_pid(), signal.SIGKILL)
    until(lambda: program not in attempt.processes(), "the program's death")
    assert supervisor.adopt(attempt.folder).state == "vanished"
    record = supervisor.reap_vanished(attempt.folder)
    assert record["supervisor_vanished"]
    assert record["killed_descendants"] == 1
    assert not attempt.processes()
    assert attempt.read("exit.json") == record
    assert attempt.read("clean.json")["clean"]
    assert supervisor.adopt(attempt.folder).state == "exited"
    assert attempt.supervise_again().returncode == 11


def test_a_living_supervisor_cannot_be_reaped(attempt: Attempt) -> None:
    attempt.start(SLEEPS)
    attempt.wait_for_log("up")
    with pytest.raises(RuntimeError, match="living supervisor"):
        supervisor.reap_vanished(attempt.folder)
    assert not supervisor.prove_clean(attempt.folder)["clean"]


def test_a_terminated_supervisor_ends_its_program_with_grace_and_records_it(attempt: Attempt) -> None:
    attempt.start(SLEEPS)
    attempt.wait_for_log("up")
    os.kill(attempt.supervisor_pid(), signal.SIGTERM)
    record = attempt.ended()
    assert (record["stop_reason"], record["ranks"]["0"]["signal"]) == ("host_shutdown", 15)


def test_records_are_for_their_owner_alone(attempt: Attempt) -> None:
    attempt.start("print('done')")
    attempt.ended()
    modes = {path.name: path.stat().st_mode & 0o077 for path in attempt.folder.rglob("*") if path.name != "order.json"}
    assert {name for name, mode in modes.items() if mode} == set()


def test_from_spawn_to_exec_takes_a_fraction_of_a_second(make_attempt: Callable[[], Attempt]) -> None:
    took_ms = []
    for _ in range(5):
        attempt = make_attempt()
        asked_ns = time.time_ns()
        attempt.start("print('done')")
        attempt.ended()
        took_ms.append((attempt.read("ranks/0.json")["exec_at_unix_ns"] - asked_ns) / 1e6)
    # Not each: other processes share this machine and its disk.
    assert min(took_ms) < 500, f"{took_ms} ms; some 50 ms on an idle machine"
