"""What a program may use of its host, and that nothing of it outlives it: by real groups of this machine's kernel."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.domain.exit.exits import classify, parse_exit_record
from muster.domain.states import Cause
from tests.workers.host.supervisor.attempt_case import Attempt, until
from tests.workers.host.supervisor.cgroup_case import MEBIBYTE, group_of, groups_of, left_of, name_of, needs_cgroups
from workers.host import supervisor
from workers.host.supervisor.cgroup.block_devices import block_devices
from workers.host.supervisor.cgroup.group import make_group
from workers.host.supervisor.cgroup.place import find_place
from workers.host.supervisor.order_parts import HostLimits
from workers.host.supervisor.proof.processes import living_processes

pytestmark = needs_cgroups

SLEEPS = "import time; print('up', flush=True); time.sleep(600)"
WAITS = "import os, time\nprint('up', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)\n"
EATS = "kept = []\nwhile True: kept.append(b'x' * (1 << 20))"
SHEDS_EVERYTHING = (
    "import os, time\n"
    "reader, writer = os.pipe()\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    if os.fork() == 0:\n"
    "        print(f'daemon {os.getpid()}\\n', end='', flush=True)\n"
    "        os.execve('/bin/sleep', ['sleep', '600'], {})\n"
    "    os._exit(0)\n"
    "os.wait(); os.close(writer); os.read(reader, 1)\n"  # the other end closes as the daemon becomes another program
    "print('up', flush=True)\n"
)


def daemon_of(attempt: Attempt) -> int:
    attempt.wait_for_log("up")
    return int(attempt.log().split("daemon ")[1].split()[0])


def test_a_program_beyond_its_memory_is_killed_and_the_record_has_its_own_groups_word(attempt: Attempt) -> None:
    attempt.start(EATS, limits={"memory_bytes": 64 * MEBIBYTE})
    record = attempt.ended()
    assert record["ranks"]["0"]["signal"] == signal.SIGKILL
    assert (record["cgroup"], record["cgroup_reason"]) == (find_place().kind, None)
    assert record["oom_killed"]
    assert record["cgroup_oom_kills"] == 1
    verdict = classify(parse_exit_record(record), None)
    assert verdict.cause is Cause.HOST_OOM
    assert "1 memory kill in the attempt's own group, limited to 0.0625 GiB" in verdict.proof
    assert attempt.read("clean.json")["clean"]
    assert left_of(attempt) == []


@pytest.mark.skipif(
    "blkio" not in find_place().folders or not block_devices(),
    reason="NOT CHECKED: this kernel has no blkio of version 1, or names no disk",
)
def test_the_kernel_holds_the_limit_of_each_disk_while_the_program_runs(attempt: Attempt) -> None:
    attempt.start(SLEEPS, limits={"io_read_bytes_per_s": 1 << 20, "io_write_bytes_per_s": 1 << 21})
    attempt.wait_for_log("up")
    folder = group_of(attempt).folders["blkio"]
    for way, limit in (("read", 1 << 20), ("write", 1 << 21)):
        said = (folder / f"blkio.throttle.{way}_bps_device").read_text(encoding="ascii").splitlines()
        assert said == [f"{device} {limit}" for device in block_devices()]
    assert (folder / "cgroup.procs").read_text(encoding="ascii").split() == [str(attempt.read("ranks/0.json")["pid"])]
    attempt.stop("cancel", 0)
    assert attempt.ended()["cgroup_reason"] is None
    assert left_of(attempt) == []


def test_anothers_memory_kill_is_not_taken_for_ours(make_attempt: Callable[[], Attempt]) -> None:
    """The host's own count rises as well, while this program gets SIGKILL: once no other sign was read."""
    ours, other = make_attempt(), make_attempt()
    ours.start(WAITS + "os.kill(0, 9)")
    ours.wait_for_log("up")
    other.start(EATS, limits={"memory_bytes": 64 * MEBIBYTE})
    assert other.ended()["oom_killed"]
    (ours.folder / "go").touch()
    record = ours.ended()
    assert (record["ranks"]["0"]["signal"], record["cgroup_oom_kills"]) == (signal.SIGKILL, 0)
    assert not record["oom_killed"]


