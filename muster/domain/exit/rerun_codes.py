"""Exit codes of a program that runs suspect steps again by itself, as Megatron-LM's rerun state machine does.

    16   the step gave the same unexpected result again on the same GPU: the next attempt runs elsewhere
    17   the result failed its validation after a re-run: on the same GPU, or after 16 elsewhere

All ranks of Megatron-LM end with the code. The rank at fault writes a line of its own before it, such as ``Rank 3, node
n4, device 1, iteration #7: Possible persistent error!``.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from muster.domain.exit.exit_record import RankExit
from muster.domain.states import Cause

RerunCodes = Literal["megatron", "own"]
"""A job's statement about its exit codes 16 and 17. ``own``: they have a meaning of the program's own."""
RUN_ELSEWHERE: Final = 16
FAILED_VALIDATION: Final = 17


class StatedCause(StrEnum):
    """What the program's lines state of the fault, with the names of a re-run of our own."""

    REPEATED = "repeated"
    TRANSIENT = "transient"
    PERSISTENT = "persistent"
    PROGRAM = "program"


@dataclass(frozen=True, slots=True)
class RerunCode:
    """The meaning of a declared exit code."""

    cause: Cause
    words: str


RERUN_CODES: Final[Mapping[int, RerunCode]] = {
    RUN_ELSEWHERE: RerunCode(Cause.CORRUPTION, "it asks to run the step again on another GPU"),
    FAILED_VALIDATION: RerunCode(Cause.DIVERGED, "its result failed the validation after a re-run"),
}
_LINE: Final = re.compile(r"Rank (\d{1,7}), node \S{1,255}, device \d{1,7}, iteration #?\d{1,18}: ([^\n]{1,300})")
_STATEMENTS: Final[Mapping[str, StatedCause]] = {
    "unexpected result is reproducible within the tolerance": StatedCause.REPEATED,
    "Possible transient error": StatedCause.TRANSIENT,
    "Possible persistent error": StatedCause.PERSISTENT,
    "Correct result (but possible Application error)": StatedCause.PROGRAM,
}


@dataclass(frozen=True, slots=True)
class Stated:
    """What the ranks of an attempt stated of a fault.

    ``rank``: the one at fault, None if several are or none is named. ``cause``: None if no line states one.
    """

    rank: int | None = None
    cause: StatedCause | None = None
    line: str = ""


def declared_code(rank: RankExit, codes: RerunCodes | None) -> int | None:
    """Return the code of a rank that ended by a declared re-run. An end by ``muster.train`` is none."""
    is_one = codes == "megatron" and rank.signal is None and rank.exit_code in RERUN_CODES
    return rank.exit_code if is_one and not rank.is_by_runtime else None


def stated_by(ranks: Mapping[int, RankExit], codes: RerunCodes | None, num_ranks: int) -> Stated:
    """Return what the ended ranks of an attempt of ``num_ranks`` say of the fault.

    A rank that alone ended with a code is at fault, once the end of all ranks is known.
    """
    ended = {number: rank for number, rank in ranks.items() if declared_code(rank, codes) is not None}
    found = [line for rank in ended.values() for line in _lines_of(rank)]
    named = {rank for rank, _, _ in found if rank < num_ranks}
    if len(named) == 1:
        return _last_stated(found, next(iter(named)))
    if not named and len(ended) == 1 and len(ranks) == num_ranks:
        return Stated(next(iter(ended)))
    return Stated()


def _lines_of(rank: RankExit) -> list[tuple[int, StatedCause, str]]:
    return [
        (int(line[1]), cause, line[0])
        for line in _LINE.finditer(rank.error_excerpt or "")
        for words, cause in _STATEMENTS.items()
        if words in line[2]
    ]


def _last_stated(found: Sequence[tuple[int, StatedCause, str]], named: int) -> Stated:
    return next(Stated(rank, cause, line) for rank, cause, line in reversed(found) if rank == named)
