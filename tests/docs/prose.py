"""Measure the prose of a page: words under each heading, words of each paragraph, and long sentences.

Code blocks and tables are no prose: a table's row is read as a whole and a block is typed. Each item of a list is a
paragraph of its own.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

WORDS_OF_HEADING_MAX: Final = 200
WORDS_OF_PARAGRAPH_MAX: Final = 120
WORDS_OF_SENTENCE_MAX: Final = 35
_FENCE: Final = re.compile(r"^```.*?^```[ ]*$", re.MULTILINE | re.DOTALL)
_COMMENT: Final = re.compile(r"<!--.*?-->", re.DOTALL)
_ITEM: Final = re.compile(r"(?m)^[ ]*(?:[-*]|\d+\.)[ ]+")
_LINK: Final = re.compile(r"\]\([^)]*\)")
_WORD: Final = re.compile(r"[^\W_]")
# A sentence ends at a full stop, colon, question or exclamation mark, followed by a blank or the end.
_SENTENCE_END: Final = re.compile(r"(?<=[.:!?;])(?:[*`\")]*)\s+")


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with the paragraphs below it, up to the next heading of any level."""

    title: str
    paragraphs: tuple[str, ...]

    @property
    def num_words(self) -> int:
        return sum(words_of(paragraph) for paragraph in self.paragraphs)


def sections_of(text: str) -> list[Section]:
    """Return the sections of a Markdown text in their order; what stands before the first heading has no title."""
    prose = _COMMENT.sub("", _FENCE.sub("\n\n", text))
    sections: list[Section] = []
    lines: list[str] = []
    title = ""
    for line in prose.splitlines():
        if line.startswith("#"):
            sections.append(Section(title, tuple(_paragraphs("\n".join(lines)))))
            title, lines = line.lstrip("#").strip(), []
        elif not line.lstrip().startswith("|"):
            lines.append(line)
    return [*sections, Section(title, tuple(_paragraphs("\n".join(lines))))]


def words_of(text: str) -> int:
    """Count the words of a text; a link counts by its label, a piece of code by its words."""
    return sum(1 for word in _LINK.sub("]", text).split() if _WORD.search(word))


def sentences_of(paragraph: str) -> list[str]:
    """Split a paragraph into sentences; a colon and a semicolon end one, since a reader may rest there."""
    return [one for one in _SENTENCE_END.split(" ".join(paragraph.split())) if words_of(one)]


def faults_of(path: Path) -> list[str]:
    """List every heading and paragraph that is too long, each with its number of words."""
    sections = sections_of(path.read_text(encoding="utf-8"))
    headings = [
        f"{path.name}: {section.title!r} has {section.num_words} words"
        for section in sections
        if section.num_words > WORDS_OF_HEADING_MAX
    ]
    paragraphs = [
        f"{path.name}: a paragraph of {words_of(paragraph)} words: {paragraph.strip()[:60]!r}"
        for section in sections
        for paragraph in section.paragraphs
        if words_of(paragraph) > WORDS_OF_PARAGRAPH_MAX
    ]
    return headings + paragraphs


def long_sentences_of(path: Path) -> list[str]:
    """List the sentences of a page that have more than ``WORDS_OF_SENTENCE_MAX`` words."""
    return [
        f"{path.name}: {words_of(sentence)} words: {sentence[:80]!r}"
        for section in sections_of(path.read_text(encoding="utf-8"))
        for paragraph in section.paragraphs
        for sentence in sentences_of(paragraph)
        if words_of(sentence) > WORDS_OF_SENTENCE_MAX
    ]


def _paragraphs(text: str) -> Iterator[str]:
    for part in re.split(r"\n[ \t]*\n", text):
        yield from (item for item in _ITEM.split(part) if item.strip())
