"""What a program that runs as a user of its own may touch on its host, and that nothing of that user is left."""

import json
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.workers.host.burial import bury
from tests.workers.host.supervisor.attempt_case import Attempt, until
from tests.workers.host.supervisor.cgroup_case import needs_cgroups
from tests.workers.host.supervisor.user_case import (
    OPEN_PYTHON,
    PACKAGES,
    needs_users,
    own_uid,
    require_torch,
    spawn,
    start,
    status_of,
)
from workers.host import supervisor
from workers.host.supervisor import files
from workers.host.supervisor.cgroup.place import find_place
from workers.host.supervisor.proof.processes import living_processes, processes_of
from workers.host.supervisor.user.job_user import JobUser, device_groups

pytestmark = needs_users

WAITS = "import time\nprint('up', flush=True)\ntime.sleep(600)"
REPORTS = "import os\nprint(open('/proc/self/status').read(), 'home:', os.environ['HOME'], '\\ncwd:', os.getcwd())"
TRIES = """
import os, sys
def tries(what, act):
    try:
        act()
    except OSError as fault:
        print(what, fault.strerror, flush=True)
    else:
        print(what, 'DONE', flush=True)
folder, supervisor_pid = {folder!r}, {supervisor_pid!r}
for name in ('order.json', 'supervisor.json', 'logs/0.log'):
    tries('read ' + name, lambda: open(folder + '/' + name).read())
for name in ('exit.json', 'lease.json', 'stop.json', 'clean.json', 'order.json'):
    tries('write ' + name, lambda: open(folder + '/' + name, 'w'))
tries('list', lambda: os.listdir(folder))
tries('rename', lambda: os.rename(folder + '/ranks', folder + '/other'))
tries('unlink', lambda: os.unlink(folder + '/supervisor.lock'))
"""


@pytest.fixture
def make_attempt(
    open_folder: Path, rendezvous_port: int, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], Attempt]]:
    monkeypatch.setattr(sys, "executable", OPEN_PYTHON)
    made: list[Attempt] = []

    def make() -> Attempt:
        folder = open_folder / "attempts" / f"att_{os.getpid()}_{len(made)}"
        folder.mkdir(parents=True, mode=0o700)
        folder.parent.chmod(0o711)
        made.append(Attempt(folder, rendezvous_port))
        return made[-1]

    yield make
    for one in made:
        bury(one.folder)


@pytest.fixture
def attempt(make_attempt: Callable[[], Attempt]) -> Attempt:
    return make_attempt()


def users_of(uid: int) -> set[int]:
    return processes_of(uid, living_processes())


def test_a_program_runs_as_its_user_without_our_groups_and_can_gain_nothing(attempt: Attempt) -> None:
    start(attempt, REPORTS)
    record = attempt.ended()
    said = status_of(attempt.log())
    assert said["Uid"].split() == said["Gid"].split() == [str(own_uid())] * 4
    assert [int(group) for group in said["Groups"].split()] == device_groups()
    assert (said["NoNewPrivs"], int(said["CapEff"], 16), int(said["CapPrm"], 16)) == ("1", 0, 0)
    scratch = str(files.scratch_path(attempt.folder))
    assert (said[" home"].strip() if " home" in said else said["home"], said["cwd"]) == (scratch, scratch)
    assert (record["uid"], record["uid_reason"], record["ranks"]["0"]["exit_code"]) == (own_uid(), None, 0)
    assert attempt.read("clean.json")["uid"] == own_uid()
    assert attempt.read("clean.json")["clean"]


def test_a_program_reaches_neither_its_records_nor_its_supervisor(attempt: Attempt) -> None:
    program = (
        "import os, time\n"
        f"folder = {str(attempt.folder)!r}\n"
        "supervisor_pid = os.getppid()\n"
        + TRIES.replace("folder, supervisor_pid = {folder!r}, {supervisor_pid!r}\n", "")
        + "tries('kill', lambda: os.kill(supervisor_pid, 9))\n"
        "tries('memory', lambda: open(f'/proc/{supervisor_pid}/mem', 'rb'))\n"
        "tries('environment', lambda: open(f'/proc/{supervisor_pid}/environ', 'rb').read())\n"
    )
    start(attempt, program)
    record = attempt.ended()
    assert record["ranks"]["0"]["exit_code"] == 0, attempt.log()
    assert "DONE" not in attempt.log()
    assert len(attempt.log().splitlines()) == 14


