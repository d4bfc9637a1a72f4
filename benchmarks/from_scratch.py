"""Waits of a newcomer: the set-up of a fresh clone with torch and without, again, and all tests in it."""

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.figures import Basis, Figure, Groups
from benchmarks.sizes import Sizes

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True)
class Size:
    """Size of the benchmark. ``is_installed``: into fresh clones, which takes minutes and the network; and all tests
    run in one.

    Otherwise make prints in fresh clones what it would do (``--dry-run``), which shows that the commit has all that it
    reads before anything is installed; the set-up that finds all in place, and a test, run in this checkout.
    """

    is_installed: bool
    tests: str


SIZES: Final = Sizes(
    full=Size(is_installed=True, tests=""),
    smallest=Size(is_installed=False, tests="tests/benchmarks/test_calmest.py"),
)


def measure(size: Size) -> Groups:
    """Measure the commit that is checked out, without uncommitted changes."""
    options = () if size.is_installed else ("--dry-run",)
    with tempfile.TemporaryDirectory(prefix="muster-scratch-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # as a newcomer's own folder is
        whole = _clone(folder / "whole")
        home = whole if size.is_installed else ROOT
        with_torch_s = _make(whole, *options, "setup")
        again_s = _make(home, "setup")
        tests_s = _make(home, "test", f"ARGS={size.tests}")
        without_torch_s = _make(_clone(folder / "lean"), *options, "setup", "TORCH=skip")
    yield [
        Figure("set-up of a fresh clone, with torch", with_torch_s, "s", 120.0, basis=Basis.CLOCK),
        Figure("set-up of a fresh clone, without torch", without_torch_s, "s", 60.0, basis=Basis.CLOCK),
        Figure("set-up again", again_s, "s", 5.0, basis=Basis.CLOCK),
        Figure("all tests", tests_s, "s", 720.0, basis=Basis.BUSY),
    ]


def _clone(target: Path) -> Path:
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(target)], check=True)  # noqa: S603, S607  # the git of the path
    return target


def _make(folder: Path, *targets: str) -> float:
    """Return the seconds of make, with no environment active."""
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    started = time.monotonic()
    command = ["make", *targets]
    ended = subprocess.run(command, cwd=folder, env=environment, check=False, capture_output=True, text=True)  # noqa: S603  # fixed words
    if ended.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{ended.stdout[-8000:]}\n{ended.stderr[-2000:]}")
    return time.monotonic() - started
