"""Every suite at its smallest size, each in a process of its own, which checks that the benchmarks still work.

A benchmark that hangs or raises is found by the change that broke it, and not by the next measurement. No bar is
judged, so a busy machine changes nothing; a suite is stopped only long after it should have ended, and its size is
bounded by CPU time, which other programs do not lengthen.
"""

import json
import math
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from benchmarks.calibration import sample_ms, slowness_of
from benchmarks.figures import SKIPPED, Figure
from benchmarks.suites import SUITES

LIMIT_S: Final = 20.0
"""Time limit of a suite on two cores of the reference machine that do nothing else."""
LIMIT_CPU_S: Final = 3 * LIMIT_S
"""CPU limit of both cores, and half as much again: on a shared machine, the same work costs more CPU time."""
HANGS_AFTER_S: Final = 240.0
"""Many times ``LIMIT_S``, since the machine may be shared."""
FIXED_KEYS: Final = ("name", "value", "unit", "bar", "better", "holds", "peers")
"""Keys of each row of a result; other programs read them."""


@dataclass(frozen=True, slots=True)
class Tried:
    """Result of one suite. ``fault``: None if it worked. ``skipped``: its messages about parts without hardware."""

    name: str
    seconds: float
    cpu_s: float
    fault: str | None
    skipped: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        return self.fault or "; ".join(self.skipped) or "works"


def run_all(names: Iterable[str] = tuple(SUITES)) -> int:
    """Try the suites in turn and say how each ended. Return the exit code: 1 where any failed."""
    tried = []
    before_ms = sample_ms()
    for name in names:
        tried.append(_try(name, command_of(name)))
        one = tried[-1]
        print(f"{one.name:<12} {one.seconds:6.1f} s, {one.cpu_s:5.1f} s of CPU  {one.words}", flush=True)
    failed = [one.name for one in tried if one.fault is not None]
    print(f"{len(tried)} suites in {sum(one.seconds for one in tried):.0f} s; failed: {', '.join(failed) or 'none'}")
    print(_longest(tried, slowness_of(before_ms, sample_ms())))
    return 1 if failed else 0


def _longest(tried: Iterable[Tried], slowness: float) -> str:
    """Say how long the longest suite would take on the reference machine, where its limit is ``LIMIT_S``."""
    longest = max(tried, key=lambda one: one.seconds)
    return (
        f"The longest, {longest.name}, takes {longest.seconds / slowness:.1f} s of {LIMIT_S:.0f} s on the reference"
        f" machine: this one takes {slowness:.2f} × its CPU time."
    )


def command_of(name: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks", "--smallest", name]


def _try(name: str, command: list[str], hangs_after_s: float = HANGS_AFTER_S) -> Tried:
    """Run one suite. All that it started ends with it, also where it hangs."""
    began_s, began_cpu_s = time.monotonic(), _cpu_of_children_s()
    with subprocess.Popen(  # noqa: S603  # our own module
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        try:
            said, _ = process.communicate(timeout=hangs_after_s)
            fault = None if process.returncode == 0 else f"FAILED with exit code {process.returncode}"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            said, _ = process.communicate()
            fault = f"HANGS: stopped after {hangs_after_s:.0f} s"
    seconds, cpu_s = time.monotonic() - began_s, _cpu_of_children_s() - began_cpu_s
    if fault is None and cpu_s > LIMIT_CPU_S:
        fault = f"TOO LARGE: its smallest size takes {cpu_s:.0f} s of CPU, and {LIMIT_CPU_S:.0f} s are the limit"
    if fault is not None:
        print(said[-6_000:], flush=True)
    return Tried(name, seconds, cpu_s, fault, tuple(line for line in said.splitlines() if line.startswith(SKIPPED)))


def _cpu_of_children_s() -> float:
    """Return the CPU time of all processes that ended and were waited for, and of their children."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def without_bar(figure: Figure) -> Figure:
    """Return the figure without its bar, which is one of the full size."""
    return replace(figure, bar=None)


def require_measured(name: str, figures: list[Figure]) -> None:
    """Raise AssertionError where the suite made no figure, or one that is no number."""
    if not figures:
        raise AssertionError(f"the suite {name} made no figure")
    broken = [figure.name for figure in figures if not math.isfinite(figure.value)]
    if broken:
        raise AssertionError(f"figures of the suite {name} are no numbers: {', '.join(broken)}")


def require_written(path: Path) -> None:
    """Raise AssertionError where the result that was written is not a list of rows with all fixed keys."""
    rows = json.loads(path.read_text(encoding="utf-8"))
    lacking = [row for row in rows if any(key not in row for key in FIXED_KEYS)]
    if not rows or lacking:
        raise AssertionError(f"{path.name} lacks {', '.join(FIXED_KEYS)} in {lacking[:1]}")
