"""Records of a program's steps, as ``muster.train.runtime.recorder`` writes them: a file a rank and attempt."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

FIRST_STEP_MISSING: Final = -1


class At(IntEnum):
    """Moment of a step. Steps count the steps that are done, so a step ends with a number one higher."""

    START = 0
    BEGIN = 1
    END = 2


@dataclass(frozen=True, slots=True)
class Moment:
    """State of one rank at a moment. ``values``: digests, or short texts, by kind and name."""

    step: int
    at: At
    values: Mapping[str, str]

    @property
    def order(self) -> tuple[int, int]:
        """The place of the moment among all, as ``order_of`` has it."""
        return order_of(self.step, self.at)


def order_of(step: int, at: At) -> tuple[int, int]:
    """Return the order of moments. The end of a step comes before the begin of the next, which has the same number."""
    return (step, {At.END: 0, At.START: 1, At.BEGIN: 2}[at])


@dataclass(frozen=True, slots=True)
class Attempt:
    """What one attempt recorded, by rank."""

    ranks: Mapping[int, tuple[Moment, ...]]
    _at: dict[tuple[int, int, At], Moment] = field(default_factory=dict, init=False, compare=False)

    def __post_init__(self) -> None:
        for rank, moments in self.ranks.items():
            for each in moments:
                self._at.setdefault((rank, each.step, each.at), each)

    @property
    def first_step(self) -> int:
        """Steps that were done when it began; -1 if it recorded nothing."""
        return min((moments[0].step for moments in self.ranks.values() if moments), default=FIRST_STEP_MISSING)

    @property
    def last_step(self) -> int:
        """Steps that every rank has ended; -1 if there are none."""
        ends = [
            max((each.step for each in moments if each.at is At.END), default=-1) for moments in self.ranks.values()
        ]
        return min(ends, default=FIRST_STEP_MISSING)

    def moment(self, rank: int, step: int, at: At) -> Moment | None:
        """Return a moment of a rank; None if it was not recorded."""
        return self._at.get((rank, step, at))


class RecordError(ValueError):
    """A record that cannot be read, with its line."""


def parse_attempt(files: Mapping[int, str]) -> Attempt:
    """Return an attempt from the text of each rank's file. A last line that was cut by a kill is left out.

    Raises:
        RecordError: a line has another form.
    """
    ranks: dict[int, tuple[Moment, ...]] = {}
    for rank, text in files.items():
        lines = text.split("\n")[:-1]
        documents = [_document(line, rank, number) for number, line in enumerate(lines, 1)]
        ranks[rank] = tuple(_moments(documents))
    return Attempt(ranks)


def _document(line: str, rank: int, number: int) -> dict[str, Any]:
    try:
        document = json.loads(line)
        is_fit = (
            document["at"] in {at.name.lower() for at in At}
            and isinstance(document["step"], int)
            and isinstance(document["values"], dict)
        )
    except (ValueError, KeyError, TypeError) as fault:
        raise RecordError(f"line {number} of rank {rank}'s record cannot be read: {fault}") from fault
    if not is_fit:
        raise RecordError(f"line {number} of rank {rank}'s record names no moment: {line[:80]}")
    return dict(document)


def _moments(documents: Iterable[Mapping[str, Any]]) -> Iterable[Moment]:
    values: dict[str, str] = {}
    for each in documents:
        changed = each["values"]
        kept = {key: value for key, value in values.items() if key not in changed}
        values = {**kept, **{key: value for key, value in changed.items() if value is not None}}
        yield Moment(each["step"], At[each["at"].upper()], values)
