"""Command ``python -m tools.mutants``: plant one-line changes, run their nearest tests, and compare with before."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import Final

from benchmarks.calibration import sample_ms
from benchmarks.figures import show
from benchmarks.runs import write
from tools.git import git
from tools.mutants.campaign import Campaign
from tools.mutants.mutant import Mutant
from tools.mutants.placing import Checkout
from tools.mutants.records import (
    BEFORE,
    Choice,
    draw_decisions,
    read_choice,
    read_results,
    reject,
    write_choice,
    write_results,
)
from tools.mutants.report import figures, lost, show_one
from tools.mutants.trial import CPU_S, TrialResult

ROOT: Final = Path(__file__).resolve().parents[2]
DETAILS: Final = ROOT / ".artefacts" / "mutants.json"


def main(words: list[str] | None = None) -> int:
    """Return 0 where nothing that was caught before is missed now."""
    given = _parser().parse_args(words)
    for number in (signal.SIGINT, signal.SIGTERM):
        # In a script's background SIGINT is ignored, and the end by SIGTERM would leave the copy of the checkout.
        signal.signal(number, signal.default_int_handler)
    if given.reject:
        write_choice(given.tree, reject(given.tree, read_choice(given.tree, None, None), dict(given.reject)))
    choice = (draw_decisions if given.decisions else read_choice)(given.tree, given.seed, given.number)
    if given.keep and not given.decisions:
        write_choice(given.tree, choice)
    mutants = [one for one in choice.mutants if not given.only or one.key in given.only]
    if given.list:
        return _list(given.tree, mutants)
    before = read_results(BEFORE)
    now = _run(given, choice, mutants, before)
    if given.before:
        before = read_results(BEFORE)
    is_stored = not given.decisions and len(mutants) == len(choice.mutants)
    is_as_before = _end(mutants, before, now, is_stored=is_stored) == 0
    return 0 if is_as_before and not (given.decisions and _survivors(mutants, now)) else 1


def _survivors(mutants: list[Mutant], now: dict[str, TrialResult]) -> int:
    """Print each change that no test caught: a test kills it, or ``--reject KEY WHY`` explains it."""
    survived = [one for one in mutants if not now[one.key].is_caught]
    for mutant in survived:
        sys.stdout.write(f"SURVIVED {mutant.key} {mutant.path}::{mutant.function}: add a test, or --reject it\n")
    return len(survived)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__)
    parser.add_argument("--seed", type=int, help="of the choice; another than the stored one chooses again")
    parser.add_argument("--number", type=int, help="how many changes are chosen")
    parser.add_argument("--decisions", action="store_true", help="choose in the code that decides; none may survive")
    parser.add_argument("--only", nargs="+", metavar="KEY", help="try these alone")
    parser.add_argument("--tests", nargs="+", default=[], metavar="FILE", help="run these instead of the nearest")
    parser.add_argument("--jobs", type=int, default=1, help="how many are tried at once, at most 2")
    parser.add_argument("--cpu", type=float, default=CPU_S, metavar="S", help="CPU seconds for the tests of a change")
    parser.add_argument("--tree", type=Path, default=ROOT, help="another checkout whose code and tests are tried")
    parser.add_argument("--list", action="store_true", help="print where each change stands, and try none")
    parser.add_argument("--keep", action="store_true", help="store the choice in chosen.json")
    parser.add_argument("--before", action="store_true", help="store the results in before.json, to compare with")
    parser.add_argument("--resume", action="store_true", help="keep the results of the last run, and try the others")
    parser.add_argument(
        "--reject",
        nargs=2,
        action="append",
        metavar=("KEY", "WHY"),
        help="store why a change proves nothing, and choose another",
    )
    return parser


def _list(tree: Path, mutants: list[Mutant]) -> int:
    checkout = Checkout(tree)
    for mutant in mutants:
        placed = checkout.place(mutant)
        where = "not placed" if placed is None else f"{placed.path}:{placed.number}"
        sys.stdout.write(f"{mutant.key} {where} {mutant.function} {mutant.operator}\n")
        sys.stdout.write(f"    - {mutant.line}\n    + {mutant.becomes}\n")
    return 0


def _run(
    given: argparse.Namespace, choice: Choice, mutants: list[Mutant], before: dict[str, TrialResult]
) -> dict[str, TrialResult]:
    """Try the mutants, and write the files after each one: a run that is stopped keeps its results."""
    known = read_results(DETAILS) if given.resume else {}
    now = {one.key: known[one.key] for one in mutants if one.key in known}
    commit = _commit(given.tree)

    def note(mutant: Mutant, result: TrialResult) -> None:
        now[mutant.key] = result
        show_one(mutant, result, len(now), len(mutants))
        if not given.only:
            write_results(DETAILS, commit, mutants, now)
        if given.before:
            write_results(BEFORE, commit, choice.mutants, {**before, **now})

    waiting = [one for one in mutants if one.key not in now]
    if waiting:
        Campaign(given.tree, before, given.jobs, cpu_s=given.cpu, tests=given.tests).run(waiting, note)
    return now


def _end(mutants: list[Mutant], before: dict[str, TrialResult], now: dict[str, TrialResult], *, is_stored: bool) -> int:
    """Print the figures. ``is_stored``: the whole stored choice was tried, so that its figures are kept."""
    found = figures(mutants, before, now)
    show(found)
    for mutant in lost(mutants, before, now):
        caught = before[mutant.key].by
        sys.stdout.write(f"LOST {mutant.key} {mutant.path}::{mutant.function}: before, {caught} caught it\n")
    if is_stored:
        write("mutants", found, [sample_ms()])
    return 0 if all(figure.holds for figure in found) else 1


def _commit(tree: Path) -> str:
    return git(tree, "rev-parse", "--short=12", "HEAD").strip()


if __name__ == "__main__":
    sys.exit(main())
