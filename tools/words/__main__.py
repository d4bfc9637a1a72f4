"""Command ``python -m tools.words``: fail if a refused word is more frequent than the baseline allows.

``--list [PATH …]`` prints each occurrence, by default of the whole checkout.
``--lower`` stores numbers that have fallen. ``--count`` prints the totals.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Final

from tools.words.findings import ROOT, WORD_RULES, Finding, Report, report_of
from tools.words.glossary import GLOSSARY, read_glossary
from tools.words.ratchet import BASELINE, counts_of, lower, read_baseline, risen

if TYPE_CHECKING:
    from collections.abc import Iterable

_MOST_SHOWN: Final = 40
_RULE_TITLES: Final = {
    "phrase": "a phrase that the glossary refuses",
    "name": "a name with a part that the glossary refuses",
    "pronoun": "a pronoun of persons that stands for a thing: name the thing",
    "constant": "a constant whose name has another value elsewhere: give it the name of its own meaning",
}


def main(arguments: list[str]) -> int:
    """Return the exit code: 1 where a number is above the baseline."""
    report = report_of(ROOT)
    if arguments[:1] == ["--list"]:
        _print(one for one in report.findings if not arguments[1:] or one.path.startswith(tuple(arguments[1:])))
        return 0
    if arguments == ["--count"]:
        _print_totals(report)
        return 0
    counts = counts_of(report.findings)
    if arguments == ["--lower"]:
        sys.stdout.write(f"{BASELINE}: {lower(ROOT, counts)} fewer\n")
        return 0
    above = risen(counts, read_baseline(ROOT))
    if above:
        _print_risen(report, above)
    return 1 if above else 0


def _print(findings: Iterable[Finding]) -> None:
    instead = read_glossary(ROOT)
    hints = {"phrase": instead.phrases, "name": instead.parts}
    for one in findings:
        hint = hints.get(one.rule, {}).get(one.key)
        sys.stdout.write(f"{one.path}:{one.line}: {one.rule}: {one.key}{f' → {hint}' if hint else ''}\n")


def _print_totals(report: Report) -> None:
    for rule in WORD_RULES:
        areas = {
            area: sum(1 for one in report.findings if (one.rule, one.area) == (rule, area)) for area in report.words
        }
        sys.stdout.write(f"{rule:9} {'  '.join(f'{area} {number}' for area, number in sorted(areas.items()))}\n")
    for area in sorted(report.words):
        sys.stdout.write(f"{area}: {report.per_hundred_words(area):.2f} pronouns for things in 100 of its words\n")


def _print_risen(report: Report, above: dict[str, int]) -> None:
    changed = _changed_files()
    for key, more in above.items():
        rule, area, word = key.split(" ", 2)
        places = [one for one in report.findings if (one.rule, one.area, one.key) == (rule, area, word)]
        near = [one for one in places if one.path in changed] or places
        sys.stderr.write(f"{word}: {more} more in {area} than {BASELINE} allows: {_RULE_TITLES[rule]} ({GLOSSARY})\n")
        for one in near[:_MOST_SHOWN]:
            sys.stderr.write(f"    {one.path}:{one.line}\n")


def _changed_files() -> frozenset[str]:
    """Return the files that differ from the commit that stored the baseline last."""
    stored = _git("log", "-1", "--format=%H", "--", BASELINE).strip()
    return frozenset(_git("diff", "--name-only", stored or "HEAD").splitlines())


def _git(*words: str) -> str:
    command = ["git", *words]
    return subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
