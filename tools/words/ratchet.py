"""The baseline of refused words: numbers that may only fall, until the file is empty and goes.

Counts are kept by rule, area (source, tests, pages) and word, never by file: a file that moves or is split changes no
number. `make words ARGS=--lower` stores lower counts, and settles two branches that lowered the same word.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from tools.words.findings import Finding

BASELINE: Final = "tools/words/baseline.json"
Counts = dict[str, int]


def counts_of(findings: Iterable[Finding]) -> Counts:
    """Return how often each word is found, by ``rule area word``."""
    return dict(sorted(Counter(f"{one.rule} {one.area} {one.key}" for one in findings).items()))


def read_baseline(root: Path) -> Counts:
    """Return the counts that are allowed; none at all without the file."""
    path = root / BASELINE
    found: Counts = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def risen(counts: Mapping[str, int], baseline: Mapping[str, int]) -> dict[str, int]:
    """Return by how much each count is above the baseline, where it is."""
    return {key: number - baseline.get(key, 0) for key, number in counts.items() if number > baseline.get(key, 0)}


def lower(root: Path, counts: Mapping[str, int]) -> int:
    """Store the counts where they have fallen, and return by how many.

    A word that reached zero stays in the file with zero. A word that the file does not have begins at its count.
    """
    baseline = read_baseline(root)
    known = {_without_area(key) for key in baseline}
    lowered = {
        key: min(counts.get(key, 0), baseline.get(key, 0) if _without_area(key) in known else counts[key])
        for key in sorted({*counts, *baseline})
    }
    (root / BASELINE).write_text(json.dumps(lowered, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return sum(baseline.values()) - sum(lowered.values())


def _without_area(key: str) -> tuple[str, str]:
    rule, _, word = key.split(" ", 2)
    return rule, word
