"""A program whose last checkpoint cannot be saved has not succeeded: it is tried again, and then all ranks end so."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.warm_python import WarmPython

from .marks import TRAINS
from .train_case import PROGRAM, ROOT, Listening, Training, until

pytestmark = TRAINS
CASE = """
import os
from pathlib import Path
from muster import train
import torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
run = train.start(model, optimizer, checkpoint_every=4, asynchronous=False)
for step in run.steps(total=10):
    loss = run.model(torch.randn(4, 8)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 9 and run.rank == 0:  # before the last save, a file stands where its folder would be
        Path(os.environ["MUSTER_CHECKPOINT_DIR"], "step-00000010").touch()
run.finish()
"""


def blocked(training: Training, step: int) -> Path:
    """Put a file where the folder of a step would be."""
    training.checkpoints.mkdir(parents=True, exist_ok=True)
    file = training.checkpoints / f"step-{step:08d}"
    file.touch()
    return file


@pytest.mark.parametrize("mode", ["", "--synchronous"])
def test_where_the_storage_recovers_in_between_the_run_succeeds(training: Training, tmp_path: Path, mode: str) -> None:
    """Asynchronous and at step 12, the save that failed was begun by the loop and ends after it."""
    file = blocked(training, 12)
    with Listening(tmp_path / "supervisor") as supervisor:
        attempt = training.start(*([mode] if mode else []), num_ranks=2, MUSTER_TRAIN_SOCKET=str(supervisor.path))
        until(lambda: "tried again in 1 s" in attempt.ranks[0].errors, "second try")
        file.unlink()
        assert attempt.ended() == [0, 0], attempt.ranks[0].errors
    assert training.generations()[-1] == "step-00000012/gen-1"
    assert {each["step"] for each in supervisor.received("checkpoint", status="failed")} == {12}
    assert [each["message"] for each in supervisor.received("outcome", exit="done")] == ["", ""]
    assert "was not saved: rank 0: [Errno" in attempt.ranks[0].errors, "no training continues"


@pytest.mark.parametrize("failing", ["all ranks", "one rank"])
def test_where_it_does_not_all_ranks_end_with_the_code_of_that(
    training: Training, tmp_path: Path, failing: str
) -> None:
    only = {1: {"MUSTER_TRAIN_FAILPOINT": "save.write=EDQUOT@3"}} if failing == "one rank" else {}
    if failing == "all ranks":
        blocked(training, 10)
    with Listening(tmp_path / "supervisor") as supervisor:
        attempt = training.start(
            "--steps", "10", num_ranks=2, only=only,
            MUSTER_TRAIN_SOCKET=str(supervisor.path), MUSTER_LAST_SAVE_RETRY_S="0",
        )  # fmt: skip
        assert attempt.ended() == [74, 74], attempt.ranks[0].errors
    last = attempt.ranks[0].errors.splitlines()[-1]
    rank = "rank 1: [Errno 122] Disk quota exceeded" if failing == "one rank" else "rank 0: [Errno 20] Not a directory"
    assert last.startswith(f"muster.train: the last checkpoint, of step 10, could not be saved (1 try in 0 s): {rank}")
    assert last.endswith("; the newest checkpoint is of step 8")
    reports = supervisor.received("outcome", exit="failed")
    assert [f"muster.train: {each['message']}" for each in reports] == [last] * 2
    assert training.generations()[-1] == "step-00000008/gen-1"


def test_a_full_disk_is_reported_at_every_save_and_fails_the_last_one(training: Training) -> None:
    """Under a real limit of the kernel. The saves in the middle stop nothing."""
    limit = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
"""
    program = program_after(training, limit)
    attempt = training.start("--steps", "6", "--width", "8192", program=program, MUSTER_LAST_SAVE_RETRY_S="0")
    assert attempt.ended() == [74], attempt.ranks[0].errors
    said = attempt.ranks[0].errors
    assert "step-00000004/gen-1 was not saved, training continues: rank 0: [Errno 27] File too large" in said
    assert said.splitlines()[-1].endswith("[Errno 27] File too large; there is no checkpoint")


LEAVING = f"""
import runpy, sys
leave = sys.argv.pop(1)
runpy.run_path({str(PROGRAM)!r}, run_name="__main__")
try:
    sys.exit(5)
except SystemExit as asked:
    assert asked.code == 5  # caught, so the program does not end with it
exec(leave)
"""


def left(tmp_path: Path, leave: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program whose saves fail and that ends by the statement ``leave``, without ``finish``.

    In an interpreter of its own, since forks of a warm one run no exit functions.
    """
    own = {"MUSTER_TRAIN_FAILPOINT": "save.write=EIO", "MUSTER_CHECKPOINT_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **own, **variables}
    program = tmp_path / "program.py"
    program.write_text(LEAVING, encoding="utf-8")
    command = [sys.executable, str(program), leave, *arguments]
    return subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=180)


@pytest.mark.parametrize(
    ("mode", "leave", "code"),
    [
        ("", "pass", 74),
        ("--synchronous", "sys.exit(0)", 74),
        ("", "sys.exit(3)", 3),
        ("--synchronous", "exit(93)", 93),
    ],
)
def test_a_save_that_fails_before_a_program_ends_without_finish_is_no_success(
    tmp_path: Path, mode: str, leave: str, code: int
) -> None:
    """The program's own code remains."""
    ended = left(tmp_path, leave, "--leave-at", "4", *([mode] if mode else []))
    assert ended.returncode == code, ended.stderr


@pytest.mark.parametrize(("leave", "code"), [("raise SystemExit(3)", 3), ("pass", 0)])
def test_a_supervisor_that_reads_outcomes_has_each_code_as_the_program_gave_it(
    tmp_path: Path, leave: str, code: int
) -> None:
    with Listening(tmp_path / "supervisor") as supervisor:
        told = {"MUSTER_TRAIN_SOCKET": str(supervisor.path), "MUSTER_TAKES_OUTCOME": "1"}
        ended = left(tmp_path, leave, "--leave-at", "4", "--synchronous", **told)
    assert ended.returncode == code, ended.stderr
    (outcome,) = supervisor.received("outcome")
    assert (outcome["exit"], outcome["cause"], outcome["step"]) == ("failed", "save_failed", 4)
    assert outcome["message"].startswith("the last checkpoint could not be saved: rank 0: ")


@pytest.mark.parametrize("is_read", [True, False])
def test_a_program_that_catches_the_end_by_the_runtime_does_not_make_it_a_success(
    tmp_path: Path, *, is_read: bool
) -> None:
    caught = """
try:
    run.finish()
except SystemExit as end:
    assert end.code == 74
"""
    program = tmp_path / "program.py"
    program.write_text(CASE.replace("run.finish()\n", caught), encoding="utf-8")
    with Listening(tmp_path / "supervisor") as supervisor:
        told = {"MUSTER_TRAIN_SOCKET": str(supervisor.path), "MUSTER_TAKES_OUTCOME": str(int(is_read))}
        environment = {
            "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "MUSTER_CHECKPOINT_DIR": str(tmp_path / "saved"),
            "OMP_NUM_THREADS": "1", "MUSTER_LAST_SAVE_RETRY_S": "0", **told,
        }  # fmt: skip
        (tmp_path / "saved").mkdir()
        command = [sys.executable, str(program)]
        ended = subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=180)
    assert ended.returncode == (0 if is_read else 74), ended.stderr
    assert [each["cause"] for each in supervisor.received("outcome")] == ["save_failed"]


def program_after(training: Training, lines: str) -> Path:
    """Return the small program, with lines of its own before it."""
    program = training.checkpoints.parent / "program.py"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f"{lines}{PROGRAM.read_text(encoding='utf-8')}", encoding="utf-8")
    return program


