"""The first moment at which two attempts of one program differ, and what differs there."""

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from watch.reproducibility.records import At, Attempt, Moment

HINTS: Final = frozenset({"number", "gradient"})
"""Kinds that may differ in a program that is right: timers, counters, and gradients that the next step clears."""
_ONLY_IN_BOTH: Final = frozenset({"variable", "attribute", *HINTS})
"""Kinds of which a program may have more after its first step than before it."""


@dataclass(frozen=True, slots=True)
class Key:
    """Key of a value, such as ``variable module main.average``."""

    text: str

    @property
    def kind(self) -> str:
        """First word, such as ``parameter``."""
        return self.text.partition(" ")[0]

    @property
    def sort(self) -> str:
        """Second word of a variable, such as ``generator``; empty for all others."""
        return self.text.split(" ")[1] if self.kind == "variable" else ""

    @property
    def name(self) -> str:
        """The name after the kind."""
        rest = self.text.partition(" ")[2]
        return rest.partition(" ")[2] if self.kind == "variable" else rest


@dataclass(frozen=True, slots=True)
class Difference:
    """Moment at which two attempts differ on some ranks. ``keys``: by rank, what differs."""

    step: int
    at: At
    keys: dict[int, tuple[Key, ...]]

    @property
    def all_keys(self) -> tuple[Key, ...]:
        """What differs on any rank, each once."""
        return tuple(dict.fromkeys(key for keys in self.keys.values() for key in keys))

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that differ."""
        return tuple(sorted(self.keys))


def first_difference(whole: Attempt, other: Attempt, ignored: AbstractSet[str] = frozenset()) -> Difference | None:
    """Return the first moment at which ``other`` differs from ``whole``; None if it never does.

    ``ignored``: names of variables that decide nothing.
    """
    return next(differences(whole, other, ignored), None)


def differences(whole: Attempt, other: Attempt, ignored: AbstractSet[str] = frozenset()) -> Iterator[Difference]:
    """Yield each moment that differs, in the order of time."""
    kept = _kept_variables(whole)
    moments = sorted({(each.order, each.step, each.at) for ranks in other.ranks.values() for each in ranks})
    for _, step, at in moments:
        if at is At.START:
            continue
        found = {}
        for rank in sorted(other.ranks):
            one, two = whole.moment(rank, step, at), other.moment(rank, step, at)
            if one is not None and two is not None and (keys := tuple(_unlike(one, two, kept, ignored))):
                found[rank] = keys
        if found:
            yield Difference(step, at, found)


def hints(whole: Attempt, other: Attempt, step: int, at: At, kind: str) -> list[tuple[Key, str, str]]:
    """Return the values of one hint's kind that differ at a moment on the first rank that has it, as was and is.

    Of numbers only the ones that both have: a program that has just started lacks what it sets in its loop.
    """
    for rank in sorted(other.ranks):
        one, two = whole.moment(rank, step, at), other.moment(rank, step, at)
        if one is not None and two is not None:
            keys = [Key(text) for text in one.values.keys() | two.values.keys()]
            return sorted(
                (
                    (key, one.values.get(key.text, "none"), two.values.get(key.text, "none"))
                    for key in keys
                    if key.kind == kind
                    and one.values.get(key.text) != two.values.get(key.text)
                    and (kind != "number" or (key.text in one.values and key.text in two.values))
                ),
                key=lambda each: each[0].text,
            )
    return []


def restored_as_saved(whole: Attempt, other: Attempt, rank: int, key: Key) -> bool:
    """Return whether a value was right after the restore, so that the program changed it before its first step."""
    start = other.moment(rank, other.first_step, At.START)
    saved = whole.moment(rank, other.first_step, At.END)
    return start is not None and saved is not None and start.values.get(key.text) == saved.values.get(key.text)


def _kept_variables(whole: Attempt) -> frozenset[str]:
    """Return the variables that the program has before its first step: what it makes in the loop it makes again."""
    begins = (
        moment for moments in whole.ranks.values() for moment in moments if (moment.step, moment.at) == (0, At.BEGIN)
    )
    return frozenset(text for moment in begins for text in moment.values if text.startswith("variable "))


def _unlike(one: Moment, two: Moment, kept: AbstractSet[str], ignored: AbstractSet[str]) -> Iterable[Key]:
    for text in sorted(one.values.keys() | two.values.keys()):
        key = Key(text)
        if key.kind in HINTS or (key.kind == "variable" and (text not in kept or _is_ignored(key.name, ignored))):
            continue
        is_in_both = text in one.values and text in two.values
        if one.values.get(text) != two.values.get(text) and (is_in_both or key.kind not in _ONLY_IN_BOTH):
            yield key


def _is_ignored(name: str, ignored: AbstractSet[str]) -> bool:
    return name in ignored or name.rpartition(".")[2] in ignored
