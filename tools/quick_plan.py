"""The choice of tests for `make quick`: tests that failed last, then tests that the change reaches, nearest first."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tools.test_durations import UNKNOWN, FileDuration

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from tools.reachable_tests import Reach

LAST_FAILED: Final = ".pytest_cache/v/cache/lastfailed"
MAX_FAILED: Final = 20
"""Limit on repeated failures: more mean a fault for all tests, which the nearest ones show as well."""
NEAR: Final = 1
"""Distance up to which a test is the change's own: its slow tests run too, if there is time for them."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Tests of one file that are reached and do not run. ``test``: the one that is left out of a file that runs."""

    path: str
    test: str | None
    tests: int
    seconds: float

    @property
    def node_id(self) -> str:
        """The name by which pytest runs it."""
        return self.path if self.test is None else f"{self.path}::{self.test}"


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan of a run. ``requested``: arguments of pytest in the order of the run; ``seconds``: expected, of one
    processor.
    """

    requested: tuple[str, ...]
    files: int
    tests: int
    seconds: float
    left_out: tuple[LeftOut, ...]


def plan_tests(
    reached: Mapping[str, Reach],
    durations: Mapping[str, FileDuration],
    failed: Iterable[str],
    *,
    longest_s: float,
    capacity_s: float,
) -> Plan:
    """Return what to run. ``longest_s`` bounds one file, which one process runs; ``capacity_s`` bounds all."""
    asked = list(failed)
    files = tests = 0
    spent = 0.0
    left_out: list[LeftOut] = []
    for path in sorted(reached, key=lambda path: (reached[path].distance, _seconds(durations, path), path)):
        known = durations.get(path, UNKNOWN)
        without_slow = known.seconds - sum(known.slow.values())
        left_s = min(longest_s, capacity_s - spent)
        is_near = reached[path].distance <= NEAR
        if known.seconds <= left_s and (is_near or not known.slow):
            kept, taken = known.tests, known.seconds
            dropped: list[LeftOut] = []
        elif without_slow <= left_s and len(known.slow) < known.tests:
            kept, taken = known.tests - len(known.slow), without_slow
            dropped = [LeftOut(path, name, 1, seconds) for name, seconds in known.slow.items()]
        else:
            left_out.append(LeftOut(path, None, known.tests, known.seconds))
            continue
        asked.append(path)
        left_out.extend(dropped)
        files, tests, spent = files + 1, tests + kept, spent + taken
    return Plan(tuple(asked), files, tests, spent, tuple(left_out))


def last_failed(root: Path) -> list[str]:
    """Return the tests that failed when they last ran, if they are few and their files are still there."""
    try:
        held = json.loads((root / LAST_FAILED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    known = sorted(name for name in held if (root / name.partition("::")[0]).is_file())
    return known if len(known) <= MAX_FAILED else []


def _seconds(durations: Mapping[str, FileDuration], path: str) -> float:
    return durations.get(path, UNKNOWN).seconds