def test_a_rank_whose_state_cannot_be_written_ends_no_other_and_hangs_none(training: Training) -> None:
    """An error of a class that no storage raises: all ranks learn of it as of a full disk."""
    broken = """
import os
from muster.train.checkpoint import state

def dump(part, file):
    raise IndexError("of its own")

if os.environ["RANK"] == "1":
    state.dump = dump
"""
    program = program_after(training, broken)
    attempt = training.start("--steps", "6", num_ranks=2, program=program, MUSTER_LAST_SAVE_RETRY_S="0")
    assert attempt.ended() == [74, 74], attempt.ranks[0].errors
    assert "rank 1: IndexError: of its own; there is no checkpoint" in attempt.ranks[0].errors.splitlines()[-1]


def test_a_stop_while_the_last_save_is_tried_again_ends_in_time(training: Training, tmp_path: Path) -> None:
    blocked(training, 12)
    with Listening(tmp_path / "supervisor") as supervisor:
        attempt = training.start(num_ranks=2, MUSTER_TRAIN_SOCKET=str(supervisor.path))
        until(lambda: "tried again in 1 s" in attempt.ranks[0].errors, "second try")
        supervisor.report({"type": "stop", "reason": "reclaim", "deadline_unix_ms": 1})
        assert attempt.ended() == [76, 76], attempt.ranks[0].errors
    reports = sorted(each["message"].split("; ")[:2] for each in supervisor.received("outcome", exit="stopped_without"))
    assert [reason for reason, _ in reports] == ["another rank was asked to stop", "reclaim"]
    assert all(words.startswith("the last checkpoint, of step 12, could not be saved (") for _, words in reports)


def test_under_torchrun_the_attempt_ends_as_save_failed_and_the_second_one_is_the_last(
    tmp_path: Path, warm_python: WarmPython
) -> None:
    script = tmp_path / "train.py"
    script.write_text(CASE, encoding="utf-8")
    options = ("--ranks", "2", "--gpus", "0", "--max-restarts", "3", "--pause", "0s", "--name", "full")
    command = [sys.executable, "-m", "muster", "run", *options, "--python", str(warm_python.daemon), "--", str(script)]
    environment = {**os.environ, "MUSTER_LAST_SAVE_RETRY_S": "0"}
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert ended.returncode == 20, ended.stderr
    about = json.loads((tmp_path / "muster-runs/full/run.json").read_text(encoding="utf-8"))
    assert [(each["cause"], each["resumed_step"], each["saved_step"]) for each in about["attempts"]] == [
        ("save_failed", 0, 8),
        ("save_failed", 8, None),
    ]
    assert about["state_reason"].startswith("save_failed: the last checkpoint, of step 10, could not be saved (")
    assert "ended with code 74: its results could not be saved" in about["state_reason"]
    assert "free space in the place of its checkpoints, or repair it" in about["state_reason"]
