"""How a program may end by itself, and what the record says of it."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from workers.host import supervisor
from workers.host.supervisor.proof.processes import living_processes, read_process
from workers.host.supervisor.proof.shared_memory import remove_tensors_of

from .attempt_case import Attempt


def test_success(attempt: Attempt) -> None:
    attempt.start("print('done')")
    record = attempt.ended()
    assert record["launcher_exit_code"] == 0
    assert record["ranks"]["0"]["exit_code"] == 0
    assert (record["attempt_id"], record["fence"], record["boot_id"]) == (attempt.folder.name, 7, "boot-test")
    assert attempt.log() == "done\n"
    assert attempt.read("clean.json")["clean"]
    assert supervisor.adopt(attempt.folder).state == "exited"


def test_exit_code(attempt: Attempt) -> None:
    attempt.start("raise SystemExit(3)")
    record = attempt.ended()
    assert (record["ranks"]["0"]["exit_code"], record["ranks"]["0"]["signal"]) == (3, None)


def test_exception_leaves_its_traceback_in_the_record(attempt: Attempt) -> None:
    attempt.start("print('x' * 9000); raise ValueError('bad shape')")
    rank = attempt.ended()["ranks"]["0"]
    assert rank["exit_code"] == 1
    assert rank["error_excerpt"].startswith("Traceback (most recent call last)")
    assert rank["error_excerpt"].endswith("ValueError: bad shape")


@pytest.mark.parametrize("number", [9, 11])
def test_signal(attempt: Attempt, number: int) -> None:
    attempt.start(f"import os; os.kill(os.getpid(), {number})")
    record = attempt.ended()
    assert (record["launcher_signal"], record["ranks"]["0"]["signal"]) == (number, number)
    assert record["stop_reason"] is None


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"command": ["/no/such/program"]}, "No such file"),
        ({"command": ["/etc/passwd"]}, "Permission denied"),
        ({"command": ["true"], "working_dir": "/no/such/folder"}, "/no/such/folder"),
        ({"launcher": "torchrun", "script": "/no/such/script.py"}, "/no/such/script.py"),
    ],
)
def test_what_cannot_be_started_is_the_programs_fault(attempt: Attempt, fields: dict[str, object], words: str) -> None:
    attempt.order(**fields)
    supervisor.spawn_supervisor(attempt.folder)
    record = attempt.ended()
    assert words in record["spawn_error"]
    assert record["spawn_fault"] == "program"


def test_a_host_without_torch_is_our_fault(attempt: Attempt) -> None:
    script = attempt.folder / "train.py"
    script.touch()
    attempt.order(launcher="torchrun", script=str(script), python="/bin/false")
    supervisor.spawn_supervisor(attempt.folder)
    record = attempt.ended()
    assert "before any rank started" in record["spawn_error"]
    assert record["spawn_fault"] == "host"


def test_a_corrupt_order_ends_at_once_with_a_record(attempt: Attempt) -> None:
    (attempt.folder / "order.json").write_text('{"schema": 1', encoding="utf-8")
    assert attempt.supervise_again().returncode == 12
    assert attempt.read("exit.json")["spawn_fault"] == "host"


def test_the_program_sees_its_own_environment_and_nothing_of_the_launchers(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_API_KEY", "mst_launcher")
    monkeypatch.setenv("PYTHONPATH", "/launcher")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    attempt.start(
        "import os; print(sorted(os.environ.items())); print(os.getcwd()); print(sorted(os.listdir('/proc/self/fd')))",
        env={"LEARNING_RATE": "0.1", "TORCH_FR_BUFFER_SIZE": "50"},
        working_dir="/usr",
    )
    attempt.ended()
    log = attempt.log()
    assert "launcher" not in log
    for words in (
        "('LEARNING_RATE', '0.1')",
        "('CUDA_VISIBLE_DEVICES', 'GPU-1,GPU-2')",
        f"('MUSTER_ATTEMPT_ID', '{attempt.folder.name}')",
        "('MUSTER_FENCE', '7')",
        "('OMP_NUM_THREADS', '1')",
        "('NCCL_DEBUG', 'INFO')",  # the host's own
        "('TORCH_FR_BUFFER_SIZE', '50')",  # the tenant's own
        f"('TORCH_FR_DUMP_TEMP_FILE', '{attempt.folder}/flight/rank_')",
        "('TORCH_NCCL_DUMP_ON_TIMEOUT', '1')",
        "/usr\n",
        "['0', '1', '2', '3']",  # 3 is the listing's own
    ):
        assert words in log


def test_a_hundred_megabytes_of_output_cost_neither_disk_nor_memory_nor_the_programs_time(attempt: Attempt) -> None:
    attempt.start(
        "import sys\nfor _ in range(1600): sys.stdout.write('0123456789abcde\\n' * 4096)\n"
        "print('the end', flush=True); import time; time.sleep(0.5); raise ValueError('late')"
    )
    pid = attempt.supervisor_pid()
    peak = 0
    while (process := read_process(pid)) is not None and process.state != "Z":
        with contextlib.suppress(OSError):  # it may end between the two looks
            status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
            peak = max([peak, *(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))])
        time.sleep(0.05)
    record = attempt.ended()
    written = 1600 * 4096 * 16
    log = (attempt.folder / "logs" / "0.log").read_bytes()
    head, marker, end = log[: 1 << 20], *log[1 << 20 :].split(b"\n", 2)[1:]
    assert head == b"0123456789abcde\n" * (len(head) // 16)
    dropped = record["dropped_log_bytes"]["0"]
    assert marker == f"[muster: {dropped} bytes were left out here, past the first {1 << 20}]".encode()
    assert end.startswith(b"0123456789abcde\n")
    assert b"the end\n" in end
    assert end.endswith(b"ValueError: late\n")
    assert written - (1 << 20) - (16 << 10) < dropped < written
    assert record["ranks"]["0"]["error_excerpt"].endswith("ValueError: late")
    assert attempt.read("logs/0.json")["dropped_bytes"] == record["dropped_log_bytes"]["0"]
    assert peak < 40_000, f"the supervisor grew to {peak} KiB"


def test_fifty_megabytes_without_a_newline(attempt: Attempt) -> None:
    attempt.start("import sys\nfor _ in range(50): sys.stdout.write('x' * (1 << 20))\nraise SystemExit(4)")
    record = attempt.ended()
    assert record["ranks"]["0"]["exit_code"] == 4
    assert len(record["ranks"]["0"]["error_excerpt"]) <= 4096
    log = (attempt.folder / "logs" / "0.log").read_bytes()
    assert log.count(b"x") == (1 << 20) + (16 << 10), "its head and its end"
    assert record["dropped_log_bytes"]["0"] == (49 << 20) - (16 << 10)


def test_daemons_that_left_the_session_and_hold_a_port_are_gone_with_the_program(attempt: Attempt) -> None:
    attempt.start(
        "import os, socket, time\n"
        "reader, writer = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        f"        server = socket.create_server(('127.0.0.1', {attempt.rendezvous_port}))\n"
        "        print('daemon', os.getpid(), flush=True); os.write(writer, b'x')\n"
        "        time.sleep(600)\n"
        "    os._exit(0)\n"
        "os.wait(); os.read(reader, 1)\n"
    )
    record = attempt.ended()
    daemon = int(attempt.log().split()[1])
    assert daemon not in living_processes()
    assert record["killed_descendants"] == 1
    proof = attempt.read("clean.json")
    assert proof.pop("gpu_processes_unknown")  # no driver knows GPUs of such names
    assert proof | {"checked_at_ms": 0} == {
        "clean": True,
        "processes_left": 0,
        "uid": None,
        "cgroup": record["cgroup"],
        "cgroup_empty": True,
        "ports_left": [],
        "scratch_removed": True,
        "secrets_removed": True,
        "container_removed": True,
        "gpu_processes": None,
        "checked_at_ms": 0,
    }


def test_a_daemon_that_dropped_its_environment_is_gone_too(attempt: Attempt) -> None:
    attempt.start(
        "import os\n"
        "reader, writer = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    print('daemon', os.getpid(), flush=True)\n"
        "    os.execve('/bin/sleep', ['sleep', '600'], {})\n"
        "os.close(writer); os.read(reader, 1)\n"  # the other end closes as the daemon becomes another program
    )
    attempt.ended()
    assert int(attempt.log().split()[1]) not in living_processes()


def test_scratch_is_the_programs_and_goes_with_it(attempt: Attempt) -> None:
    attempt.start("import tempfile; print(tempfile.mkdtemp())")
    attempt.ended()
    made = Path(attempt.log().strip())
    assert made.parent.name.startswith(("scratch", f"muster-{os.getuid()}-"))
    assert not made.parent.exists()


def test_only_this_hosts_part_of_a_shared_machine_is_ended(attempt: Attempt) -> None:
    environment = {"MUSTER_ATTEMPT_ID": attempt.folder.name, "MUSTER_NODE_ID": "node_other"}
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env=environment) as other:
        attempt.start("print('done')")
        attempt.ended()
        assert other.poll() is None
        other.kill()


NAMES_MEMORY = (
    "from multiprocessing.shared_memory import SharedMemory\n"
    "import os, signal, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "kept = SharedMemory(create=True, size=1 << 16)\n"
    "print('named', kept.name, flush=True)\n"
)


def segment_of(attempt: Attempt) -> Path:
    attempt.wait_for_log("\n")
    return Path("/dev/shm", attempt.log().split()[1])  # noqa: S108  # looked at, not written to


def test_what_a_killed_program_has_named_in_shared_memory_goes_with_it(attempt: Attempt) -> None:
    """By its own remover, which is the last to be killed; here without a user of its own to find the name by."""
    attempt.start(NAMES_MEMORY + "time.sleep(600)")
    segment = segment_of(attempt)
    assert segment.exists()
    attempt.stop("cancel", after_s=0)
    assert attempt.ended()["ranks"]["0"]["signal"] == signal.SIGKILL
    assert not segment.exists()
    assert attempt.read("clean.json")["clean"]


def test_what_a_crashed_program_has_named_goes_too(attempt: Attempt) -> None:
    attempt.start(NAMES_MEMORY + "os.kill(os.getpid(), 11)")
    segment = segment_of(attempt)
    assert attempt.ended()["ranks"]["0"]["signal"] == signal.SIGSEGV
    assert not segment.exists()


@pytest.mark.skipif(find_spec("torch") is None, reason="TORCH IS NOT INSTALLED: nothing is shared by it")
@pytest.mark.parametrize("last", ["time.sleep(600)", "os.kill(os.getpid(), 11)"])
def test_what_torch_has_named_goes_too_however_its_program_ends(attempt: Attempt, last: str) -> None:
    """Whose own manager takes two seconds for it, which it is not given."""
    attempt.start(
        "import os, signal, time, torch\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "torch.multiprocessing.set_sharing_strategy('file_system')\n"
        "kept = torch.ones(1000).share_memory_()\n"
        f"print('named', kept.untyped_storage()._share_filename_cpu_()[1].decode()[1:], flush=True)\n{last}"
    )
    segment = segment_of(attempt)
    assert segment.name.startswith(f"torch_{attempt.read('ranks/0.json')['pid']}_")
    if "sleep" in last:
        assert segment.exists()
        attempt.stop("cancel", after_s=0)
    attempt.ended()
    assert not segment.exists()


def test_a_tensor_of_a_living_process_and_what_only_resembles_one_stay(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait(90)
    dead, living = ended.pid, os.getpid()
    names = [f"torch_{dead}_17_0", f"torch_{living}_17_0", f"torch_{dead}_notes", f"torch_{dead + 1}_17_0"]
    for name in names:
        (tmp_path / name).touch()
    remove_tensors_of({dead, living}, str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names[1:])


def test_a_program_that_only_resembles_a_remover_is_killed_a_moment_later(attempt: Attempt) -> None:
    looks = "from multiprocessing.resource_tracker import main\n"
    ignores = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    attempt.order(command=[sys.executable, "-c", looks + ignores])
    supervisor.spawn_supervisor(attempt.folder)
    attempt.wait_for_log("up")
    attempt.stop("cancel", after_s=0)
    assert attempt.ended()["ranks"]["0"]["signal"] == signal.SIGKILL
    assert not attempt.processes()
