"""One query of the GPUs' driver, in a process of its own: a call into a driver that hangs must not hang the caller."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_GPU_CHECK = Path(__file__).with_name("gpu_check.py")
_TO_DIE_S = 0.5


class UnansweredError(Exception):
    """The driver does not answer; the message has the reason."""


def ask(question: str, uuids: Sequence[str], patience_s: float) -> str:
    """Return the output of ``gpu_check`` for these GPUs. Raises UnansweredError."""
    import subprocess  # noqa: PLC0415  # hosts without a driver need none of it, and it costs their time

    from workers.host.supervisor import gpu_check  # noqa: PLC0415  # as above

    command = [sys.executable, "-I", "-S", str(_GPU_CHECK), question, *uuids]
    asked = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)  # noqa: S603  # our own program
    try:
        said, _ = asked.communicate(timeout=patience_s)
    except subprocess.TimeoutExpired:
        asked.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # a process that hangs in the driver may never end
            asked.wait(_TO_DIE_S)
        if asked.stdout is not None:
            asked.stdout.close()
        raise UnansweredError(f"the GPU driver did not answer within {patience_s:.0f} s") from None
    if asked.returncode == gpu_check.NO_LIBRARY:
        raise UnansweredError(f"{gpu_check.LIBRARY} is not there")
    if asked.returncode != 0:
        raise UnansweredError(said.strip() or f"the check of the GPUs ended with code {asked.returncode}")
    return said
