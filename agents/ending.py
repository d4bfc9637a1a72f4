"""The end of a program that an agent started in a session of its own, with all its children."""

import os
import signal
import subprocess
from typing import Final

TERM_S: Final = 5.0
"""Longest time that it may take after each signal."""


def end_with_group(process: "subprocess.Popen[bytes]") -> None:
    """SIGTERM to its group, then SIGKILL; one that has ended gets neither."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, number)
            try:
                process.wait(TERM_S)
            except subprocess.TimeoutExpired:
                continue
