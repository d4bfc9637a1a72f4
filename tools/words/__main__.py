"""Command ``python -m tools.words [PATH …]``: print each refused word with its place, and fail if there is one.

By default it reads the whole checkout. ``--count`` prints the totals.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from tools.words.findings import ROOT, WORD_RULES, Finding, Report, report_of
from tools.words.glossary import GLOSSARY, Glossary, read_glossary

if TYPE_CHECKING:
    from collections.abc import Sequence

_RULE_TITLES: Final = {
    "phrase": "a phrase that the glossary refuses",
    "name": "a name with a part that the glossary refuses",
    "pronoun": "a pronoun of persons that stands for a thing: name the thing",
    "constant": "a constant whose name has another value elsewhere: give it the name of its own meaning",
}


def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 1 where a refused word was found."""
    report = report_of(ROOT)
    if arguments == ["--count"]:
        _print_totals(report)
        return 0
    found = [one for one in report.findings if not arguments or one.path.startswith(tuple(arguments))]
    glossary = read_glossary(ROOT)
    sys.stdout.write("".join(f"{line_of(one, glossary)}\n" for one in found))
    return 1 if found else 0


def line_of(one: Finding, glossary: Glossary) -> str:
    """Return the finding as a line: place, word, rule, and the glossary's replacement where it has one."""
    instead = {"phrase": glossary.phrases, "name": glossary.parts}.get(one.rule, {}).get(one.key)
    line = f"{one.path}:{one.line}: {one.key}: {_RULE_TITLES[one.rule]} ({GLOSSARY})"
    return f"{line} → {instead}" if instead else line


def _print_totals(report: Report) -> None:
    for rule in WORD_RULES:
        numbers = (f"{area} {report.number(rule, area)}" for area in sorted(report.words))
        sys.stdout.write(f"{rule:9} {'  '.join(numbers)}\n")
    for area in sorted(report.words):
        sys.stdout.write(f"{area}: {report.per_hundred_words(area):.2f} pronouns for things in 100 of its words\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
