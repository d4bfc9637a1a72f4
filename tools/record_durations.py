"""A pytest plugin (``-p tools.record_durations``) that records how long each test took, and how long the whole run.

Each process writes ``<process>.jsonl`` in ``.artefacts/durations``, from which ``make durations`` makes
``tests/durations.json``. The process that began the run writes ``run.json`` next to it: revision, wall time, numbers
of tests and failures, and of a whole run the speed of the machine and how busy it was. `make bench-house` reads it. A
run of some of the tests writes the same files in ``.artefacts/partial-durations``, so that the files of the last whole
run remain.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil
import pytest

from benchmarks.calibration import sample_ms
from tools.git import GitError, git
from tools.test_durations import OF_RUN, RECORDED, RECORDED_PARTIAL

if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import TextIO

FOLDER: Final = "durations_folder"
"""Key of what xdist hands to its workers: the folder of the run. A worker does not see whether the run is partial."""


class Recorder:
    """Measures the tests of one process."""

    def __init__(self, output: TextIO) -> None:
        self._output = output

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        before, began = os.times(), time.monotonic()
        try:
            return (yield)
        finally:
            after = os.times()
            seconds = (
                time.monotonic() - began,
                after.user + after.system - before.user - before.system,
                after.children_user + after.children_system - before.children_user - before.children_system,
            )
            self._output.write(json.dumps([item.nodeid, *(round(value, 3) for value in seconds)]) + "\n")
            self._output.flush()


class RunRecorder:
    """Measures the run, in the process that began it."""

    def __init__(self, config: pytest.Config) -> None:
        self._root = config.rootpath
        self._began = time.monotonic()
        self._runs_all = config.args_source is not pytest.Config.ArgsSource.ARGS and not (
            config.option.keyword or config.option.markexpr or config.option.lf or config.option.deselect
        )
        self.folder = self._root / (RECORDED if self._runs_all else RECORDED_PARTIAL)
        self._workers: Any = getattr(config.option, "numprocesses", None) or 1
        self._ends: dict[str, int] = {}
        self._speed: dict[str, Any] = {}
        self._cpu_began: Any = None

    def begin(self) -> None:
        """Remove the records of the run before, and measure the machine before its work begins."""
        if self._runs_all:
            self._speed["calibration_ms"] = [sample_ms()]
            self._cpu_began = psutil.cpu_times()
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in (*self.folder.glob("*.jsonl"), self.folder / OF_RUN):
            path.unlink(missing_ok=True)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[FOLDER] = str(self.folder)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self._ends[report.outcome] = self._ends.get(report.outcome, 0) + 1

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        wall_s = round(time.monotonic() - self._began, 1)
        if self._runs_all:
            self._speed["busy_share"] = round(_busy_share(self._cpu_began, psutil.cpu_times()), 3)
            self._speed["calibration_ms"].append(sample_ms())
        run = {
            "revision": _git(self._root, "rev-parse", "HEAD"),
            "is_changed": bool(_git(self._root, "status", "--porcelain")),
            "asks_for_all": self._runs_all,
            "wall_s": wall_s,
            "exit_status": int(exitstatus),
            "tests": dict(sorted(self._ends.items())),
            "workers": self._workers,
            "processors": os.cpu_count(),
            **self._speed,
        }
        (self.folder / OF_RUN).write_text(json.dumps(run, indent=2) + "\n", encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    """Register what the process measures."""
    worker: dict[str, Any] | None = getattr(config, "workerinput", None)
    if worker is None:
        run = RunRecorder(config)
        run.begin()
        config.pluginmanager.register(run)
        path = run.folder / "main.jsonl"
    else:
        path = Path(worker[FOLDER]) / f"{worker['workerid']}.jsonl"
    output = path.open("w", encoding="utf-8")
    config.add_cleanup(output.close)
    config.pluginmanager.register(Recorder(output))


def _busy_share(began: Any, ended: Any) -> float:
    """Return the share of the cores' time between two readings of ``psutil.cpu_times`` in which they were not idle."""
    spent = {
        name: getattr(ended, name) - getattr(began, name) for name in began._fields if not name.startswith("guest")
    }
    idle: float = spent["idle"] + spent.get("iowait", 0.0)
    total: float = sum(spent.values())
    return 1.0 - idle / max(total, 1e-9)


def _git(root: Path, *words: str) -> str | None:
    """Return what git says; outside a checkout, None."""
    try:
        return git(root, *words).strip()
    except GitError:
        return None
