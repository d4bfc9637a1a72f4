"""Preflight of a job's datasets before its program starts, in a process that may hang in a file system.

The process runs ``muster.train.data.dataset_preflight``, by our own interpreter and as the job's user.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path

from workers.host.supervisor import children
from workers.host.supervisor.missing import DATASET
from workers.host.supervisor.preparation import UnreadyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from workers.host.supervisor.order import Order

_ROOT = str(Path(__file__).resolve().parents[3])
_START = (
    "import sys; sys.path.insert(0, sys.argv[1]); from muster.train.data.dataset_preflight import main;"
    " del sys.path[0]; sys.stdin = open(int(sys.argv[2])); main()"
)
_CHECKSUMS = "checksums"
_MOST_BYTES = 1 << 20
_SILENT_PART = 0.5
"""Part of its time: a preflight without progress for so long hangs, however much it did before."""


class UnfitDatasetError(Exception):
    """A dataset is not as the job says: the tenant's to fix."""

    lacks = DATASET


class DatasetCheck:
    """Preflight that runs from its construction on. Raises UnreadyError if it cannot be started."""

    def __init__(self, order: Order) -> None:
        self._requested = order.datasets
        self._within_s = order.dataset_check_s
        self._until = time.monotonic() + self._within_s
        self._received_bytes = 0
        self._received_at = time.monotonic()
        self._output = os.memfd_create("said")
        asked = os.memfd_create("asked", 0)
        os.set_inheritable(asked, True)  # its only parameter
        try:
            os.write(asked, json.dumps(self._requested).encode())
            os.lseek(asked, 0, os.SEEK_SET)
            command = [sys.executable, "-I", "-S", "-c", _START, _ROOT, str(asked)]
            self._pid: int | None = children.start(command, _environment(), "/", self._output, None, order.user)
        except children.StartError as fault:
            raise UnreadyError(f"the preflight of the datasets cannot be started: {fault}") from fault
        finally:
            os.close(asked)

    def is_over(self) -> bool:
        """Return whether all datasets are found to be right.

        Raises:
            UnfitDatasetError: one is not, or it is too large to be read in the host's time.
            UnreadyError: the host's file system does not answer in time, or the preflight ended without a result.
        """
        has_ended = self._has_ended()
        self._note_progress()
        found = self._lines()
        for each in found:
            if "why" in each:
                raise UnfitDatasetError(f"the dataset {each['name']}: {each['why']}")
        if len(found) == len(self._requested):
            return True
        waits_for = self._requested[len(found)]
        if has_ended:
            why = f"the preflight of the dataset {waits_for['name']} ended without a result: {self._words()}"
            raise UnreadyError(why)
        if time.monotonic() < self._until:
            return False
        raise self._overdue(waits_for)

    def _overdue(self, waits_for: dict[str, Any]) -> UnfitDatasetError | UnreadyError:
        """Return the fault: too much work is the tenant's, storage that does not answer the host's."""
        name, within_s = waits_for["name"], self._within_s
        if time.monotonic() - self._received_at > _SILENT_PART * within_s:
            why = f"could not be read within {within_s:g} s: {waits_for['path']} does not answer"
            return UnreadyError(f"the dataset {name} {why}")
        if waits_for["verify"] == _CHECKSUMS:
            why = f"its checksums were not all read within {within_s:g} s; `verify: sizes` takes less"
        else:
            why = f"its files are too many for {within_s:g} s: pack them into fewer"
        return UnfitDatasetError(f"the dataset {name}: {why}")

    def _note_progress(self) -> None:
        said_bytes = os.fstat(self._output).st_size
        if said_bytes > self._received_bytes:
            self._received_bytes, self._received_at = said_bytes, time.monotonic()

    def kill(self) -> None:
        """Kill the process without waiting: one that hangs in a file system may never end."""
        if self._pid is not None and not self._has_ended():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
        if self._output >= 0:
            os.close(self._output)
            self._output = -1

    def _has_ended(self) -> bool:
        if self._pid is not None and os.waitpid(self._pid, os.WNOHANG)[0] == self._pid:
            self._pid = None
        return self._pid is None

    def _lines(self) -> list[dict[str, Any]]:
        """Return the whole result lines. Other output is stored for ``_words``."""
        found: list[dict[str, Any]] = []
        for line in os.pread(self._output, _MOST_BYTES, 0).splitlines(keepends=True):
            with contextlib.suppress(ValueError):
                said = json.loads(line) if line.endswith(b"\n") else None
                if isinstance(said, dict) and "name" in said:
                    found.append(said)
        return found

    def _words(self) -> str:
        lines = os.pread(self._output, _MOST_BYTES, 0).decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:300] if lines else "nothing"


def _environment() -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", os.defpath)}
