"""The bundle of an attempt, before its program starts: fetched and verified by a process that may wait for a network.

The process runs ``workers.host.content.fetch_process`` by our own interpreter, and ends with us.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time

from workers.host.supervisor import children
from workers.host.supervisor.missing import BUNDLE
from workers.host.supervisor.preparation import UnreadyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MOST_BYTES = 1 << 20


class UnfitBundleError(Exception):
    """The bundle is not whole in the store, or is none: no host can get it."""

    lacks = BUNDLE


class NoBundleError(UnreadyError):
    """This host cannot get the bundle, or has no room for it."""

    lacks = BUNDLE


class BundleFetch:
    """Fetch that runs from its construction on. Raises NoBundleError if it cannot be started."""

    def __init__(self, bundle: dict[str, Any]) -> None:
        self._within_s = float(bundle["fetch_s"])
        self._until = time.monotonic() + self._within_s
        self._output = os.memfd_create("reported")
        asked = os.memfd_create("asked", 0)
        os.set_inheritable(asked, True)  # its only parameter
        try:
            os.write(asked, json.dumps(bundle).encode())
            os.lseek(asked, 0, os.SEEK_SET)
            command = [sys.executable, "-I", "-m", "workers.host.content.fetch_process", str(asked)]
            environment = {"PATH": os.environ.get("PATH", os.defpath)}
            self._pid: int | None = children.start(command, environment, "/", self._output)
        except children.StartError as fault:
            raise NoBundleError(f"the fetch of the bundle cannot be started: {fault}") from fault
        finally:
            os.close(asked)

    def is_over(self) -> bool:
        """Return whether the bundle is here, whole.

        Raises:
            UnfitBundleError: no host can get it.
            NoBundleError: this host cannot get it, has no room, or not within its time.
        """
        has_ended = self._has_ended()
        reported = self._last_line()
        if "why" in reported:
            fault = NoBundleError if reported.get("is_of_host") else UnfitBundleError
            raise fault(f"the bundle: {reported['why']}")
        if reported.get("is_done"):
            return True
        if has_ended:
            raise NoBundleError(f"the fetch of the bundle ended without a result: {self._words()}")
        if time.monotonic() < self._until:
            return False
        raise NoBundleError(f"the bundle was not here within {self._within_s:g} s: {_progress_in(reported)}")

    def kill(self) -> None:
        """Kill the process without waiting: what it has fetched stays, and the next fetch continues with it."""
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

    def _last_line(self) -> dict[str, Any]:
        """Return the last whole line of JSON."""
        for line in reversed(os.pread(self._output, _MOST_BYTES, 0).splitlines(keepends=True)):
            with contextlib.suppress(ValueError):
                reported = json.loads(line) if line.endswith(b"\n") else None
                if isinstance(reported, dict):
                    return reported
        return {}

    def _words(self) -> str:
        lines = os.pread(self._output, _MOST_BYTES, 0).decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:300] if lines else "nothing"


def _progress_in(reported: dict[str, Any]) -> str:
    failure = str(reported.get("failure") or "")
    if not reported.get("of"):
        return failure or "another attempt on this host still fetches it, or it is being read"
    megabytes = f"{reported['have'] / 1e6:.0f} of {reported['of'] / 1e6:.0f} MB were fetched, and stay for the next try"
    return f"{megabytes}; {failure}" if failure else megabytes
