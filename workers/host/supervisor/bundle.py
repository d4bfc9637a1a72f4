"""Bundle and environment of an attempt, before its program starts, by a process that may wait for a network.

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
from workers.host.supervisor.missing import BUNDLE, ENVIRONMENT
from workers.host.supervisor.preparation import UnreadyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from workers.host.supervisor.cgroup.group import Group

_MOST_BYTES = 1 << 20


class UnfitBundleError(Exception):
    """The bundle is not whole in the store, or is none, or its environment cannot be built: no host can get it."""

    def __init__(self, words: str, lacks: str = BUNDLE) -> None:
        super().__init__(words)
        self.lacks = lacks


class NoBundleError(UnreadyError):
    """This host cannot get the bundle or its environment, or has no room for it."""

    def __init__(self, words: str, lacks: str = BUNDLE) -> None:
        super().__init__(words)
        self.lacks = lacks


class BundleFetch:
    """Fetch that runs from its construction on. Raises NoBundleError if it cannot be started."""

    def __init__(self, bundle: dict[str, Any], group: Group) -> None:
        """``group``: of the program, in which its environment is built."""
        bundle = {**bundle, "cgroup": group.identity()}
        builds_s = sum(float((bundle.get(build) or {}).get("build_s", 0.0)) for build in ("environment", "git"))
        self._within_s = float(bundle["fetch_s"]) + builds_s
        self._until = time.monotonic() + self._within_s
        self.venv: str | None = None
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
        """Return whether the bundle is here, whole, and its environment as ``venv``.

        Raises:
            UnfitBundleError: no host can get it.
            NoBundleError: this host cannot get it, has no room, or not within its time.
        """
        has_ended = self._has_ended()
        reported = self._last_line()
        what = ENVIRONMENT if reported.get("what") == ENVIRONMENT else BUNDLE
        if "why" in reported:
            fault = NoBundleError if reported.get("is_of_host") else UnfitBundleError
            raise fault(f"the {what}: {reported['why']}", what)
        if reported.get("is_done"):
            self.venv = reported.get("venv")
            return True
        if has_ended:
            raise NoBundleError(f"the fetch of the {what} ended without a result: {self._words()}", what)
        if time.monotonic() < self._until:
            return False
        raise NoBundleError(f"the {what} was not here within {self._within_s:g} s: {_progress_in(reported)}", what)

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
