"""Under torchrun: one record and one log a rank, and a grace that torchrun does not cut short.

Where a test is about ends, torchrun and ranks are forks of a warm interpreter. The others start them as jobs do.
"""

import importlib.util
import os
import signal
from pathlib import Path

import pytest

from muster.domain.exit.exits import classify, parse_exit_record
from muster.domain.states import Cause
from tests.warm_python import WarmPython
from workers.host import supervisor
from workers.host.supervisor import files
from workers.host.supervisor.lock import is_locked
from workers.host.supervisor.proof.processes import listening_ports, living_processes

from .attempt_case import Attempt, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        importlib.util.find_spec("torch") is None, reason="TORCH IS NOT INSTALLED: torchrun is not tested here"
    ),
]

CHECKPOINTS_WITH_LOADER = """
import os, signal, sys, time
worker = os.fork()
if worker == 0:
    time.sleep(600)
def save(*_):
    print("notified", flush=True)
    time.sleep(1.0 if os.environ["RANK"] == "0" else 0.1)
    print("loader", "died" if os.waitpid(worker, os.WNOHANG)[0] else "lives", flush=True)
    sys.exit(0 if os.environ["RANK"] == "0" else 75)
signal.signal(signal.SIGTERM, save)
print("up", flush=True)
while True:
    time.sleep(0.1)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "train.py"


def start(attempt: Attempt, script: Path, source: str, **fields: object) -> None:
    script.write_text(source, encoding="utf-8")
    attempt.order(launcher="torchrun", script=str(script), ranks_per_node=2, **fields)
    supervisor.spawn_supervisor(attempt.folder)


def test_ranks_have_their_own_logs_records_and_environment(attempt: Attempt, script: Path) -> None:
    source = (
        "import os, sys; import torch.distributed as dist\n"
        "dist.init_process_group('gloo'); rank = dist.get_rank(); total = __import__('torch').ones(1)\n"
        "dist.all_reduce(total); print(rank, int(total), os.getcwd(), sys.argv[1:], os.getpgid(0) == os.getpid())\n"
        "dist.destroy_process_group()\n"
    )
    start(attempt, script, source, args=["--lr", "0.1"], working_dir="/usr")
    record = attempt.ended(180)
    assert record["launcher_exit_code"] == 0, attempt.log("launcher")
    assert [record["ranks"][rank]["exit_code"] for rank in "01"] == [0, 0]
    for rank in "01":
        assert f"{rank} 2 /usr ['--lr', '0.1'] True" in attempt.log(rank)
    assert attempt.read("clean.json")["clean"]


def test_each_rank_keeps_its_own_exit_code_or_signal_and_excerpt(
    attempt: Attempt, script: Path, warm_python: WarmPython
) -> None:
    source = (
        "import os, sys, time\n"
        "while os.environ['RANK'] == '1' and not os.path.exists('up'): time.sleep(0.01)\n"
        "if os.environ['RANK'] == '1': raise ValueError('bad shape')\n"
        "open('up', 'w').close()\n"
        "time.sleep(600)\n"
    )
    start(attempt, script, source, python=str(warm_python.daemon), grace_s=30.0)
    record = attempt.ended(180)
    assert record["ranks"]["1"]["exit_code"] == 1
    assert record["ranks"]["1"]["error_excerpt"].endswith("ValueError: bad shape")
    assert record["ranks"]["0"]["signal"] == 15
    assert record["ranks"]["0"]["ended_at_ms"] >= record["ranks"]["1"]["ended_at_ms"]


def test_an_exception_that_torch_recorded_is_taken_from_there(
    attempt: Attempt, script: Path, warm_python: WarmPython
) -> None:
    source = (
        "from torch.distributed.elastic.multiprocessing.errors import record\n"
        "@record\n"
        "def main(): raise ValueError('bad shape')\n"
        "try: main()\n"
        "except ValueError: print('x' * 100_000); raise SystemExit(5)\n"
    )
    start(attempt, script, source, python=str(warm_python.daemon), grace_s=1.0)
    ranks = attempt.ended(180)["ranks"]
    assert any("ValueError: bad shape" in (rank["error_excerpt"] or "") for rank in ranks.values())


@pytest.mark.parametrize("number", [9, 11])
def test_a_signalled_rank_is_reported_from_a_failed_one(
    attempt: Attempt, script: Path, warm_python: WarmPython, number: int
) -> None:
    source = f"import os, time\nif os.environ['RANK'] == '0': os.kill(os.getpid(), {number})\ntime.sleep(600)\n"
    start(attempt, script, source, python=str(warm_python.daemon), grace_s=1.0)
    assert attempt.ended(180)["ranks"]["0"]["signal"] == number


def test_every_rank_checkpoints_in_its_grace_and_its_loader_lives(
    attempt: Attempt, script: Path, warm_python: WarmPython
) -> None:
    """Rank 1 ends first, and not with 0: torchrun must neither end rank 0 early nor signal it twice."""
    start(attempt, script, CHECKPOINTS_WITH_LOADER, python=str(warm_python.daemon), grace_s=0.1)
    for rank in "01":
        attempt.wait_for_log("up", rank, 180)
    attempt.stop("reclaim", after_s=120)
    record = attempt.ended(180)
    assert [record["ranks"][rank]["exit_code"] for rank in "01"] == [0, 75]
    assert record["stop_reason"] == "reclaim"
    for rank in "01":
        assert attempt.log(rank).count("notified") == 1
        assert "loader lives" in attempt.log(rank)
    assert not attempt.processes()


def test_a_stop_while_torchrun_still_starts_ends_it(attempt: Attempt, script: Path) -> None:
    start(attempt, script, "import time; time.sleep(600)\n")
    until(lambda: bool(attempt.processes()), "torchrun")
    attempt.stop("cancel", after_s=120)
    record = attempt.ended(180)
    assert record["stop_reason"] == "cancel"
    assert record["spawn_error"] is None


def test_a_stop_while_ranks_still_import_ends_them_at_once_and_as_stopped(attempt: Attempt, script: Path) -> None:
    """No handler is installed yet, so the signal ends them: nothing is waited for, and there is nothing to save."""
    start(attempt, script, "print('imports', flush=True)\nimport time; time.sleep(600)\nfrom muster import train\n")
    for rank in "01":
        attempt.wait_for_log("imports", rank, 180)
    attempt.stop("reclaim", after_s=120)
    record = attempt.ended(180)
    assert [record["ranks"][rank]["signal"] for rank in "01"] == [signal.SIGTERM, signal.SIGTERM]
    assert classify(parse_exit_record(record), None).cause is Cause.RECLAIMED


def test_ranks_that_ignore_sigterm_die_at_the_deadline(attempt: Attempt, script: Path) -> None:
    source = "import signal, time\nsignal.signal(15, signal.SIG_IGN); print('up', flush=True)\ntime.sleep(600)\n"
    start(attempt, script, source)
    for rank in "01":
        attempt.wait_for_log("up", rank, 180)
    attempt.stop("reclaim", after_s=0.5)
    record = attempt.ended(180)
    assert [record["ranks"][rank]["signal"] for rank in "01"] == [9, 9]
    assert attempt.read("clean.json")["clean"]


def test_a_killed_supervisor_takes_torchrun_and_all_ranks_along(attempt: Attempt, script: Path) -> None:
    start(attempt, script, "import time; print('up', flush=True); time.sleep(600)\n")
    for rank in "01":
        attempt.wait_for_log("up", rank, 180)
    os.kill(attempt.supervisor_pid(), signal.SIGKILL)
    until(lambda: not attempt.processes(), "everybody's death")
    record = supervisor.reap_vanished(attempt.folder)
    assert record["supervisor_vanished"]
    assert attempt.read("clean.json")["clean"]


def test_a_killed_torchrun_ends_the_ranks_and_is_recorded(attempt: Attempt, script: Path) -> None:
    start(attempt, script, "import time; print('up', flush=True); time.sleep(600)\n")
    attempt.wait_for_log("up", "0", 180)
    ranks = {int(attempt.wait_for(f"ranks/{rank}.json")[key]) for rank in "01" for key in ("pid", "entry_pid")}
    (launcher,) = attempt.processes() - ranks
    os.kill(launcher, signal.SIGKILL)
    record = attempt.ended(180)
    assert record["launcher_signal"] == 9
    assert [record["ranks"][rank]["signal"] for rank in "01"] == [9, 9]
    assert not ranks & living_processes().keys()
    assert attempt.rendezvous_port not in listening_ports()
    assert not is_locked(attempt.folder / files.LOCK)
