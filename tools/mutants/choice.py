"""The seeded choice: packages by their share of decision code, kinds of changes by weight, one change a function.

A change's place in the draw depends on the seed and on the change itself. So an edit of other code leaves the choice as
it is, and what a run found holds at the next commit.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Final

from tools.mutants.mutant import Mutant
from tools.mutants.sites import mutants_of, product_files

WEIGHTS: Final = {
    "comparison": 6,
    "junction": 4,
    "guard": 4,
    "deletion": 4,
    "negation": 3,
    "arithmetic": 3,
    "constant": 2,
    "membership": 1,
    "extreme": 1,
    "flag": 1,
    "default": 1,
}
DECIDES: Final = frozenset({"comparison", "junction", "guard", "negation", "membership", "extreme"})
"""A package's share is counted in these."""
MAX_IN_FILE: Final = 2
DECISIONS: Final = ("health/", "scheduler/", "muster/domain/lifecycle/", "control/", "muster/train/")
"""Health, scheduler, lifecycle, use cases and train: a survivor here is killed by a test, or explained."""
NOT_CHOSEN: Final = ("muster/bench/",)
"""Programs that measure GPUs: no test without one runs them."""


def all_mutants(root: Path, within: tuple[str, ...] = ("",)) -> list[Mutant]:
    """Return every change of the product's code that the operators know. ``within``: in these folders alone."""
    found: list[Mutant] = []
    for path in product_files(root):
        if path.startswith(within) and not path.startswith(NOT_CHOSEN):
            found += mutants_of(path, (root / path).read_text(encoding="utf-8"))
    return found


def choose(mutants: Sequence[Mutant], seed: int, number: int, rejected: Collection[str]) -> list[Mutant]:
    """Return ``number`` changes. A rejected one is skipped: the next of its package's draw takes its place."""
    areas: dict[str, list[Mutant]] = defaultdict(list)
    for mutant in mutants:
        areas[area_of(mutant.path)].append(mutant)
    chosen: list[Mutant] = []
    for area, quota in sorted(_quotas(areas, number).items()):
        chosen += _chosen_in(_drawn(areas[area], seed, area), quota, rejected)
    return chosen


def area_of(path: str) -> str:
    """Return the package of a file; the folders of the largest package count by themselves."""
    parts = path.split("/")
    return "/".join(parts[:2]) if parts[0] == "muster" and len(parts) > 2 else parts[0]


def _quotas(areas: dict[str, list[Mutant]], number: int) -> dict[str, int]:
    """Share out by decisions, the largest remainders first."""
    decisions = {area: sum(one.operator in DECIDES for one in held) for area, held in areas.items()}
    total = sum(decisions.values())
    exact = {area: number * count / total for area, count in decisions.items()}
    quotas = {area: int(share) for area, share in exact.items()}
    left_over = number - sum(quotas.values())
    for area in sorted(exact, key=lambda name: (quotas[name] - exact[name], name))[:left_over]:
        quotas[area] += 1
    return quotas


def _chosen_in(drawn: Iterator[Mutant], quota: int, rejected: Collection[str]) -> list[Mutant]:
    chosen: list[Mutant] = []
    functions: set[tuple[str, str]] = set()
    in_file: Counter[str] = Counter()
    for mutant in drawn:
        if len(chosen) == quota:
            break
        place = (mutant.path, mutant.function)
        if mutant.key in rejected or place in functions or in_file[mutant.path] == MAX_IN_FILE:
            continue
        functions.add(place)
        in_file[mutant.path] += 1
        chosen.append(mutant)
    return chosen


def _drawn(mutants: list[Mutant], seed: int, area: str) -> Iterator[Mutant]:
    """Yield all of a package in the seed's order: first the kind by its weight, then the change by its own number."""
    draw = random.Random(f"{seed} {area}")  # noqa: S311  # repeatable
    by_kind: dict[str, list[Mutant]] = defaultdict(list)
    for mutant in mutants:
        by_kind[mutant.operator].append(mutant)
    for waiting in by_kind.values():
        waiting.sort(key=lambda each: (_number_of(each, seed), each.path))
    kinds = sorted(by_kind)
    while kinds:
        kind = draw.choices(kinds, [WEIGHTS[name] for name in kinds])[0]
        waiting = by_kind[kind]
        yield waiting.pop()
        if not waiting:
            kinds.remove(kind)


def _number_of(mutant: Mutant, seed: int) -> str:
    return hashlib.sha256(f"{seed} {mutant.key}".encode()).hexdigest()
