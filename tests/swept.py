"""Folders for the servers of a test. Nothing of them is left after the process that made them, however it ended."""

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

# Runs next to pytest, sees the end of its input when pytest ends in whatever way, lets the servers stop and removes
# their folder: after a kill -9 nothing is left.
JANITOR: Final = """
import pathlib, shutil, sys, time
folder = pathlib.Path(sys.argv[1])
sys.stdin.read()
deadline = time.monotonic() + 60
while list(folder.glob("*/cluster/postmaster.pid")) and time.monotonic() < deadline:
    time.sleep(0.02)
deadline = time.monotonic() + 60
while folder.exists() and time.monotonic() < deadline:
    shutil.rmtree(folder, ignore_errors=True)
    time.sleep(0.02)
"""


@contextlib.contextmanager
def swept_folder() -> Iterator[Path]:
    """Yield a folder of a short name that goes with this process; the servers' unprivileged user may traverse it."""
    folder = Path(tempfile.mkdtemp(prefix="muster-test-"))
    folder.chmod(0o711)
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", JANITOR, folder], stdin=subprocess.PIPE, start_new_session=True
    ) as janitor:
        yield folder
        # Leaving the block closes its input and waits for it.
        assert janitor.poll() is None
