"""Durations of test files on a quiet machine, recorded by runs of all tests in ``tests/durations.json``.

`tools.record_durations` measures each test. On a busy machine a test waits for its turn, so that its wall time says
little: a test counts with the processor time of its process and its children, or with its wall time divided by the
slowdown of that run where that is more, for a test that waits for timers.

``python -m tools.test_durations`` (``make durations``) takes over what the last whole run of ``make test`` recorded, if
that run passed: a test that failed or was left out would be stored with a wrong duration.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ROOT: Final = Path(__file__).resolve().parent.parent
STORED: Final = Path("tests/durations.json")
RECORDED: Final = Path(".artefacts/durations")
"""Folder of the last whole run: a file a process of pytest, each line a test: its id, wall, own and children's
processor seconds.
"""
RECORDED_PARTIAL: Final = Path(".artefacts/partial-durations")
"""Folder of the last run of some of the tests, with the same files."""
OF_RUN: Final = "run.json"
"""File in either folder: the record of the run itself, which exists once the run has ended."""
SLOW_S: Final = 2.0
"""Duration from which a test stands by its own name, so that its file can be run without it."""
UNKNOWN_TEST_S: Final = 0.3
UNKNOWN_FILE_TESTS: Final = 8
PROCESSORS: Final = os.cpu_count() or 1
BUSY_TEST_S: Final = 0.05
"""A test that uses more processor time than this, all of it its own, shows how much slower the machine was."""


@dataclass(frozen=True, slots=True)
class FileDuration:
    """Duration of a file. ``slow``: seconds of each test from ``SLOW_S`` on, by the rest of its id; part of
    ``seconds``.
    """

    tests: int
    seconds: float
    slow: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Measured:
    """One test of a run."""

    test: str
    wall_s: float
    own_s: float
    children_s: float


UNKNOWN: Final = FileDuration(UNKNOWN_FILE_TESTS, UNKNOWN_FILE_TESTS * UNKNOWN_TEST_S, {})
"""Duration of a file that no run has recorded yet."""


def read_durations(root: Path = ROOT) -> dict[str, FileDuration]:
    """Return what is stored, by test file. Without a readable file nothing is known."""
    try:
        held = json.loads((root / STORED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {path: FileDuration(tests, seconds, slow) for path, (tests, seconds, slow) in held.items()}


def write_durations(root: Path, durations: Mapping[str, FileDuration]) -> None:
    """Write a line a file, sorted, so that a change of one file is a change of one line."""
    lines = [
        f"{json.dumps(path)}: {json.dumps([one.tests, one.seconds, dict(sorted(one.slow.items()))])}"
        for path, one in sorted(durations.items())
    ]
    (root / STORED).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def measured_in(folder: Path) -> list[Measured]:
    """Return the tests that a run recorded, from all its processes. A line cut short by an end is left out."""
    found: list[Measured] = []
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                found.append(Measured(*json.loads(line)))
            except (ValueError, TypeError):
                continue
    return found


def durations_of(measured: Iterable[Measured]) -> dict[str, FileDuration]:
    """Return the sums by file, in seconds of a quiet machine."""
    held = list(measured)
    slowdown = slowdown_of(held)
    seconds: dict[str, dict[str, float]] = {}
    for one in held:
        path, _, name = one.test.partition("::")
        # A server of the session that ends with this test brings the processor time of all its tests: more than fits.
        used_s = min(one.own_s + one.children_s, one.wall_s * PROCESSORS)
        seconds.setdefault(path, {})[name] = max(used_s, one.wall_s / slowdown)
    return {
        path: FileDuration(
            tests=len(tests),
            seconds=round(sum(tests.values()), 1),
            slow={name: round(taken, 1) for name, taken in tests.items() if taken >= SLOW_S},
        )
        for path, tests in seconds.items()
    }


def slowdown_of(measured: Iterable[Measured]) -> float:
    """Return the median of wall time over processor time, of tests that compute by themselves. At least 1."""
    ratios = [one.wall_s / one.own_s for one in measured if one.own_s >= BUSY_TEST_S and one.children_s == 0.0]
    return max(1.0, median(ratios)) if ratios else 1.0


def merged(
    root: Path, stored: Mapping[str, FileDuration], fresh: Mapping[str, FileDuration]
) -> dict[str, FileDuration]:
    """Return what is stored with what a run found, without files that no longer exist."""
    return {path: one for path, one in {**stored, **fresh}.items() if (root / path).is_file()}


def unfit(folder: Path) -> str | None:
    """Return why the durations of the run must not be stored; None where all its tests ran and passed."""
    try:
        run = json.loads((folder / OF_RUN).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return "holds no run that has ended"
    if not run["asks_for_all"]:
        return "holds a run of some of the tests only"
    if run["exit_status"] != 0:
        ends = ", ".join(f"{number} {outcome}" for outcome, number in run["tests"].items())
        return f"holds a run that did not pass (exit status {run['exit_status']}: {ends or 'no test ran'})"
    return None


def main() -> int:
    """Take the last run's durations over into the repository's file, unless it was partial or did not pass."""
    recorded = ROOT / RECORDED if len(sys.argv) == 1 else Path(sys.argv[1])
    why = unfit(recorded)
    if why is not None:
        sys.stderr.write(
            f"make durations: {recorded} {why}; {STORED} stays as it is. Run `make test` without ARGS, until it passes,"
            " and then `make durations`.\n"
        )
        return 1
    measured = measured_in(recorded)
    fresh = durations_of(measured)
    write_durations(ROOT, merged(ROOT, read_durations(), fresh))
    sys.stdout.write(
        f"{STORED}: {len(measured)} tests of {len(fresh)} files, from a run {slowdown_of(measured):.1f} x slower than"
        " a quiet machine; commit it\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
