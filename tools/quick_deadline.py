"""A pytest plugin (``-p tools.quick_deadline``): begins no test after a time, and notes what ended or did not begin.

``QUICK_DEADLINE`` is a time of the monotonic clock, which all processes of a machine share. In the folder
``QUICK_NOTES`` each process writes the ids of the tests that it did not begin, and the files that it ended.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest


class Deadline:
    """Lets a test begin, or notes it. One process runs a whole file."""

    def __init__(self, deadline: float, notes: Path, process: str) -> None:
        self._deadline = deadline
        self._unstarted = notes / f"{process}.unstarted"
        self._ended = notes / f"{process}.ended"

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """Return True for a test that shall not begin: no other plugin runs it then."""
        if time.monotonic() < self._deadline:
            return None
        _add(self._unstarted, item.nodeid)
        return True

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """Note a file with its last test."""
        if nextitem is None or nextitem.path != item.path:
            _add(self._ended, item.nodeid.partition("::")[0])


def _add(path: Path, line: str) -> None:
    with path.open("a", encoding="utf-8") as output:
        output.write(f"{line}\n")


def pytest_configure(config: pytest.Config) -> None:
    """Register the deadline that `make quick` gave."""
    process = os.environ.get("PYTEST_XDIST_WORKER", "main")
    deadline = float(os.environ["QUICK_DEADLINE"])
    config.pluginmanager.register(Deadline(deadline, Path(os.environ["QUICK_NOTES"]), process))
