"""``muster run`` as its user meets it: the command itself, real supervisors and programs, and no control plane."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from muster.domain.job.spec import JobSpec
from muster.domain.lifecycle.model import Timers
from muster.domain.policy.document import Policy
from tests.waiting import wait_until
from tests.warm_python import WarmPython
from workers.local.local_run import LocalRun
from workers.local.plan import RunFolder, RunPlan

ROOT = Path(__file__).resolve().parents[3]
TINY = ROOT / "tests/train/tiny_program.py"
SLEEPER = "import time; print('here', flush=True); time.sleep(600)"
AGAIN = """
import os, sys
from muster.train.report.wire import Channel

channel = Channel(os.environ["MUSTER_TRAIN_SOCKET"])
channel.send("hello", rank=0, world_size=1, pid=os.getpid())
channel.send("resumed", step=0, generation="")
channel.send("checkpoint", step=10, generation="step-00000010/gen-1", status="verified")
channel.close()
sys.exit(3)
"""
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEPER}"


@dataclass
class Here:
    """A folder in which a person types. ``started``: processes not waited for, which end with the test.

    ``python`` runs the command, ``job_python`` torchrun and ranks.
    """

    folder: Path
    python: Path
    job_python: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        started = self.start(*words)
        out, err = started.communicate(timeout=280)
        return subprocess.CompletedProcess(words, started.returncode, out, err)

    def start(self, *words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [self.python, "-m", "muster", "run", *words],
            cwd=self.folder,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "200"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    @property
    def warm(self) -> tuple[str, str]:
        """The option by which ranks are forks that have imported torch."""
        return ("--python", str(self.job_python))

    def about(self, name: str) -> dict[str, Any]:
        return dict(json.loads((self.folder / "muster-runs" / name / "run.json").read_text()))

    def has_printed(self, name: str, word: str) -> bool:
        logs = (self.folder / "muster-runs" / name / "attempts").glob("*/logs/0.log")
        return any(word in path.read_text() for path in logs)

    def processes(self) -> list[str]:
        """Return the processes that carry the mark of an attempt in this folder."""
        attempts = {path.name for path in self.folder.glob("muster-runs/*/attempts/*")}
        marks = (_mark_of(path) for path in Path("/proc").glob("[0-9]*/environ"))
        return [mark for mark in marks if mark in attempts]


def _mark_of(path: Path) -> str:
    try:
        found = re.search(rb"MUSTER_ATTEMPT_ID=([^\0]*)", path.read_bytes())
    except OSError:
        return ""
    return found[1].decode() if found else ""


@pytest.fixture
def here(tmp_path: Path, warm_muster: WarmPython, warm_python: WarmPython) -> Iterator[Here]:
    here = Here(tmp_path, warm_muster.daemon, warm_python.daemon)
    yield here
    for process in here.started:
        if process.poll() is None:
            process.kill()
            process.communicate(timeout=60)
    for path in tmp_path.glob("muster-runs/*/attempts/*/supervisor.json"):
        _end_supervisor(path)
    wait_until(lambda: not here.processes())


def _end_supervisor(path: Path) -> None:
    """Asked as a host that shuts down asks: it ends its program, within that one's grace."""
    pid = json.loads(path.read_text())["pid"]
    try:
        if path.parent.name in Path(f"/proc/{pid}/cmdline").read_text():
            os.kill(pid, signal.SIGTERM)
    except OSError:
        return


def python(code: str) -> tuple[str, ...]:
    return ("--command", "--", sys.executable, "-u", "-c", code)


def test_a_program_that_ends_well(here: Here) -> None:
    ended = here.run("--name", "fine", *python("print('done')"))
    assert (ended.returncode, ended.stdout) == (0, "done\n")
    assert "muster: SUCCEEDED: every rank ended with code 0 (1 attempt" in ended.stderr
    assert here.about("fine")["state"] == "SUCCEEDED"


