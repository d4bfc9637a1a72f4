"""A process that has imported what tests need from elsewhere, and runs tests in forks of itself.

It is started as a program. Its arguments are the folder of a checkout's copy and the modules to import. Each line of
its input is a request in JSON; each line of its output is the answer. A fork imports the product again, so it reads a
changed file as it is now.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import json
import os
import re
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

BROKEN: Final = frozenset({"ImportError", "ModuleNotFoundError", "SyntaxError", "IndentationError", "NameError"})
"""Errors of a file that does not run at all; that a test meets them says nothing about the test."""
GRACE_S: Final = 15.0


class Recorder:
    """A plugin of pytest: notes the first failure, and begins no test after the budget of CPU time is spent.

    ``first`` is the id of the test that runs before the others, without its parameters.
    """

    def __init__(self, budget_s: float, first: str) -> None:
        self._first = first
        self.found: dict[str, Any] = {"failed": [], "num_tests": 0, "outcome": "survived"}
        self._budget_s = budget_s
        self._session: pytest.Session | None = None

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Keep the session, to stop it later."""
        self._session = session

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Move the first test to the front. Among pytest's arguments, the file of a test would swallow it."""
        items.sort(key=lambda item: item.nodeid.partition("[")[0] != self._first)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a test file that fails as it is imported: its own code may have called the product."""
        if report.failed:
            error = _last_error(report.longreprtext)
            self.found["failed"].append(report.nodeid)
            self.found |= {"outcome": _outcome_of(error), "by": report.nodeid, "error": error}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the first test that fails, in whatever phase."""
        if not report.failed:
            return
        self.found["failed"].append(report.nodeid)
        if self.found["outcome"] == "survived":
            error = _last_error(report.longreprtext)
            self.found |= {"outcome": _outcome_of(error), "by": report.nodeid, "error": error, "phase": report.when}

    def pytest_runtest_logfinish(self) -> None:
        """Count the test, and end the session when the budget is spent."""
        self.found["num_tests"] += 1
        if sum(os.times()[:4]) > self._budget_s and self._session is not None:
            self._session.shouldstop = "the budget is spent"
            self.found["is_cut_short"] = True


def _outcome_of(error: str) -> str:
    if error.partition(":")[0] in BROKEN:
        return "broken"
    return "timeout" if error.startswith("Failed: Timeout") else "killed"


def _last_error(text: str) -> str:
    """Return the last line of a traceback that names an error."""
    found = re.findall(
        r"^E   +((?:[\w.]+): .*|[\w.]*(?:Error|Exception)\b.*|assert .*|Failed: .*)$", text, re.MULTILINE
    )
    lines = found or [line for line in text.splitlines() if line.strip()]
    return lines[-1][:200].strip() if lines else ""


def main() -> int:
    """Answer requests until the input ends."""
    root = Path(sys.argv[1])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    os.chdir(root)
    sys.path.insert(0, str(root))
    with warnings.catch_warnings(action="ignore"):
        _load(sys.argv[2:])
    for line in sys.stdin:
        request = json.loads(line)
        answer = _run(root, request)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    return 0


def _load(names: Sequence[str]) -> None:
    """Import pytest with its plugins, and these modules. An import that fails is left to the tests."""
    plugins = [f"_pytest.{name}" for name in importlib.import_module("_pytest.config").default_plugins]
    plugins += [entry.module for entry in importlib.metadata.entry_points(group="pytest11")]
    for name in ["pytest", *plugins, *names]:
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def _run(root: Path, request: Mapping[str, Any]) -> dict[str, Any]:
    """Fork, run the tests there, and return the result with the CPU seconds of all processes that were awaited."""
    folder = Path(request["folder"])
    found = folder / "found.json"
    found.unlink(missing_ok=True)
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        _become(root, folder, request)
    try:
        stopped, used = _await(child, request["cpu_s"], request["wall_s"])
    except BaseException:
        os.killpg(child, signal.SIGKILL)
        raise
    try:
        answer: dict[str, Any] = json.loads(found.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        answer = {"outcome": "broken", "error": "the tests ended without a result", "failed": [], "num_tests": 0}
    if stopped and answer["outcome"] in {"survived", "broken"}:
        answer |= {"outcome": "timeout", "error": stopped}
    return {**answer, "cpu_s": round(used, 2), "wall_s": round(time.monotonic() - began, 2)}


def _become(root: Path, folder: Path, request: Mapping[str, Any]) -> None:
    """Turn the fork into pytest; it ends here."""
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with (folder / "output.txt").open("w") as output:
            for number in (1, 2):
                os.dup2(output.fileno(), number)
        os.close(0)
        os.open(os.devnull, os.O_RDONLY)
        recorder = Recorder(request["cpu_s"], request["first"])
        words = ["--rootdir", str(root), "-p", "no:cacheprovider", "-p", "no:xdist", "-q", "--no-header"]
        words += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # the plugins are warm
        words += [
            "--tb=short",
            "--hypothesis-seed=0",
            f"--timeout={request['test_s']:.0f}",
            *request["words"],
            *request["tests"],
        ]
        code = pytest.main(words, plugins=[recorder])
        if code not in {0, 1} and recorder.found["outcome"] == "survived" and not recorder.found.get("is_cut_short"):
            recorder.found |= {"outcome": "broken", "error": f"pytest ended with {int(code)}"}
        (folder / "found.json").write_text(json.dumps(recorder.found), encoding="utf-8")
    except BaseException:  # noqa: BLE001  # a fork never returns into its parent's code
        traceback.print_exc()
    os._exit(int(code))


def _await(child: int, cpu_s: float, wall_s: float) -> tuple[str, float]:
    """Wait for the child's end; return why it was stopped, if it was, and its CPU seconds."""
    deadline, stopped, parent = time.monotonic() + wall_s, "", os.getppid()
    while True:
        pid, _, usage = os.wait4(child, os.WNOHANG)
        if pid == child:
            return stopped, usage.ru_utime + usage.ru_stime
        if os.getppid() != parent:
            sys.exit("the requesting process has ended")
        if not stopped and (time.monotonic() > deadline or _cpu_s(child) > cpu_s * 1.5 + GRACE_S):
            stopped = f"not ended after {cpu_s:.0f} s of CPU time, {wall_s:.0f} s in all"
            deadline = time.monotonic() + GRACE_S
            os.kill(child, signal.SIGINT)
        elif stopped and time.monotonic() > deadline:
            os.killpg(child, signal.SIGKILL)
        time.sleep(0.02)


def _cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process and of the children that it has awaited."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())
