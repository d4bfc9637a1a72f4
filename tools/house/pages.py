"""Pages: how long, how many words a heading and a paragraph, how long their sentences."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tools.house.figure import HouseFigure

if TYPE_CHECKING:
    from pathlib import Path

ARCHITECTURE: Final = "ARCHITECTURE.md"
LONGEST_SENTENCE: Final = 35
_FENCE: Final = re.compile(r"^ *(```|~~~)")
_HEADING: Final = re.compile(r"#{1,6} ")
_ITEM: Final = re.compile(r"\s*(?:[-*+]|\d+\.) +")
_WORD: Final = re.compile(r"[^\s|]*[A-Za-z0-9][^\s|]*")
_LINK: Final = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])[)*_`\"]*\s+")


@dataclass(frozen=True, slots=True)
class Page:
    """Text of a page. ``paragraphs``: each paragraph, list item and table row, without code blocks."""

    headings: tuple[str, ...]
    paragraphs: tuple[str, ...]

    @property
    def num_words(self) -> int:
        """Return the words of all paragraphs and headings."""
        return sum(map(num_words, (*self.headings, *self.paragraphs)))

    @property
    def words_a_heading(self) -> float:
        """Return the mean: the words of the page for each of its headings."""
        return self.num_words / max(1, len(self.headings))

    @property
    def longest_paragraph(self) -> int:
        """Return the words of the longest paragraph."""
        return max(map(num_words, self.paragraphs), default=0)

    @property
    def long_sentences(self) -> list[str]:
        """Return the sentences of more than ``LONGEST_SENTENCE`` words."""
        sentences = (sentence for paragraph in self.paragraphs for sentence in _SENTENCE_END.split(paragraph))
        return [sentence for sentence in sentences if num_words(sentence) > LONGEST_SENTENCE]


def page_of(markdown: str) -> Page:
    """Return the page's headings and paragraphs."""
    headings, paragraphs = list[str](), list[list[str]]()
    is_code = is_open = False
    for line in markdown.splitlines():
        if _FENCE.match(line):
            is_code, is_open = not is_code, False
        elif is_code:
            continue
        elif _HEADING.match(line):
            headings.append(line.lstrip("# "))
            is_open = False
        elif not line.strip():
            is_open = False
        elif is_open and not _ITEM.match(line) and not line.startswith("|"):
            paragraphs[-1].append(line.strip())
        else:
            paragraphs.append([line.strip()])
            is_open = not line.startswith("|")
    return Page(tuple(headings), tuple(" ".join(lines) for lines in paragraphs))


def num_words(text: str) -> int:
    """Return the words of a text; a link counts by its text, a table's lines and dashes not at all."""
    return len(_WORD.findall(_LINK.sub(r"\1", text)))


def page_figures(root: Path) -> list[HouseFigure]:
    """Return the figures of ``ARCHITECTURE.md``."""
    page = page_of((root / ARCHITECTURE).read_text(encoding="utf-8"))
    peers = {"headings": len(page.headings), "words of the longest paragraph": page.longest_paragraph}
    return [
        HouseFigure(f"words of {ARCHITECTURE}", page.num_words, "words", 3200, peers),
        HouseFigure(f"words a heading of {ARCHITECTURE}", round(page.words_a_heading, 1), "words", 200),
    ]