def test_a_helper_that_ran_out_of_memory_counts_for_the_program_that_fails_of_it(attempt: Attempt) -> None:
    attempt.start(
        f"import os\nif os.fork() == 0:\n    exec({EATS!r})\n_, status = os.wait()\nraise SystemExit(status and 3)",
        limits={"memory_bytes": 64 * MEBIBYTE},
    )
    record = attempt.ended()
    assert record["ranks"]["0"]["exit_code"] == 3
    assert classify(parse_exit_record(record), None).cause is Cause.HOST_OOM


def test_processes_beyond_the_limit_fail_while_others_live(make_attempt: Callable[[], Attempt]) -> None:
    bomb, other = make_attempt(), make_attempt()
    other.start(WAITS + "os.system('echo forked')")
    other.wait_for_log("up")
    bomb.start(
        "import os, time\n"
        "made = refused = 0\n"
        "for _ in range(200):\n"
        "    try:\n"
        "        child = os.fork()\n"
        "    except BlockingIOError:\n"
        "        refused += 1\n"
        "        continue\n"
        "    if child == 0:\n"
        "        time.sleep(600)\n"
        "    made += 1\n"
        "print('made', made, 'refused', refused, flush=True)\n"
        "while not os.path.exists('go'): time.sleep(0.01)\n",
        limits={"pids": 50},
    )
    bomb.wait_for_log("\n")  # the line comes in pieces
    assert bomb.log() == "made 49 refused 151\n"
    (other.folder / "go").touch()
    assert other.ended()["ranks"]["0"]["exit_code"] == 0
    assert "forked" in other.log()
    (bomb.folder / "go").touch()
    record = bomb.ended()
    assert (record["ranks"]["0"]["exit_code"], record["killed_descendants"]) == (0, 49)
    assert bomb.read("clean.json")["clean"]


def test_what_never_stops_to_fork_is_ended_all_the_same(attempt: Attempt) -> None:
    attempt.start(
        "import os, time\n"
        "print('up', flush=True)\n"
        "while True:\n"
        "    try:\n"
        "        os.fork()\n"
        "    except BlockingIOError:\n"
        "        time.sleep(0.01)\n",
        limits={"pids": 60},
    )
    attempt.wait_for_log("up")
    until(lambda: len(group_of(attempt).processes()) >= 50, "many of it")
    attempt.stop("cancel", after_s=0)
    assert attempt.ended()["killed_descendants"] >= 49
    assert attempt.read("clean.json")["clean"]
    assert left_of(attempt) == []


def test_a_program_gets_no_more_of_the_cpus_than_it_was_given(attempt: Attempt) -> None:
    attempt.start(
        "import time\n"
        "began, used = time.monotonic(), time.process_time()\n"
        "while time.monotonic() < began + 3: pass\n"
        "print('share', (time.process_time() - used) / (time.monotonic() - began))\n",
        limits={"cpus": 0.25},
    )
    assert attempt.ended()["ranks"]["0"]["exit_code"] == 0
    assert float(attempt.log().split()[1]) < 0.4


def test_a_daemon_that_shed_every_mark_dies_by_its_group_after_the_supervisors_own_death(attempt: Attempt) -> None:
    attempt.start(SHEDS_EVERYTHING + "time.sleep(600)")
    daemon = daemon_of(attempt)
    program = int(attempt.read("ranks/0.json")["pid"])
    os.kill(attempt.supervisor_pid(), signal.SIGKILL)
    until(lambda: program not in living_processes(), "the program's death")
    assert supervisor.adopt(attempt.folder).state == "vanished"
    assert daemon not in attempt.processes(), "found by no mark and no descent"
    assert daemon in living_processes()
    record = supervisor.reap_vanished(attempt.folder)
    assert daemon not in living_processes()
    assert (record["killed_descendants"], record["cgroup"]) == (1, find_place().kind)
    proof = attempt.read("clean.json")
    assert (proof["clean"], proof["cgroup_empty"], proof["cgroup"]) == (True, True, find_place().kind)
    assert left_of(attempt) == []


