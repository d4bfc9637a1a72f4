"""Patterns of outputs: paths below a folder, with ``*`` and ``?`` inside of a name, and ``**`` for any folders.

A pattern that fits a folder takes all that is in it.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

_ANY_DEPTH: Final = "**"
Place = frozenset[tuple[int, int]]
"""How far a path has come: in which patterns, and before which of their parts."""


class Patterns:
    """What the patterns of one job fit, name by name, so that no folder is read that has nothing of them."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = patterns
        self._parts = [tuple(pattern.split("/")) for pattern in patterns]
        self._met: set[int] = set()

    @property
    def start(self) -> Place:
        """Return the place of the folder itself."""
        return frozenset(place for number in range(len(self._parts)) for place in self._all_from(number, 0))

    def inside(self, place: Place, name: str) -> Place:
        """Return the place of ``name`` in the folder at ``place``. Where it is empty, nothing below fits."""
        found: set[tuple[int, int]] = set()
        for number, at in place:
            parts = self._parts[number]
            if at == len(parts):
                found.add((number, at))
            elif parts[at] == _ANY_DEPTH:
                found |= self._all_from(number, at)
            elif _compiled(parts[at]).fullmatch(name):
                found |= self._all_from(number, at + 1)
        return frozenset(found)

    def takes(self, place: Place) -> bool:
        """Return whether a file at this place is taken; the patterns that take it have met one."""
        met = {number for number, at in place if at == len(self._parts[number])}
        self._met |= met
        return bool(met)

    @property
    def without_file(self) -> list[str]:
        """Return the patterns that no file has fitted yet."""
        return [pattern for number, pattern in enumerate(self._patterns) if number not in self._met]

    def _all_from(self, number: int, at: int) -> set[tuple[int, int]]:
        """Return the place and those behind it that stand for no folder."""
        parts, found = self._parts[number], {(number, at)}
        while at < len(parts) and parts[at] == _ANY_DEPTH:
            at += 1
            found.add((number, at))
        return found


@lru_cache(maxsize=1_000)
def _compiled(part: str) -> re.Pattern[str]:
    """Return the expression of one name. The text between two asterisks is fixed where it fits first: no name makes it
    try long.
    """
    first, *others = ["".join("." if one == "?" else re.escape(one) for one in piece) for piece in part.split("*")]
    if not others:
        return re.compile(first, re.DOTALL)
    between = "".join(f"(?>.*?{piece})" for piece in others[:-1])
    return re.compile(f"{first}{between}.*{others[-1]}", re.DOTALL)
