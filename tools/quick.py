"""`make quick`: lint, types, contracts and the tests that a change can reach, within a minute.

The change is what differs from ``BASE`` (HEAD unless named), uncommitted and new files among it. Tests that failed last
run first, then the nearest. At the end stands what was left out, how to run it, and what no import shows.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tools.changed_files import changed_files, changes_imports
from tools.git import GitError
from tools.quick_plan import LeftOut, Plan, last_failed, plan_tests
from tools.quick_stages import Ended, Outcome, TypeCheck, print_ends, run_program, run_tests
from tools.reach_rules import CHANGES_EVERYTHING
from tools.reachable_tests import reachable_tests
from tools.test_durations import UNKNOWN as UNKNOWN_FILE
from tools.test_durations import read_durations
from tools.typical_changes import TYPICAL_CHANGES

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT: Final = Path(__file__).resolve().parent.parent
BUDGET_S: Final = 60.0
ENDING_S: Final = 8.0
"""Part of the budget for servers to stop and results to be printed."""
FILLED: Final = 0.55
"""Part of the processors' time that is planned: servers start, modules are imported, types are checked meanwhile."""
MAX_WORKERS: Final = 8
LEFT_OUT: Final = ".artefacts/quick-left-out.txt"
SHOWN: Final = 8
UNKNOWN: Final = (
    "Not known: imports of names that are computed, and processes or files that tools/reach_rules.py does not list."
)


def main(words: list[str] | None = None) -> int:
    """Return 0 where nothing that ran failed."""
    began = time.monotonic()
    given = _parser().parse_args(words)
    try:
        changed = given.changed or _typical(given.typical) or changed_files(ROOT, given.base)
    except GitError as error:
        sys.stderr.write(f"make quick: git cannot compare with {given.base}: {error}; give BASE=<revision>.\n")
        return 2
    if not changed:
        sys.stdout.write(f"make quick: nothing differs from {given.base}; BASE=<revision> names another one.\n")
        return 0
    ends_at = began + given.budget * given.patience
    plan = planned(changed, budget_s=given.budget, workers=given.workers)
    _print_change(changed, plan)
    if given.list:
        _print_left_out(plan, ())
        return 0
    has_python = any(path.endswith(".py") or path == "pyproject.toml" for path in changed)
    types = TypeCheck(ROOT) if has_python else None
    ends = [*_short_stages(changed, given.base)]
    tests = run_tests(ROOT, plan, workers=given.workers, deadline=ends_at - ENDING_S)
    ends.append(types.ended(ends_at) if types else Ended("types", Outcome.PASSED, "no Python changed"))
    print_ends([*ends, tests.ended])
    _print_left_out(plan, tests.unstarted)
    outcomes = {one.outcome for one in (*ends, tests.ended)}
    failed = Outcome.FAILED in outcomes
    word = "FAILED" if failed else "passed as far as it ran," if Outcome.LEFT_OUT in outcomes else "passed"
    sys.stdout.write(f"make quick: {word} after {time.monotonic() - began:.0f} s\n")
    return int(failed)


def planned(changed: Sequence[str], *, budget_s: float, workers: int) -> Plan:
    """Return the tests that fit into a budget on a quiet machine."""
    usable_s = max(0.0, budget_s - ENDING_S) * FILLED
    return plan_tests(
        reachable_tests(ROOT, changed),
        read_durations(ROOT),
        last_failed(ROOT),
        longest_s=usable_s,
        capacity_s=usable_s * workers,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.quick", description=__doc__)
    parser.add_argument("--base", default="HEAD", help="the revision that the change is compared with")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds that all may take")
    parser.add_argument(
        "--patience", type=float, default=1.0, help="multiplies the time, not the tests: a busy machine"
    )
    parser.add_argument("--workers", type=int, default=min(MAX_WORKERS, os.cpu_count() or 1), help="processes of tests")
    parser.add_argument("--changed", nargs="+", metavar="FILE", help="take these files as the change")
    parser.add_argument("--typical", choices=sorted(TYPICAL_CHANGES), help="take a typical change, for measurements")
    parser.add_argument("--list", action="store_true", help="print what would run, and run nothing")
    return parser


def _typical(name: str | None) -> list[str]:
    return list(TYPICAL_CHANGES[name].files) if name else []


def _short_stages(changed: Sequence[str], base: str) -> list[Ended]:
    ends = [
        run_program(ROOT, "lint", "ruff", "check", "--quiet"),
        run_program(ROOT, "format", "ruff", "format", "--check", "--quiet"),
    ]
    if changes_imports(ROOT, base, changed):
        return [*ends, run_program(ROOT, "contracts", "lint-imports")]
    return [*ends, Ended("contracts", Outcome.PASSED, "no import changed")]


def _print_change(changed: Sequence[str], plan: Plan) -> None:
    sys.stdout.write(
        f"make quick: {len(changed)} changed files; {plan.tests} tests of {plan.files} files are asked for, about"
        f" {plan.seconds:.0f} s of one processor\n"
    )
    for path in set(CHANGES_EVERYTHING).intersection(changed):
        sys.stdout.write(f"{path} can change any test: `make test` runs them all.\n")
    sys.stdout.flush()


def _print_left_out(plan: Plan, unstarted: Sequence[str]) -> None:
    """Say what is reached and did not run, and write its names where pytest can read them."""
    turns = [_unstarted(name) for name in unstarted]
    left = [*plan.left_out, *turns]
    if not left:
        sys.stdout.write(f"Left out: nothing that the change is known to reach. {UNKNOWN}\n")
        return
    output = ROOT / LEFT_OUT
    output.parent.mkdir(exist_ok=True)
    output.write_text("".join(f"{one.node_id}\n" for one in left), encoding="utf-8")
    tests = sum(one.tests for one in left)
    sys.stdout.write(
        f"Left out: {tests} tests of {len({one.path for one in left})} files that the change can reach,"
        f" {len(turns)} of these because their turn did not come. The nearest:\n"
    )
    for one in left[:SHOWN]:
        sys.stdout.write(f"  {one.node_id} ({one.tests} tests, about {one.seconds:.0f} s)\n")
    sys.stdout.write(f"To run them: make test ARGS=@{LEFT_OUT}\n{UNKNOWN}\n")


def _unstarted(node_id: str) -> LeftOut:
    """Return a test whose turn did not come, or a whole file."""
    path, _, test = node_id.partition("::")
    known = read_durations(ROOT).get(path, UNKNOWN_FILE)
    return (
        LeftOut(path, test, 1, known.slow.get(test, 0.0)) if test else LeftOut(path, None, known.tests, known.seconds)
    )


if __name__ == "__main__":
    sys.exit(main())