def test_the_group_is_found_by_its_name_where_no_record_states_where_it_is(attempt: Attempt) -> None:
    attempt.start(SHEDS_EVERYTHING + "time.sleep(600)")
    daemon = daemon_of(attempt)
    os.kill(attempt.supervisor_pid(), signal.SIGKILL)
    until(lambda: supervisor.adopt(attempt.folder).state == "vanished", "the supervisor's death")
    (attempt.folder / "supervisor.json").unlink()
    assert supervisor.prove_clean(attempt.folder)["clean"]
    assert daemon not in living_processes()
    assert left_of(attempt) == []


def test_a_daemon_that_shed_every_mark_dies_with_its_program(attempt: Attempt) -> None:
    attempt.start(SHEDS_EVERYTHING)
    assert attempt.ended()["killed_descendants"] == 1
    assert daemon_of(attempt) not in living_processes()
    assert attempt.read("clean.json")["cgroup_empty"]


def test_the_program_is_inside_from_its_first_instruction_on_and_the_supervisor_outside(attempt: Attempt) -> None:
    attempt.start("print(open('/proc/self/cgroup').read()); " + SLEEPS, limits={"cpus": 1.0})
    attempt.wait_for_log("up")
    group = group_of(attempt)
    assert group.processes() == {int(attempt.read("ranks/0.json")["pid"])}
    assert attempt.log().count(name_of(attempt)) == len(group.folders) > 0
    assert name_of(attempt) not in groups_of(attempt.supervisor_pid())


def test_a_process_that_died_before_it_was_placed_leaves_the_group_to_the_next() -> None:
    group = make_group(find_place(), f"muster-died-{os.getpid()}", HostLimits())
    try:
        with subprocess.Popen([sys.executable, "-c", ""]) as dead:
            dead.wait(90)
        group.place(dead.pid)
        assert (group.kind, group.reason) == (find_place().kind, None)
    finally:
        assert group.remove()


def test_groups_that_the_program_makes_in_its_own_go_with_it(attempt: Attempt) -> None:
    attempt.start(SHEDS_EVERYTHING + "time.sleep(600)")
    daemon = daemon_of(attempt)
    for folder in group_of(attempt).folders.values():
        (folder / "inner").mkdir()
        (folder / "inner" / "cgroup.procs").write_text(str(daemon), encoding="ascii")
    attempt.stop("cancel", after_s=0)
    attempt.ended()
    assert daemon not in living_processes()
    assert attempt.read("clean.json")["clean"]
    assert left_of(attempt) == []


def test_a_host_that_lets_us_make_none_runs_the_program_as_before_and_states_why(attempt: Attempt) -> None:
    taken = [folder / name_of(attempt) / "taken" for folder in find_place().folders.values()]
    for folder in taken:
        folder.mkdir(parents=True)
    try:
        attempt.start("print('done')", limits={"pids": 50})
        record = attempt.ended()
    finally:
        for folder in taken:
            folder.rmdir()
            folder.parent.rmdir()
    assert (record["ranks"]["0"]["exit_code"], record["cgroup"]) == (0, "none")
    assert "no group can be made" in record["cgroup_reason"]
    assert record["cgroup_reason"].endswith("no limit is in force")
    assert record["cgroup_reason"] in (attempt.folder / "events.jsonl").read_text(encoding="utf-8")
    proof = attempt.read("clean.json")
    assert (proof["clean"], proof["cgroup"], proof["cgroup_empty"]) == (True, "none", True)


def test_a_warm_torchrun_runs_its_ranks_inside_too(attempt: Attempt, tmp_path: Path) -> None:
    script = tmp_path / "says.py"
    script.write_text("print(open('/proc/self/cgroup').read(), flush=True)", encoding="utf-8")
    attempt.order(launcher="torchrun", script=str(script), limits={"memory_bytes": 4 << 30, "pids": 4_096})
    waiting = supervisor.WaitingSupervisor(sys.executable, tmp_path / "standby.log")
    assert waiting.take(attempt.folder)
    record = attempt.ended()
    assert record["ranks"]["0"]["exit_code"] == 0, record
    assert name_of(attempt) in attempt.log()
    assert left_of(attempt) == []
