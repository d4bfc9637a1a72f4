"""The table of a run's mutants, and its figures with their bars."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence

from benchmarks.figures import Basis, Figure
from tools.mutants.mutant import Mutant
from tools.mutants.trial import TrialResult


def show_one(mutant: Mutant, result: TrialResult, number: int, total: int) -> None:
    """Print one row: the change, its outcome, and the test that failed."""
    cut = ", budget spent" if result.is_cut_short else ""
    by = f"  {result.by}: {result.error}" if result.by or result.error else ""
    sys.stdout.write(
        f"{number:>3}/{total} {result.outcome:<10} {result.cpu_s:5.1f} s {result.num_tests:>4} tests{cut}  "
        f"{mutant.key} {mutant.path}::{mutant.function}  {mutant.operator}\n"
        f"        - {mutant.line}\n        + {mutant.becomes}\n{'' if not by else f'      {by}'.rstrip() + chr(10)}"
    )
    sys.stdout.flush()


def lost(mutants: Sequence[Mutant], before: Mapping[str, TrialResult], now: Mapping[str, TrialResult]) -> list[Mutant]:
    """Return the mutants that were caught before and are missed now. One without a place is not among them."""
    return [
        one
        for one in mutants
        if one.key in before and before[one.key].is_caught and one.key in now
        if not now[one.key].is_caught and now[one.key].outcome != "not placed"
    ]


def figures(
    mutants: Sequence[Mutant], before: Mapping[str, TrialResult], now: Mapping[str, TrialResult]
) -> list[Figure]:
    """Return the share that is caught, the number lost since before, and the number that have no place any more."""
    outcomes = Counter(now[one.key].outcome for one in mutants)
    placed = len(mutants) - outcomes["not placed"]
    compared = [one for one in mutants if one.key in before]
    caught_before = sum(before[one.key].is_caught for one in compared)
    peers = {outcome: float(count) for outcome, count in sorted(outcomes.items())}
    peers["CPU s"] = round(sum(now[one.key].cpu_s for one in mutants), 1)
    caught = sum(now[one.key].is_caught for one in mutants)
    bar = caught_before / len(compared) if compared else None
    return [
        Figure(
            "one-line changes: caught by tests",
            caught / max(1, placed),
            "of all",
            bar,
            "higher",
            peers,
            basis=Basis.COUNT,
        ),
        Figure(
            "one-line changes: caught before, not now",
            len(lost(mutants, before, now)),
            "",
            0.0 if compared else None,
            peers={"caught before": float(caught_before), "compared": float(len(compared))},
            basis=Basis.COUNT,
        ),
        Figure("one-line changes: without a place", outcomes["not placed"], "", 0.0, basis=Basis.COUNT),
    ]