def test_a_programs_arguments_are_its_own(here: Here) -> None:
    """Also the words with which options of torchrun begin, and a ``--`` of its own."""
    program = here.folder / "args.py"
    program.write_text("import sys; print('ARGS', sys.argv[1:])")
    own = ("--log", "x", "--run", "y", "--max", "3", "--node", "a", "--", "-h", "--nnodes=7", "")
    ended = here.run("--max-restarts", "0", *here.warm, "--", str(program), *own)
    assert (ended.returncode, ended.stdout) == (0, f"ARGS {list(own)}\n"), ended.stderr
    assert "(1 attempt" in ended.stderr


def test_arguments_that_the_program_refuses_are_not_tried_again(here: Here) -> None:
    program = here.folder / "args.py"
    program.write_text("import argparse; argparse.ArgumentParser().parse_args()")
    ended = here.run("--name", "args", *here.warm, "--", str(program), "--step", "4")
    assert ended.returncode == 20
    assert here.about("args")["state_reason"].endswith("args.py: error: unrecognized arguments: --step 4")
    assert len(here.about("args")["attempts"]) == 1


def test_an_interpreter_without_torch_is_not_tried_again(here: Here) -> None:
    bare = here.folder / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o700)
    (here.folder / "fine.py").touch()
    ended = here.run("--name", "bare", "--python", str(bare), "--", "fine.py")
    assert ended.returncode == 20
    assert here.about("bare")["state_reason"].endswith("No module named 'torch'")
    assert len(here.about("bare")["attempts"]) == 1


def test_a_program_that_chooses_how_often_to_save_goes_by_what_is_expected_of_gpus(here: Here) -> None:
    program = here.folder / "rule.py"
    program.write_text('import os\nprint("rule", os.environ["MUSTER_CHECKPOINT_INTERVAL"])\n')
    ended = here.run(*here.warm, "--", str(program))
    assert ended.returncode == 0, ended.stderr
    (line,) = (line for line in ended.stdout.splitlines() if "rule {" in line)
    rule = json.loads(line[line.index("{") :])
    assert rule == {"failures_per_gpu_hour": pytest.approx(1 / 50_000), "num_gpus": None, "min_s": 30, "max_s": 3600}
    auto = here.run("--name", "auto", *here.warm, "--", str(TINY), "--every", "auto")
    assert auto.returncode == 0, auto.stderr
    assert len(list((here.folder / "muster-runs/auto/checkpoints").glob("step-*/gen-*"))) == 1, (
        "the last, too soon for more"
    )


def test_a_program_that_fails_is_tried_again_and_then_failed_with_its_proof(here: Here) -> None:
    words = ("--name", "bad", "--max-restarts", "2", "--pause", "0.1s", "--json")
    ended = here.run(*words, *python("raise SystemExit('no such column')"))
    assert ended.returncode == 20
    told = json.loads(ended.stdout)
    assert [(each["cause"], each["culprit_rank"]) for each in told["attempts"]] == [("user_error", 0)] * 3
    assert told["state_reason"] == "user_error: rank 0 ended with code 1: no such column"
    assert "2 of 2 restarts used" in ended.stderr


@pytest.mark.slow
def test_a_killed_rank_costs_a_restart_and_nothing_of_the_result(here: Here) -> None:
    training = (
        "--ranks",
        "2",
        "--pause",
        "0.1s",
        "--json",
        *here.warm,
        "--",
        str(TINY),
        "--steps",
        "30",
        "--every",
        "5",
    )
    calm = here.run("--name", "calm", *training)
    hit = here.run("--name", "hit", "--env", "MUSTER_TRAIN_FAULTS=kill@17/1", *training)
    assert (calm.returncode, hit.returncode) == (0, 0), hit.stderr
    (only,), (first, second) = json.loads(calm.stdout)["attempts"], json.loads(hit.stdout)["attempts"]
    assert first["culprit_rank"] == 1
    assert "signal 9 (SIGKILL)" in first["proof"]
    assert second["resumed_step"] in {10, 15}, "from a checkpoint, whichever had been read back"
    assert second["loss"] == only["loss"]
    assert f"continues after step {second['resumed_step']}" in hit.stderr


