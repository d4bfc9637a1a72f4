"""One all-gather with other hosts, in a process that may hang, crash or stay silent; nothing here waits for it.

The process runs ``muster.train.parallel.pairwise``, by an interpreter of the host's that has torch.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping
    from typing import Any

_ROOT = str(Path(__file__).resolve().parents[3])
_START = """
import json, sys
sys.path.insert(0, sys.argv[1])
try:
    from muster.train.parallel import pairwise
except ImportError as fault:
    print(json.dumps({"why": f"cannot take part: {type(fault).__name__}: {fault}"[:500]}))
    sys.exit()
del sys.path[0]
pairwise.main()
"""
"""Code of the process. Our folder is on its path only for our own package: torch and the rest are the interpreter's."""
CALLED_OFF = "called off"
CANNOT = "cannot take part"
"""Texts as in ``muster.wire.meeting``, which this package does not import."""
_TEXTS = 500
_MOST_BYTES = 1 << 16


class Meeting:
    """All-gather that runs from its construction on. Raises OSError if it cannot be started.

    ``order``: as ``muster.train.parallel.pairwise`` reads it. ``listen_fd``: of the socket of a group's store, which
    the group's first host holds; None for the others.
    """

    def __init__(
        self, python: str, order: dict[str, Any], listen_fd: int | None, environment: Mapping[str, str]
    ) -> None:
        import subprocess  # noqa: PLC0415  # most starts need none of it, and it costs their time

        self._timeout_s = float(order["timeout_s"])
        self._until = time.monotonic() + self._timeout_s
        self._output = os.memfd_create("said")
        self._complained = os.memfd_create("complained")
        asked = os.memfd_create("asked")
        try:
            os.write(asked, json.dumps({**order, "listen_fd": listen_fd}).encode())
            os.lseek(asked, 0, os.SEEK_SET)
            self._process: subprocess.Popen[bytes] = subprocess.Popen(  # noqa: S603  # our own program, by an interpreter that the host's owner names
                [python, "-I", "-c", _START, _ROOT],
                stdin=asked,
                stdout=self._output,
                stderr=self._complained,
                env=dict(environment),
                pass_fds=() if listen_fd is None else (listen_fd,),
                start_new_session=True,
            )
        except OSError:
            self._close()
            raise
        finally:
            os.close(asked)

    def outcome(self) -> dict[str, Any] | None:
        """Return ``rate_bytes_per_s``, or ``why`` there is none; None while it runs. After its time it is killed."""
        if self._process.poll() is None:
            if time.monotonic() < self._until:
                return None
            self.end()
            return {"why": f"it did not end within {self._timeout_s:g} s"}
        found = self._found()
        self.end()
        return found

    def end(self) -> None:
        """Kill it with all that it started. The wait for its end is short: a process that hangs in a driver may never
        end.
        """
        import contextlib  # noqa: PLC0415  # as above
        import subprocess  # noqa: PLC0415  # as above

        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=1.0)
        self._close()

    def _close(self) -> None:
        for name in ("_output", "_complained"):
            if (descriptor := getattr(self, name)) >= 0:
                os.close(descriptor)
                setattr(self, name, -1)

    def _found(self) -> dict[str, Any]:
        try:
            said = json.loads(os.pread(self._output, _MOST_BYTES, 0))
            rate = said.get("rate_bytes_per_s")
            return {"why": str(said["why"])} if rate is None else {"rate_bytes_per_s": float(rate)}
        except (ValueError, KeyError, TypeError, AttributeError):
            code = self._process.returncode
            ended = f"its process ended by signal {-code}" if code < 0 else f"its process ended with exit code {code}"
            last = self._last_words()
            return {"why": f"{ended}: {last}" if last else ended}

    def _last_words(self) -> str:
        size = os.fstat(self._complained).st_size
        tail = os.pread(self._complained, _MOST_BYTES, max(0, size - _MOST_BYTES))
        return tail.decode("utf-8", "replace").strip().rsplit("\n", 1)[-1][:_TEXTS]