@needs_cgroups
def test_a_program_cannot_lift_its_limits_or_leave_its_group(attempt: Attempt) -> None:
    places = [str(folder) for folder in find_place().folders.values()]
    start(
        attempt,
        "import os\n"
        "for place in " + repr(places) + ":\n"
        f"    own = [entry for entry in os.listdir(place) if {attempt.folder.name!r} in entry]\n"
        "    for file in [place + '/cgroup.procs'] + [f'{place}/{each}/pids.max' for each in own]:\n"
        "        try:\n"
        "            open(file, 'w').write('0')\n"
        "        except OSError as fault:\n"
        "            print('kept:', fault.strerror)\n"
        "        else:\n"
        "            print('LIFTED', file)\n",
        limits={"pids": 50},
    )
    assert attempt.ended()["ranks"]["0"]["exit_code"] == 0, attempt.log()
    assert "kept: Permission denied" in attempt.log()
    assert "LIFTED" not in attempt.log()


def test_jobs_on_one_host_can_neither_signal_nor_read_each_other(make_attempt: Callable[[], Attempt]) -> None:
    ours, other = make_attempt(), make_attempt()
    start(ours, "import os, tempfile\nprint(os.getpid(), tempfile.mkdtemp(), flush=True)\n" + WAITS)
    ours.wait_for_log("up")
    pid, made = ours.log().split()[:2]
    start(
        other,
        "import os\n"
        f"for act in (lambda: os.kill({pid}, 9), lambda: os.listdir({made!r}), lambda: open('/proc/{pid}/environ')):\n"
        "    try:\n        act()\n    except OSError as fault:\n        print('kept:', fault.strerror)\n",
        uid=own_uid() + 1,
    )
    assert other.ended()["ranks"]["0"]["exit_code"] == 0
    assert other.log().count("kept:") == 3
    assert supervisor.adopt(ours.folder).state == "running"
    ours.stop("cancel", 0)
    assert ours.ended()["stop_reason"] == "cancel"


def test_what_left_tree_name_and_group_is_found_by_its_user(attempt: Attempt) -> None:
    """A daemon that has shed all, whose supervisor is killed: once it survived where no group could be made."""
    start(
        attempt,
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    print(f'daemon {os.getpid()}\\n', end='', flush=True)\n"
        "    os.execve('/bin/sleep', ['sleep', '600'], {})\n" + WAITS,
    )
    attempt.wait_for_log("daemon")
    attempt.wait_for_log("up")
    daemon = int(attempt.log().split("daemon ")[1].split()[0])
    for folder in find_place().folders.values():
        (folder / "cgroup.procs").write_text(str(daemon), encoding="ascii")
    os.kill(attempt.supervisor_pid(), signal.SIGKILL)
    until(lambda: supervisor.adopt(attempt.folder).state == "vanished", "its supervisor's death")
    assert daemon in users_of(own_uid())
    record = supervisor.reap_vanished(attempt.folder)
    assert (record["supervisor_vanished"], record["uid"], record["killed_descendants"] >= 1) == (True, own_uid(), True)
    assert users_of(own_uid()) == set()
    assert attempt.read("clean.json")["clean"]


def test_its_shared_memory_goes_with_it(attempt: Attempt) -> None:
    """Files, folders, and segments of System V."""
    start(
        attempt,
        "import ctypes, os\n"
        "name = '/dev/shm/muster-test-' + str(os.getpid())\n"
        "open(name, 'w').write('x')\n"
        "os.makedirs(name + '-folder/within')\n"
        "open(name + '-folder/within/more', 'w').write('x')\n"
        "segment = ctypes.CDLL(None).shmget(0, 4096, 0o1600)\n"
        "print('made', segment >= 0)",
    )
    attempt.ended()
    assert attempt.read("clean.json")["clean"]
    assert "made True" in attempt.log()
    pid = attempt.read("ranks/0.json")["pid"]
    assert not list(Path("/dev/shm").glob(f"muster-test-{pid}*"))  # noqa: S108  # the kernel's name for it
    segments = [line.split() for line in Path("/proc/sysvipc/shm").read_text().splitlines()]
    assert str(own_uid()) not in [segment[segments[0].index("uid")] for segment in segments[1:]]


