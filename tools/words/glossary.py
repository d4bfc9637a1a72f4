"""The refused phrases and name parts, read from the tables of ``docs/glossary.md``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

GLOSSARY: Final = "docs/glossary.md"
PHRASES: Final = "## Phrases that the lint refuses"
NAMES: Final = "## Names that the lint refuses"
_ALTERNATIVES: Final = " · "


@dataclass(frozen=True, slots=True)
class Glossary:
    """``phrases`` and ``parts``: each refused word with what to say instead. ``pattern`` finds every phrase."""

    phrases: Mapping[str, str]
    parts: Mapping[str, str]
    pattern: re.Pattern[str]


def read_glossary(root: Path) -> Glossary:
    """Return the refused words of the checkout. Raises ValueError where a table is missing."""
    text = (root / GLOSSARY).read_text(encoding="utf-8")
    phrases, parts = dict(_rows(text, PHRASES)), dict(_rows(text, NAMES))
    longest_first = sorted(phrases, key=lambda phrase: (-len(phrase), phrase))
    pattern = "|".join(re.escape(phrase).replace(r"\ ", r"\s+") for phrase in longest_first)
    return Glossary(phrases, parts, re.compile(rf"(?<![\w-])(?:{pattern})(?![\w-])", re.IGNORECASE))


def _rows(text: str, heading: str) -> Iterator[tuple[str, str]]:
    _, found, below = text.partition(heading + "\n")
    rows = [line for line in below.partition("\n## ")[0].splitlines() if line.startswith("| ")][1:]
    if not found or not rows:
        raise ValueError(f"{GLOSSARY} has no table below {heading!r}")
    for row in rows:
        refused, instead = (cell.strip() for cell in row.strip("| ").split("|"))
        yield from ((word.strip().lower(), instead) for word in refused.split(_ALTERNATIVES))
