"""``muster run`` of programs that hang: the rank that is named, the evidence, and what follows by the job's rule."""

import json
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.cli.job.hang_folder import read_bundle
from muster.domain.exit.exits import Verdict as ExitVerdict
from muster.domain.job.spec import JobSpec
from muster.domain.lifecycle.model import Timers
from muster.domain.policy.document import Policy
from muster.domain.policy.watch import KnownLimits, UnknownLimits, WatchPolicy
from muster.domain.states import Cause
from tests.scaled import examples
from tests.warm_python import WarmPython
from tests.workers.host.burial import bury
from tests.workers.host.watch.test_learnt import STEPS
from tests.workers.local.runs import Runs
from watch.forensics.documents import from_document
from watch.forensics.judge import judge_hang
from watch.phases import Phase
from workers.local import hangs, local_run
from workers.local.local_run import LocalRun
from workers.local.plan import RunFolder, RunPlan

PROGRAM = Path(__file__).with_name("hanging_program.py")
SHORT = KnownLimits(step_s=2.5, data_s=2.5, eval_s=2.5, first_step_s=15)
BARE = Path(__file__).with_name("bare_program.py")
LATE = UnknownLimits(first_step_s=15)
"""For a tracker whose first look is past the first step."""
ENDS_LOUDLY = """
import signal, time
signal.signal(signal.SIGTERM, lambda *_: print("saves what it can", flush=True))
print("here", flush=True)
until = time.monotonic() + 600
while time.monotonic() < until:
    time.sleep(until - time.monotonic())
"""
QUIET = "import time; print('here', flush=True); time.sleep(600)"


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runs]:
    monkeypatch.setattr(hangs, "TURN_S", 0.2)
    monkeypatch.setattr(local_run, "HUNG_GRACE_MS", 100)
    yield Runs(tmp_path)
    for folder in tmp_path.rglob("attempts/*/"):
        bury(folder)


WORDS = {
    "endless": "stand_still (",
    "loader": "__iter__ (",
    "skipped": "all_reduce",
    "gather": "all_gather",
    "storage": "stand_still (",
    "stopped": "stopped",
}


def hung(runs: Runs, warm: WarmPython, kind: str, *, ranks: int, culprit: int, at: int) -> tuple[str, dict[str, Any]]:
    """Run a program that hangs in one of the ways, and return the sentence about it and its attempt."""
    program = {"script": str(PROGRAM), "args": [kind, str(culprit), str(at)], "python": str(warm.daemon)}
    ended = runs.run(program, WatchPolicy(known=SHORT, unknown=LATE), ranks=ranks, restart={"max_restarts": 0})
    (attempt,) = ended["attempts"]
    assert (ended["state"], attempt["cause"]) == ("FAILED", "hang"), runs.reported
    (sentence,) = runs.sentences()
    return sentence, attempt


@pytest.mark.parametrize("kind", ["endless", "loader", "skipped", "gather", "storage"])
def test_one_sentence_names_the_rank_that_the_others_wait_for(runs: Runs, warm_python: WarmPython, kind: str) -> None:
    """``tests/workers/local/test_faults_on_purpose.py`` has a rank that is stopped, and one that sleeps."""
    ranks = 3 if kind == "gather" else 2  # of two other operations, either may be the false one
    sentence, attempt = hung(runs, warm_python, kind, ranks=ranks, culprit=1, at=12)
    assert attempt["culprit_rank"] == 1, runs.reported
    assert sentence.startswith("hang: Rank 1 "), sentence
    assert WORDS[kind] in sentence
    assert attempt["proof"] in sentence
    assert attempt["saved_step"] == 10
    found = json.loads((Path(attempt["folder"]) / "watch" / "host-this-host.json").read_text())
    assert [rank["rank"] for rank in found["ranks"]] == list(range(ranks))
    kept = read_bundle(Path(attempt["folder"]))
    assert kept.notes == (), kept.notes
    assert judge_hang(kept.reports).sentence in sentence, "`muster hang analyze` states the same later"