def test_requested_to_stop_it_ends_its_program_and_reports_it(here: Here) -> None:
    run = here.start("--name", "sleeper", *python(SLEEPER))
    wait_until(lambda: here.has_printed("sleeper", "here"))
    run.send_signal(signal.SIGINT)
    _, said = run.communicate(timeout=120)
    assert run.returncode == 130
    assert "stopping; killed in 30 s, or now if asked again" in said
    assert "ended: cancelled" in said
    assert here.processes() == []


def test_requested_twice_it_kills(here: Here) -> None:
    run = here.start("--name", "stubborn", "--grace", "10m", *python(STUBBORN))
    wait_until(lambda: here.has_printed("stubborn", "here"))
    run.send_signal(signal.SIGINT)
    wait_until(lambda: any(here.folder.glob("muster-runs/stubborn/attempts/*/stopping.json")))
    run.send_signal(signal.SIGTERM)
    _, said = run.communicate(timeout=120)
    assert (run.returncode, "killing it" in said) == (130, True)
    assert here.processes() == []


def test_a_run_that_was_killed_leaves_its_program_to_the_next(here: Here) -> None:
    run = here.start("--name", "orphan", *python(SLEEPER))
    wait_until(lambda: here.has_printed("orphan", "here"))
    run.kill()
    run.communicate(timeout=60)
    assert here.processes(), "it is not ours to end at once: a checkpoint may be in progress"
    (first,) = here.folder.glob("muster-runs/orphan/attempts/*")
    again = here.start("--name", "orphan", *python(SLEEPER))
    wait_until(lambda: len(list(here.folder.glob("muster-runs/orphan/attempts/*/logs/0.log"))) == 2)
    assert json.loads((first / "clean.json").read_text())["clean"]
    again.send_signal(signal.SIGINT)
    _, said = again.communicate(timeout=120)
    assert f"{first.name} of an earlier run is still here; ending it" in said


def test_two_runs_never_share_a_folder(here: Here) -> None:
    here.start("--name", "mine", *python(SLEEPER))
    wait_until(lambda: here.has_printed("mine", "here"))
    refused = here.run("--name", "mine", *python(SLEEPER))
    assert refused.returncode == 5
    assert "another `muster run` works in" in refused.stderr


def test_a_folder_belongs_to_one_program(here: Here) -> None:
    assert here.run("--name", "mine", *python("print(1)")).returncode == 0
    refused = here.run("--name", "mine", *python("print(2)"))
    assert refused.returncode == 5
    assert f"holds the run of {sys.executable} -u -c print(1)" in refused.stderr


def test_a_caller_that_requests_to_stop_does_not_wait_for_an_earlier_runs_grace(here: Here) -> None:
    words = ("--name", "deaf", "--grace", "10m", *python(STUBBORN))
    run = here.start(*words)
    wait_until(lambda: here.has_printed("deaf", "here"))
    run.kill()
    run.communicate(timeout=60)
    again = here.start(*words)
    wait_until(lambda: any(here.folder.glob("muster-runs/deaf/attempts/*/stopping.json")))
    again.send_signal(signal.SIGINT)
    _, said = again.communicate(timeout=120)
    assert (again.returncode, "ending it" in said) == (130, True)
    assert here.processes() == []


def test_a_reader_that_went_away_or_a_full_disk_changes_nothing_of_the_run(here: Here) -> None:
    words = " ".join(("run", "--name", "pipe", *python("'print(1); print(2); print(3)'")))
    command = f"{sys.executable} -m muster {words} | head -n 1; exit ${{PIPESTATUS[0]}}"
    assert subprocess.run(["/bin/bash", "-c", command], cwd=here.folder, check=False).returncode == 0
    assert here.about("pipe")["state"] == "SUCCEEDED"
    with Path("/dev/full").open("w") as full:
        run = subprocess.run(
            [sys.executable, "-m", "muster", "run", "--name", "full", *python("print(1)")],
            cwd=here.folder,
            stdout=full,
            check=False,
        )
    assert run.returncode == 0
    assert here.about("full")["state"] == "SUCCEEDED"


