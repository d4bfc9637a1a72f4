"""Pronouns of persons: right for persons, refused for things.

A relative pronoun is right where a word for a person is among the three words before. A noun can replace the others
everywhere ("no operator", "the caller"). What the rule does not see stands in ``exempt.txt``, sentence by sentence.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

PRONOUNS: Final = re.compile(r"(?<![\w-])(who|whom|whoever|whomever|nobody|somebody)(?:'s)?(?![\w-])", re.IGNORECASE)
WORD: Final = re.compile(r"[A-Za-z][A-Za-z'-]*")
_PERSON: Final = re.compile(
    r"\b(?:persons?|people|operators?|administrators?|auditors?|users?|customers?|readers?|authors?|developers?|"
    r"engineers?|contributors?|maintainers?|reviewers?|visitors?|viewers?|newcomers?|attackers?|you)\b",
    re.IGNORECASE,
)
_SENTENCE_END: Final = re.compile(r"(?<=[.!?:;])\s+|\n\s*\n")
_RELATIVE: Final = frozenset({"who", "whom"})
_NEAR: Final = 3


def num_words(text: str) -> int:
    """Return how many words the text has."""
    return len(WORD.findall(text))


def pronouns_for_things(text: str, exempt: Collection[str] = ()) -> Iterator[tuple[int, str]]:
    """Yield the offset and the word of each pronoun that stands for no person."""
    offset = 0
    for sentence in _sentences(text):
        start = text.index(sentence, offset)
        offset = start + len(sentence)
        if normalised(sentence) in exempt:
            continue
        for found in PRONOUNS.finditer(sentence):
            if not _is_for_person(sentence, found):
                yield start + found.start(), found.group(1).lower()


def normalised(sentence: str) -> str:
    """Return the sentence with single spaces, as ``exempt.txt`` has it."""
    return " ".join(sentence.split())


def _sentences(text: str) -> list[str]:
    return [sentence for sentence in _SENTENCE_END.split(text) if sentence.strip()]


def _is_for_person(sentence: str, found: re.Match[str]) -> bool:
    before = sentence[: found.start()].split()[-_NEAR:]
    return found.group(1).lower() in _RELATIVE and _PERSON.search(" ".join(before)) is not None