@pytest.mark.parametrize("number", range(examples(500, quick=1)))
def test_a_hang_of_any_kind_rank_and_step_is_named(runs: Runs, warm_python: WarmPython, number: int) -> None:
    draw = random.Random(number)  # noqa: S311  # the same hangs in each run
    kind = [*WORDS][(number + 5) % len(WORDS)]
    ranks = draw.randrange(3 if kind == "gather" else 2, 5)
    culprit = draw.randrange(ranks)
    sentence, attempt = hung(runs, warm_python, kind, ranks=ranks, culprit=culprit, at=draw.randrange(10, 30))
    assert attempt["culprit_rank"] == culprit, runs.reported
    assert WORDS[kind] in sentence


@pytest.mark.parametrize(
    ("kind", "note"),
    [
        ("whole", None),
        ("cut", "rank 2 has no dump of the flight recorder: not used: its pickle is cut off"),
        ("none", "rank 2 has no dump of the flight recorder: none was written"),
    ],
)
def test_dumps_of_nccl_are_requested_and_joined_by_sequence(
    runs: Runs, warm_python: WarmPython, kind: str, note: str | None
) -> None:
    script = PROGRAM.with_name("dumping_program.py")
    program = {"script": str(script), "args": [kind], "python": str(warm_python.daemon)}
    ended = runs.run(program, WatchPolicy(known=SHORT, unknown=LATE), ranks=3, restart={"max_restarts": 0})
    (attempt,) = ended["attempts"]
    (sentence,) = runs.sentences()
    assert attempt["culprit_rank"] == 1, runs.reported
    assert "does not return from the program's own code" in sentence
    waiting = "ranks 0 and 2 wait" if kind == "whole" else "rank 0 waits"
    assert f"; {waiting} in all_reduce, number " in sentence, sentence
    found = from_document(json.loads((Path(attempt["folder"]) / "watch" / "host-this-host.json").read_text()))
    assert {each.source for each in found.ranks[0].collectives} >= {"nccl"}
    assert [each.startswith(note or "-") for each in found.notes] == ([] if note is None else [True])
    stated = [each for each in judge_hang([found]).evidence if "flight recorder" in each]
    assert stated == list(found.notes)


def bare(code: str) -> dict[str, Any]:
    return {"launcher": "command", "argv": [sys.executable, "-u", "-c", code]}


def test_of_ranks_without_the_runtime_the_one_that_sleeps_is_named(runs: Runs) -> None:
    program = {"script": str(BARE), "args": ["sleeps"], "python": sys.executable}
    ended = runs.run(program, WatchPolicy(quiet_s=3.0, known=SHORT), ranks=2, restart={"max_restarts": 0})
    (attempt,) = ended["attempts"]
    assert (attempt["cause"], attempt["culprit_rank"]) == ("hang", 1), runs.reported
    (sentence,) = runs.sentences()
    assert sentence.startswith("hang: Rank 1 does not return from the program's own code")


def test_a_hang_is_tried_again_as_often_as_the_policy_allows(runs: Runs) -> None:
    ended = runs.run(bare(QUIET), WatchPolicy(quiet_s=0.5, hang_restarts=1, known=SHORT), restart={"max_restarts": 5})
    assert [each["cause"] for each in ended["attempts"]] == ["hang", "hang"]
    assert (ended["state"], ended["state_reason"].endswith("it hung 2 times in a row, and 1 may be repeated")) == (
        "FAILED",
        True,
    )


@pytest.mark.parametrize(
    ("causes", "is_last"), [(["hang", "user_error", "hang"], False), (["user_error", "hang", "hang"], True)]
)
def test_hangs_count_in_a_row(tmp_path: Path, causes: list[str], *, is_last: bool) -> None:
    spec = JobSpec.model_validate({"name": "job", "program": bare(QUIET), "shape": {"ranks_per_node": 1}})
    watch = WatchPolicy(hang_restarts=1)
    plan = RunPlan(spec, (), sys.executable, Timers.of(Policy()), 1 << 20, 20, 600.0, watch=watch)
    folder = RunFolder(tmp_path / "run", spec)
    try:
        run = LocalRun(plan, folder, lambda _words: None, lambda _stream, _line: None)
    finally:
        folder.close()
    run._ended = [{"cause": cause} for cause in causes]
    assert (run._ends_by_hang(ExitVerdict(Cause.HANG, "stands still")) is not None) is is_last


