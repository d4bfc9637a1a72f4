"""The stages of `make quick`: each is a program that runs with a bound, and ends as passed, failed or left out."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tools.quick_plan import Plan

TYPES_IDLE_S: Final = 3600
"""Time without a request after which the daemon of mypy ends by itself."""
TYPES_FAILED: Final = 1
"""Exit code of the daemon if types are wrong; with another one it failed itself."""
NO_TESTS: Final = 5
"""Exit code of pytest if it collected nothing."""
ENDING_S: Final = 5.0
"""Time for pytest to stop servers after its limit, before it is killed."""


class Outcome(StrEnum):
    """Outcome of a stage."""

    PASSED = "passed"
    FAILED = "FAILED"
    LEFT_OUT = "left out"


@dataclass(frozen=True, slots=True)
class Ended:
    """``words`` say more about the outcome; ``output`` is what the program printed, where it was held back."""

    stage: str
    outcome: Outcome
    words: str = ""
    output: str = ""


def run_program(root: Path, stage: str, *command: str) -> Ended:
    """Run a short program to its end."""
    ended = subprocess.run([_tool(command[0]), *command[1:]], cwd=root, check=False, capture_output=True, text=True)
    if ended.returncode == 0:
        return Ended(stage, Outcome.PASSED)
    return Ended(stage, Outcome.FAILED, output=ended.stdout + ended.stderr)


class TypeCheck:
    """The types of the whole checkout by mypy's daemon, during the tests. Its first start takes most of a minute."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._output = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115  # closed by `ended`
        self._client = self._ask()

    def ended(self, deadline: float) -> Ended:
        """Wait until the deadline. An unfinished daemon continues: the next run has its answer at once.

        A daemon that crashed is started again, which loads the whole checkout.
        """
        code = self._wait(deadline)
        if code not in {None, 0, TYPES_FAILED}:
            self._output.truncate(0)
            self._client = self._ask()
            code = self._wait(deadline)
        if code is None:
            words = "the daemon of mypy still loads the checkout: run again, or run `make types`"
            return Ended("types", Outcome.LEFT_OUT, words)
        with self._output:
            self._output.seek(0)
            output = self._output.read()
        if code == 0:
            return Ended("types", Outcome.PASSED)
        words = "" if code == TYPES_FAILED else "the daemon of mypy crashed twice: run `make types`"
        return Ended("types", Outcome.FAILED, words, output)

    def _ask(self) -> subprocess.Popen[bytes]:
        command = [_tool("dmypy"), "run", "--timeout", str(TYPES_IDLE_S)]
        return subprocess.Popen(
            command, cwd=self._root, stdout=self._output, stderr=subprocess.STDOUT, start_new_session=True
        )

    def _wait(self, deadline: float) -> int | None:
        try:
            return self._client.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return None


@dataclass(frozen=True, slots=True)
class TriedTests:
    """Result of the tests. ``unstarted``: the tests and files that did not run in time."""

    ended: Ended
    unstarted: tuple[str, ...]


def run_tests(root: Path, plan: Plan, *, workers: int, deadline: float) -> TriedTests:
    """Run the tests of a plan in its order; from the deadline on none begins, and what still runs is interrupted."""
    if not plan.requested:
        return TriedTests(Ended("tests", Outcome.PASSED, "the change reaches none"), ())
    with tempfile.TemporaryDirectory() as notes:
        environment = {**os.environ, "QUICK_DEADLINE": repr(deadline), "QUICK_NOTES": notes}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        with subprocess.Popen(
            _pytest_command(plan, workers), cwd=root, env=environment, start_new_session=True
        ) as process:
            code, is_cut = _wait(process, deadline)
        unstarted = _notes_of(Path(notes), "unstarted")
        failed = sorted(set(_notes_of(Path(notes), "failed")))
        ended = {*_notes_of(Path(notes), "ended"), *(name.partition("::")[0] for name in unstarted)}
    if is_cut:
        unended = [path for path in plan.requested if path.partition("::")[0] not in ended]
        words = "the time was over before all had run"
        if failed:
            ended_words = f"{words}; failed: {', '.join(failed)}"
            return TriedTests(Ended("tests", Outcome.FAILED, ended_words), (*unended, *unstarted))
        return TriedTests(Ended("tests", Outcome.LEFT_OUT, words), (*unended, *unstarted))
    if code not in {0, NO_TESTS}:
        return TriedTests(Ended("tests", Outcome.FAILED), tuple(unstarted))
    outcome = Outcome.LEFT_OUT if unstarted else Outcome.PASSED
    words = f"{len(unstarted)} tests, whose turn did not come; the others passed" if unstarted else ""
    return TriedTests(Ended("tests", outcome, words), tuple(unstarted))


def _notes_of(notes: Path, what: str) -> list[str]:
    return [line for path in sorted(notes.glob(f"*.{what}")) for line in path.read_text("utf-8").splitlines()]


def _pytest_command(plan: Plan, workers: int) -> list[str]:
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "tools.quick_deadline"]
    command += ["-n", str(workers), "--dist", "loadfile", "--no-loadscope-reorder"]
    for left_out in plan.left_out:
        if left_out.test is not None and left_out.node_id not in plan.requested:
            command += ["--deselect", left_out.node_id]
    return [*command, *plan.requested]


def _wait(process: subprocess.Popen[bytes], deadline: float) -> tuple[int, bool]:
    """Return how pytest ended, and whether it was ended: first as by Ctrl-C, so that servers stop."""
    for seconds, number in ((ENDING_S, signal.SIGINT), (ENDING_S, signal.SIGKILL)):
        try:
            return process.wait(max(0.0, deadline + seconds - time.monotonic())), number is signal.SIGKILL
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, number)
            deadline = time.monotonic()
    return process.wait(), True


def _tool(name: str) -> str:
    """Return a program of this environment."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else name


def print_ends(ends: Sequence[Ended]) -> None:
    """Print what failed in full, then a line a stage."""
    for one in ends:
        if one.output:
            sys.stdout.write(f"\n== {one.stage}\n{one.output.rstrip()}\n")
    sys.stdout.write("\n")
    for one in ends:
        sys.stdout.write(f"{one.stage:<10} {one.outcome}{f': {one.words}' if one.words else ''}\n")