def test_what_checks_with_its_rights_does_so_alone() -> None:
    """Other threads of a launcher still read files that only our own user may read."""
    inside, may_leave, seen = threading.Event(), threading.Event(), []

    def check() -> None:
        with JobUser(own_uid(), None).acting():
            seen.append((os.geteuid(), os.access("/etc/shadow", os.R_OK, effective_ids=True)))
            inside.set()
            may_leave.wait(60)
        seen.append((os.geteuid(), os.access("/etc/shadow", os.R_OK, effective_ids=True)))

    looking = threading.Thread(target=check)
    looking.start()
    assert inside.wait(60)
    Path("/etc/shadow").read_bytes()
    assert os.geteuid() == 0
    may_leave.set()
    looking.join(60)
    assert seen == [(own_uid(), False), (0, True)]


def test_the_next_attempt_reads_and_removes_what_the_first_saved(make_attempt: Callable[[], Attempt]) -> None:
    first, second = make_attempt(), make_attempt()
    checkpoints = first.folder.parent.parent / "checkpoints" / "job_test"
    where: dict[str, Any] = {"checkpoints": str(checkpoints), "env": {"MUSTER_CHECKPOINT_DIR": str(checkpoints)}}
    path = "import os; path = os.environ['MUSTER_CHECKPOINT_DIR'] + '/kept'\n"
    start(first, path + "os.umask(0o077); open(path, 'w').write('saved')", **where)
    assert first.ended()["ranks"]["0"]["exit_code"] == 0, first.log()
    assert stat.S_IMODE(checkpoints.stat().st_mode) == 0o700
    start(second, path + "print(open(path).read()); os.remove(path)", **where)
    assert second.ended()["ranks"]["0"]["exit_code"] == 0, second.log()
    assert second.log() == "saved\n"


def test_checkpoints_from_before_a_job_had_a_user_become_its_own(attempt: Attempt) -> None:
    checkpoints = attempt.folder.parent.parent / "checkpoints" / "job_test"
    (checkpoints / "gen").mkdir(parents=True, mode=0o700)
    (checkpoints / "gen" / "part").write_text("old")
    (checkpoints / "gen" / "link").symlink_to("/etc/passwd")
    checkpoints.parent.chmod(0o711)
    start(attempt, f"print(open({str(checkpoints / 'gen' / 'part')!r}).read())", checkpoints=str(checkpoints))
    attempt.ended()
    assert attempt.log() == "old\n"
    assert (checkpoints / "gen" / "link").lstat().st_uid == own_uid()
    assert Path("/etc/passwd").stat().st_uid == 0


def test_anothers_checkpoints_are_never_given_away(attempt: Attempt) -> None:
    checkpoints = attempt.folder.parent.parent / "checkpoints" / "job_test"
    checkpoints.mkdir(parents=True)
    os.chown(checkpoints, own_uid() + 7, own_uid() + 7)
    start(attempt, "print('ran')", checkpoints=str(checkpoints))
    record = attempt.ended()
    assert record["spawn_fault"] == "host"
    assert record["spawn_error"] == f"{checkpoints} belongs to user {own_uid() + 7}, not to the job's user {own_uid()}"


def test_a_user_that_another_is_already_is_not_taken(attempt: Attempt) -> None:
    with subprocess.Popen(["/bin/sleep", "600"], user=own_uid(), group=own_uid(), extra_groups=[]) as stranger:
        try:
            start(attempt, "print('ran')")
            record = attempt.wait_for("exit.json")
            assert record["spawn_fault"] == "host"
            assert (
                f"user {own_uid()}, which is to be this job's alone, already runs process {stranger.pid}"
                in (record["spawn_error"])
            )
            assert stranger.poll() is None
        finally:
            stranger.kill()