def test_a_job_that_holds_keeps_its_stacks_and_is_not_tried_again(runs: Runs) -> None:
    ended = runs.run(bare(QUIET), WatchPolicy(quiet_s=0.5, known=SHORT), on_hang="hold", restart={"max_restarts": 5})
    (attempt,) = ended["attempts"]
    assert ended["state_reason"].endswith("its rule is to hold")
    assert (Path(attempt["folder"]) / "watch" / "host-this-host.json").exists()


def test_what_a_hung_attempt_does_while_it_is_ended_is_no_progress(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_run, "HUNG_GRACE_MS", 2_000)  # many turns of the watch, after the output
    policy = WatchPolicy(quiet_s=0.5, known=SHORT)
    ended = runs.run(bare(ENDS_LOUDLY), policy, restart={"max_restarts": 0}, stop_grace_s=2)
    (attempt,) = ended["attempts"]
    assert "saves what it can" in (Path(attempt["folder"]) / "logs" / "0.log").read_text()
    assert not any(words.startswith("makes progress") for words in runs.reported), runs.reported


def test_a_job_that_is_to_be_notified_goes_on(runs: Runs) -> None:
    wait = "while not os.path.exists({!r}): time.sleep(0.05)"
    hung, moves = (wait.format(str(runs.file_of(kind))) for kind in ("hang: ", "makes progress"))
    code = f"import os, time\nprint('here', flush=True)\n{hung}\nprint('again', flush=True)\n{moves}"
    ended = runs.run(bare(code), WatchPolicy(quiet_s=1.0, known=SHORT), on_hang="notify")
    assert ended["state"] == "SUCCEEDED"
    assert runs.sentences()
    assert any(words.startswith("makes progress again after ") for words in runs.reported)


def test_a_later_run_in_the_folder_knows_how_long_steps_took(runs: Runs) -> None:
    """Its limits are the learnt ones from its first step on."""
    code = STEPS.replace("range(1, 10**6)", "range(1, 24)")
    assert runs.run(bare(code), WatchPolicy())["state"] == "SUCCEEDED"
    spec = JobSpec.model_validate({"name": "job", "program": bare(code), "shape": {"ranks_per_node": 1}})
    plan = RunPlan(spec, (), sys.executable, Timers.of(Policy()), 1 << 20, 20, 600.0)
    folder = RunFolder(runs.folder / "run", spec)
    try:
        known = LocalRun(plan, folder, lambda _words: None, lambda _stream, _line: None)._durations.known(Phase.STEP)
    finally:
        folder.close()
    assert len(known) >= 3
    assert all(0.1 < each < 30.0 for each in known)


def test_a_fault_of_the_kernels_log_since_the_attempts_start_is_the_cause(runs: Runs) -> None:
    line = "mlx5_core 0000:1a:00.0: Fatal error 3 detected"
    since_all_ms: list[int] = []

    def kernel(since_ms: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        since_all_ms.append(since_ms)
        return (line,), ()

    before_ms = time.time() * 1000
    waits = "import threading; print('here', flush=True); threading.Event().wait()"  # for something, as for a network
    ended = runs.run(bare(waits), WatchPolicy(quiet_s=0.5, known=SHORT), on_hang="hold", kernel=kernel)
    assert len(since_all_ms) == 1
    assert before_ms - 1 <= since_all_ms[0] <= ended["attempts"][0]["ended_at_ms"]
    assert runs.sentences()[0].startswith(f"hang: Rank 0 reports a fault of the network: {line}")
