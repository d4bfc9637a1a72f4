"""A pytest plugin (``-p tools.quick_deadline``): begins no test after a time, and notes those that it left out.

``QUICK_DEADLINE`` is a time of the monotonic clock, which all processes of a machine share; ``QUICK_UNSTARTED`` a
folder in which each process writes the ids of the tests that it did not begin.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest


class Deadline:
    """Lets a test begin, or notes it."""

    def __init__(self, deadline: float, unstarted: Path) -> None:
        self._deadline = deadline
        self._unstarted = unstarted

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """Return True for a test that shall not begin: no other plugin runs it then."""
        if time.monotonic() < self._deadline:
            return None
        with self._unstarted.open("a", encoding="utf-8") as output:
            output.write(f"{item.nodeid}\n")
        return True


def pytest_configure(config: pytest.Config) -> None:
    """Register the deadline that `make quick` gave."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    unstarted = Path(os.environ["QUICK_UNSTARTED"]) / worker
    config.pluginmanager.register(Deadline(float(os.environ["QUICK_DEADLINE"]), unstarted))