def test_a_supervisor_that_never_began_does_not_hold_the_run(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that is killed between its fork and its first write."""
    monkeypatch.setattr("workers.local.attempt.supervisor.spawn_supervisor", lambda _folder: 0)
    monkeypatch.setattr("workers.local.attempt.START_PATIENCE_MS", 200)
    spec = JobSpec.model_validate({"name": "none", "program": {"launcher": "command", "argv": ["/bin/true"]}})
    timers = replace(Timers.of(Policy()), retry_backoff_ms=10, retry_backoff_max_ms=10)
    plan = RunPlan(spec, (), sys.executable, timers, 1 << 20, 20, 600.0)
    folder = RunFolder(here.folder / "none", spec)
    said: list[str] = []
    ended = LocalRun(plan, folder, said.append, lambda _stream, _line: None).run()
    folder.close()
    assert ended["state"] == "FAILED"
    assert [each["cause"] for each in ended["attempts"]] == ["launch_failed"] * timers.launch_failures_before_hold


def test_a_program_that_takes_its_supervisor_away_is_not_tried_for_ever(here: Here) -> None:
    kills = "import os, signal; os.kill(os.getppid(), signal.SIGKILL); import time; time.sleep(60)"
    ended = here.run("--name", "killer", "--pause", "0.1s", *python(kills))
    assert ended.returncode == 20
    assert {each["cause"] for each in here.about("killer")["attempts"]} == {"node_lost"}


def test_saving_the_same_steps_again_is_no_progress(here: Here) -> None:
    """A program that begins again each time, and fails after its first checkpoint."""
    words = ("--name", "anew", "--ranks", "1", "--max-restarts", "1", "--pause", "0.1s")
    script = here.folder / "anew.py"
    script.write_text(AGAIN)
    ended = here.run(*words, *here.warm, "--", str(script))
    assert ended.returncode == 20, ended.stderr
    assert [each["saved_step"] for each in here.about("anew")["attempts"]] == [10, 10], (
        "the first brings it on, the second does not"
    )


@pytest.mark.parametrize("content", ["", "{", "[]", '{"job_id": "job_1", "num_attempts": "x"}'])
def test_a_torn_record_is_stated_and_left_alone(here: Here, content: str) -> None:
    folder = here.folder / "muster-runs/mine"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(content)
    refused = here.run("--name", "mine", *python("print(1)"))
    assert refused.returncode == 5
    assert "run.json is not readable" in refused.stderr
    assert (folder / "run.json").read_text() == content


def test_the_wall_time_counts_all_attempts(here: Here) -> None:
    words = ("--name", "long", "--wall-time", "6s", "--pause", "0.1s", "--max-restarts", "100", "--grace", "1s")
    ended = here.run(*words, *python("import time; time.sleep(2); raise SystemExit(3)"))
    assert ended.returncode == 20
    assert here.about("long")["state_reason"].startswith("walltime: ")


@pytest.mark.parametrize(
    ("words", "code", "reported"),
    [
        (("--", "nothing.py"), 3, "nothing.py does not exist"),
        (("--command", "--", "no-such-tool"), 3, "no-such-tool is not there"),
        (("--workdir", "nowhere", "--command", "--", "true"), 3, "nowhere is no folder"),
        (("--env", "LD_PRELOAD=x", "--command", "--", "true"), 6, "LD_PRELOAD"),
        (("--env", "novalue", "--command", "--", "true"), 2, "is not KEY=VALUE"),
        (("--name", "Bad Name", "--command", "--", "true"), 6, "name: "),
        (("--gpus", "3", "--command", "--", "true"), 2, "--gpus 3: this machine has 0"),
        (("--folder", "/dev/null/x", "--command", "--", "true"), 1, "/dev/null/x: Not a directory"),
        (("--pause", "soon", "--command", "--", "true"), 2, "is no duration"),
    ],
)
def test_what_cannot_run_is_stated_before_anything_is_made(
    here: Here, words: tuple[str, ...], code: int, reported: str
) -> None:
    refused = here.run(*words)
    assert refused.returncode == code, refused.stderr
    assert reported in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not (here.folder / "muster-runs").exists()