def test_a_user_whose_last_attempt_is_not_proved_clean_is_not_taken(make_attempt: Callable[[], Attempt]) -> None:
    first, second = make_attempt(), make_attempt()
    first.order(command=["/bin/true"], user={"uid": own_uid()})
    start(second, "print('ran')")
    record = second.ended()
    assert (record["spawn_fault"], second.log()) == ("host", "")
    assert "is not proved clean here yet" in record["spawn_error"]
    supervisor.prove_clean(first.folder)
    third = make_attempt()
    start(third, "print('ran')")
    third.ended()
    assert third.log() == "ran\n"


def test_what_the_user_cannot_reach_is_named(make_attempt: Callable[[], Attempt], open_folder: Path) -> None:
    ours, theirs, deep = make_attempt(), make_attempt(), make_attempt()
    closed = open_folder / "closed"
    closed.mkdir(mode=0o700)
    (closed / "program.py").write_text("print('ran')")
    ours.order(launcher="torchrun", script=str(closed / "program.py"), python=OPEN_PYTHON, user={"uid": own_uid()})
    spawn(ours)
    record = ours.ended()
    assert record["spawn_fault"] == "program"
    assert record["spawn_error"] == f"the script {closed / 'program.py'} is closed to the job's user {own_uid()}"
    start(theirs, "print('ran')", working_dir=str(closed))
    assert theirs.ended()["spawn_error"] == f"the working directory {closed} is closed to the job's user {own_uid()}"
    deep.folder.parent.chmod(0o700)
    start(deep, "print('ran')")
    record = deep.ended()
    assert record["spawn_fault"] == "host"
    assert "ranks is closed to the job's user" in record["spawn_error"]


def test_numbers_that_a_program_wrote_itself_are_signalled_only_if_they_are_its_own(attempt: Attempt) -> None:
    with subprocess.Popen(["/bin/sleep", "600"]) as stranger:
        forged = {"pid": stranger.pid, "entry_pid": os.getpid(), "error_file": "/proc/kmsg"}
        order = json.dumps(forged)
        start(
            attempt,
            "import os, signal, time\n"
            f"ranks = {str(attempt.folder / 'ranks')!r}\n"
            "os.remove(ranks + '/0.json') if os.path.exists(ranks + '/0.json') else None\n"
            f"open(ranks + '/0.json', 'w').write({order!r})\n"
            "os.mkfifo(ranks + '/0.exit.json')\n" + WAITS,
        )
        attempt.wait_for_log("up")
        attempt.stop("cancel", 0.2)
        record = attempt.ended()
        try:
            assert record["ranks"]["0"]["exit_code"] is None or record["ranks"]["0"]["signal"] is None
            assert stranger.poll() is None
        finally:
            stranger.kill()


def test_what_we_write_next_to_the_program_is_written_with_its_rights(open_folder: Path) -> None:
    """The pid of a rank is written while the program runs already: it may have laid a link in our way."""
    ours, ranks = open_folder / "ours", open_folder / "ranks"
    ours.write_text("kept")
    user = JobUser(own_uid(), None)
    user.make_folder(ranks)
    (ranks / f".0.json.{os.getpid()}").symlink_to(ours)
    with user.acting(), pytest.raises(PermissionError):
        files.write_json(ranks / "0.json", {})
    assert (ours.read_text(), os.geteuid(), os.getegid()) == ("kept", 0, 0)


def test_an_attempt_whose_program_fails_states_how(attempt: Attempt) -> None:
    start(attempt, "raise ValueError('on purpose')")
    assert "ValueError: on purpose" in attempt.ended()["ranks"]["0"]["error_excerpt"]


def test_an_order_for_no_user_of_a_jobs_own_is_refused(attempt: Attempt) -> None:
    for wrong in (0, -1, 1 << 31):
        with pytest.raises(ValueError, match="no user of a job's own"):
            JobUser.read({"uid": wrong})
    start(attempt, "print('ran')", uid=0)
    assert "user.uid is 0" in attempt.wait_for("exit.json")["spawn_error"]


