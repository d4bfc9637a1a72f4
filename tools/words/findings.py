"""Every refused word of the checkout, with its place."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from tools.git import listed_files
from tools.words.constants import Constant, constants_of, with_two_values
from tools.words.glossary import GLOSSARY, Glossary, read_glossary
from tools.words.persons import normalised, num_words, pronouns_for_things
from tools.words.python_texts import python_definitions
from tools.words.texts import COMMENTED, File

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).resolve().parents[2]
EXEMPT: Final = "tools/words/exempt.txt"
WORD_RULES: Final = ("phrase", "name", "pronoun", "constant")
_SUFFIXES: Final = frozenset({".py", ".md", ".html", ".js", *COMMENTED})
_WITHOUT_SUFFIX: Final = frozenset({"Makefile", ".importlinter", ".ci/run", ".githooks/commit-msg"})
_NAMED_IN: Final = frozenset({".html", ".js"})
_LEFT_OUT: Final = ("console/static/vendor/", "migrations/versions/", "tests/tools/words/")
"""Folders that are not ours, record the past, or hold the lint's own examples."""
_SKIPPED: Final = frozenset({GLOSSARY, "docs/openapi.json", "console/package-lock.json", "CHANGELOG.md"})
_PART: Final = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")
_SNAKE: Final = re.compile(r"\b[a-z]+(?:_[a-z]+)+\b")
_KEPT_NAMES: Final = frozenset({"HELD"})


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One refused word at its place. ``key``: the phrase, the part of a name, the pronoun or the constant."""

    rule: str
    area: str
    key: str
    path: str
    line: int


@dataclass(slots=True)
class Report:
    """All findings. ``words``: how many words of text each area has."""

    findings: list[Finding] = field(default_factory=list)
    words: dict[str, int] = field(default_factory=dict)

    def number(self, rule: str, area: str) -> int:
        """Return how many findings the rule has in the area."""
        return sum(1 for one in self.findings if (one.rule, one.area) == (rule, area))

    def per_hundred_words(self, area: str) -> float:
        """Return the pronouns for things among a hundred words of the area."""
        return 100 * self.number("pronoun", area) / self.words[area] if self.words.get(area) else 0.0


def report_of(root: Path) -> Report:
    """Return all findings of the files that git knows or would add.

    Raises:
        SyntaxError: a file is no Python.
        GitError: the folder is no checkout.
    """
    glossary, exempt = read_glossary(root), exempt_sentences(root)
    report, constants = Report(), list[Constant]()
    for path in _files(root):
        file = File(path, (root / path).read_text(encoding="utf-8"))
        report.findings.extend(_of_texts(file, glossary, exempt, report.words))
        report.findings.extend(_of_names(file, glossary))
        if path.endswith(".py") and file.area == "source":
            constants.extend(constants_of(path, file.content))
    report.findings.extend(
        Finding("constant", "source", one.name, one.path, one.line) for one in with_two_values(constants)
    )
    report.findings.sort()
    return report


def exempt_sentences(root: Path) -> frozenset[str]:
    """Return the sentences in which a pronoun stands for a person unseen by the rule, and texts of other programs."""
    lines = (root / EXEMPT).read_text(encoding="utf-8").splitlines()
    return frozenset(normalised(line) for line in lines if line.strip() and not line.startswith("# "))


def _files(root: Path) -> Iterator[str]:
    for name in listed_files(root):
        pure = PurePosixPath(name)
        is_ours = name not in _SKIPPED and not name.startswith(_LEFT_OUT)
        if is_ours and (pure.suffix in _SUFFIXES or name in _WITHOUT_SUFFIX):
            yield name


def _of_texts(file: File, glossary: Glossary, exempt: frozenset[str], words: dict[str, int]) -> Iterator[Finding]:
    for text in file.texts():
        words[file.area] = words.get(file.area, 0) + num_words(text.text)
        if normalised(text.text) in exempt:
            continue
        for found in glossary.pattern.finditer(text.text):
            key = normalised(found.group()).lower()
            yield Finding("phrase", file.area, key, file.path, text.line + text.text.count("\n", 0, found.start()))
        for start, pronoun in pronouns_for_things(text.text, exempt):
            yield Finding("pronoun", file.area, pronoun, file.path, text.line + text.text.count("\n", 0, start))


def _of_names(file: File, glossary: Glossary) -> Iterator[Finding]:
    for line, name in _names(file):
        if name not in _KEPT_NAMES:
            for part in dict.fromkeys(part.lower() for part in _PART.findall(name)):
                if part in glossary.parts:
                    yield Finding("name", file.area, part, file.path, line)


def _names(file: File) -> Iterator[tuple[int, str]]:
    pure = PurePosixPath(file.path)
    if pure.suffix == ".py":
        yield 1, pure.stem
        yield from ((found.line, found.name) for found in python_definitions(file.content))
    elif pure.suffix in _NAMED_IN:
        for number, line in enumerate(file.content.splitlines(), 1):
            yield from ((number, name) for name in _SNAKE.findall(line))
