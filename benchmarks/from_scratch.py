"""What a newcomer waits for: the set-up of a fresh clone with torch and without, again, and all tests in it."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.figures import Figure

ROOT = Path(__file__).parent.parent


def measure() -> list[Figure]:
    """Of the commit that is checked out: what is not committed is not measured."""
    with tempfile.TemporaryDirectory(prefix="muster-scratch-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # as a newcomer's own folder is
        with_torch_s = _make(_clone(folder / "whole"), "setup")
        again_s = _make(folder / "whole", "setup")
        tests_s = _make(folder / "whole", "test")
        without_torch_s = _make(_clone(folder / "lean"), "setup", "TORCH=skip")
    return [
        Figure("set-up of a fresh clone, with torch", with_torch_s, "s", 120.0),
        Figure("set-up of a fresh clone, without torch", without_torch_s, "s", 60.0),
        Figure("set-up again", again_s, "s", 5.0),
        Figure("all tests", tests_s, "s", 360.0),
    ]


def _clone(target: Path) -> Path:
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(target)], check=True)  # noqa: S603, S607  # the git of the path
    return target


def _make(folder: Path, *targets: str) -> float:
    """Seconds, with no environment active."""
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    started = time.monotonic()
    command = ["make", *targets]
    ended = subprocess.run(command, cwd=folder, env=environment, check=False, capture_output=True, text=True)  # noqa: S603  # fixed words
    if ended.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{ended.stdout[-8000:]}\n{ended.stderr[-2000:]}")
    return time.monotonic() - started