RANK = """
import json, os, socket
own = socket.socket(socket.AF_UNIX); own.connect(os.environ['MUSTER_TRAIN_SOCKET'])
own.sendall(json.dumps({'type': 'hello', 'rank': int(os.environ['RANK'])}).encode() + b'\\n'); own.close()
import ctypes
death = ctypes.c_int(); ctypes.CDLL(None).prctl(2, ctypes.byref(death), 0, 0, 0)
parent = open(f'/proc/{os.getppid()}/status').read()
torchrun = parent.split('PPid:')[1].split()[0]
above = open(f'/proc/{torchrun}/status').read()
new = [text.split('NoNewPrivs:')[1].split()[0] for text in (parent, above)]
uids = [text.split('Uid:')[1].split()[:4] for text in (parent, above)]
try:
    os.listdir(f'/proc/{torchrun}/fd'); looks = True
except OSError:
    looks = False
open(os.environ['TORCH_FR_DUMP_TEMP_FILE'] + '0', 'w').write('dump')
print(json.dumps(dict(uid=os.getresuid(), groups=os.getgroups(), new=new, uids=uids, death=death.value, looks=looks,
                      umask=os.umask(0), home=os.environ['HOME'])))
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ranks_of_a_warm_and_of_a_fresh_torchrun_run_as_the_user_alike(
    make_attempt: Callable[[], Attempt], open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_torch()
    monkeypatch.setattr(supervisor.spawning, "_HAND_OVER_PATIENCE_S", 60.0)
    script = open_folder / "program.py"
    script.write_text(RANK)
    python = open_folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={PACKAGES} exec {OPEN_PYTHON} "$@"\n')
    python.chmod(0o755)
    found = []
    for is_warm in (False, True):
        attempt = make_attempt()
        attempt.order(launcher="torchrun", script=str(script), python=str(python), user={"uid": own_uid()})
        if is_warm:
            waiting = supervisor.WaitingSupervisor(str(python), open_folder / "standby.log")
            assert waiting.take(attempt.folder)
            assert attempt.supervisor_pid() == waiting.pid
        else:
            spawn(attempt)
        record = attempt.ended(300)
        assert record["ranks"].get("0", {}).get("exit_code") == 0, (record, attempt.log("launcher"), attempt.log())
        said = json.loads(attempt.log())
        assert said.pop("home") == str(files.scratch_path(attempt.folder))
        found.append(said)
        assert '"rank": 0' in (attempt.folder / files.TRAIN).read_text()
        assert attempt.read("clean.json")["clean"]
    fresh, warm = found
    assert fresh == warm
    assert fresh["uid"] == [own_uid()] * 3
    assert fresh["uids"] == [[str(own_uid())] * 4] * 2
    assert (fresh["new"], fresh["death"], fresh["looks"]) == (["1", "1"], signal.SIGKILL, True)


def test_a_secret_is_its_users_alone(make_attempt: Callable[[], Attempt], open_folder: Path) -> None:
    ours, other = make_attempt(), make_attempt()
    (open_folder / "wandb").write_text("the-value-of-ours")
    (open_folder / "wandb").chmod(0o600)
    secrets = {"source": str(open_folder), "names": ["wandb"]}
    opens = "import os\npath = os.environ['MUSTER_SECRETS_DIR'] + '/wandb'\nprint(len(open(path).read()), path)\n"
    start(ours, opens + WAITS, secrets=secrets)
    ours.wait_for_log("up")
    length, path = ours.log().split()[:2]
    assert (length, Path(path).stat().st_uid, stat.S_IMODE(Path(path).stat().st_mode)) == ("17", own_uid(), 0o400)
    assert stat.S_IMODE(Path(path).parent.stat().st_mode) == 0o700
    start(other, f"open({path!r})", uid=own_uid() + 1)
    assert "PermissionError" in other.ended()["ranks"]["0"]["error_excerpt"]
    ours.stop("cancel", 0)
    ours.ended()
    assert not Path(path).parent.exists()
