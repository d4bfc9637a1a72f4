"""The quick check of a part's GPUs: known sums for a few seconds, in a process that may crash or hang.

The process runs ``muster.bench.quick_check``, by an interpreter of the host's that has torch: never the tenant's.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from workers.host.supervisor.container.containers import has_nvidia
from workers.host.supervisor.preparation import UnreadyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess

    from workers.host.supervisor.order_parts import Preparation

_START = (
    "import sys; sys.path.insert(0, sys.argv[1]); import muster.bench.quick_check as check;"
    " del sys.path[0]; check.main()"
)
_ROOT = str(Path(__file__).resolve().parents[3])
_RESULTS, _COMPLAINED = "quick_check.jsonl", "quick_check.err"
_TO_START_S = 30.0
"""Time to import torch and open the GPUs, in addition to the seconds of computing."""
_MOST_BYTES = 1 << 20


class WrongResultError(UnreadyError):
    """A GPU computed wrong. ``gpu`` with its ``wrong`` sums: name, the exact one, the computed one."""

    def __init__(self, gpu: str, wrong: list[list[object]]) -> None:
        name, golden, measured = wrong[0]
        super().__init__(f"{gpu} computed wrong: {name} gave {measured}, and {golden} is exact")
        self.gpu = gpu
        self.wrong = wrong


class QuickCheck:
    """Check that runs from its construction on. Raises UnreadyError if it cannot be started."""

    def __init__(self, folder: Path, preparation: Preparation, gpus: list[str]) -> None:
        import subprocess  # noqa: PLC0415  # most starts need none of it, and it costs their time

        self._folder = folder
        self._gpus = gpus
        self._deadline_s = preparation.quick_check_s + _TO_START_S
        self._until = time.monotonic() + self._deadline_s
        kind = "cuda" if has_nvidia() and not preparation.is_simulated else "cpu"
        command = [preparation.python, "-I", "-c", _START, _ROOT, kind, f"{preparation.quick_check_s:g}", *gpus]
        visible = ",".join(gpus) if kind == "cuda" else ""
        environment = {"PATH": os.environ.get("PATH", os.defpath), "CUDA_VISIBLE_DEVICES": visible}
        with (folder / _RESULTS).open("wb") as said, (folder / _COMPLAINED).open("wb") as complained:
            try:
                self._process: subprocess.Popen[bytes] = subprocess.Popen(  # noqa: S603  # our own program, by the host's interpreter
                    command, stdin=subprocess.DEVNULL, stdout=said, stderr=complained, env=environment
                )
            except OSError as fault:
                raise UnreadyError(f"the quick check cannot be started by {preparation.python}: {fault}") from fault

    def is_over(self) -> bool:
        """Return whether all GPUs were found right.

        Raises:
            WrongResultError: one computed wrong.
            UnreadyError: it crashed, hangs, or prints no readable result.
        """
        if self._process.poll() is None:
            if time.monotonic() < self._until:
                return False
            self.kill()
            raise UnreadyError(f"the quick check of the GPUs did not end within {self._deadline_s:.0f} s")
        self._require_right(self._lines())
        return True

    def _require_right(self, found: dict[str, list[list[object]]]) -> None:
        for gpu in self._gpus:
            if gpu not in found:
                raise UnreadyError(f"the quick check says nothing of {gpu}: {self._last_words()}")
            if found[gpu]:
                raise WrongResultError(gpu, found[gpu])

    def kill(self) -> None:
        """Kill the process without waiting: one that hangs in the driver may never end."""
        self._process.kill()

    def _lines(self) -> dict[str, list[list[object]]]:
        found: dict[str, list[list[object]]] = {}
        for line in (self._folder / _RESULTS).read_bytes()[:_MOST_BYTES].splitlines():
            try:
                said = json.loads(line)
                if "fault" in said:
                    raise UnreadyError(f"the quick check of the GPUs could not be made: {said['fault']}")
                found[str(said["gpu"])] = [
                    [name, int(golden), int(measured)] for name, golden, measured in said["wrong"]
                ]
            except (ValueError, KeyError, TypeError) as fault:
                raise UnreadyError("the quick check of the GPUs says what cannot be read") from fault
        return found

    def _last_words(self) -> str:
        lines = (self._folder / _COMPLAINED).read_bytes()[-4096:].decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else f"it ended with code {self._process.returncode}"
