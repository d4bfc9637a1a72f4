"""The judgement of a fault by a re-run of its steps on other GPUs, after a re-run on the same ones gave it again.

| on other GPUs | ranks whose results differ | verdict |
|---|---|---|
| the fault comes again | none | ``program``: the same on each GPU |
| no fault | some | ``persistent``: a fault of the GPU of the rank that differs first |
| the fault comes again | some | ``undecided``: the program does not repeat itself, or two GPUs are faulty |
| no fault | none | ``undecided``: the results do not show the fault |

It is undecided too if no suspect rank has moved to another GPU, if the rank that differs has not, if a step from before
the fault gave another result, or if the two runs had different numbers of ranks. A value that is no number differs from
each number, so for such a fault ``ENOUGH`` losses of each rank from before it must be the same.

Example of two ranks, with losses of steps 23 and 24. Step 23 is the first that is not to be trusted::

    rank  GPU           losses on the first GPUs      losses elsewhere
    0     A -> C        a  b'                         a  b
    1     B -> D        c' d'                         c  d            rank 1 differs first: GPU B is faulty
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from watch.reruns.results import RankResult, RunResult


class RerunCause(StrEnum):
    """What is known of wrong values. ``minority``: most copies agree, and the copies of the named ranks do not.

    ``repeated``: a re-run gave the same on the same GPUs, so that other GPUs are to decide.
    """

    MINORITY = "minority"
    TRANSIENT = "transient"
    PERSISTENT = "persistent"
    PROGRAM = "program"
    REPEATED = "repeated"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class RerunOutcome:
    """The judgement. ``ranks``: the ranks whose GPUs are faulty. ``why``: its ground, as the end of a sentence."""

    cause: RerunCause
    ranks: tuple[int, ...]
    why: str


ENOUGH: Final = 3
"""Losses of each rank from before a value fault that other GPUs must repeat, before the fault names one."""


@dataclass(frozen=True, slots=True)
class _Compared:
    """Two results of a rank. ``first_step``: the first that differs, 0 for none. ``num_before``: before the fault."""

    rank: int
    has_moved: bool
    first_step: int
    is_same: bool
    num_before: int
    has_losses: bool


def judge_in_place(found: str, ranks: Sequence[int]) -> RerunOutcome:
    """Return the judgement of a re-run in place, as the job's ranks found it (``muster.train.reruns.rerun_judge``).

    A fault that came again with other bits names no GPU: a program that draws its own numbers does the same.
    """
    named = tuple(ranks)
    if found == "transient":
        return RerunOutcome(RerunCause.TRANSIENT, named, "the same steps on the same GPUs gave no fault")
    if found == "repeated":
        return RerunOutcome(RerunCause.REPEATED, (), "the same steps on the same GPUs gave the same fault")
    if found == "again":
        return _undecided("the same steps on the same GPUs gave the fault again with other bits")
    return _undecided("the same steps on the same GPUs gave other results")


def judge_elsewhere(
    first: RunResult, elsewhere: RunResult, *, first_bad: int, suspects: Sequence[int] = (), is_of_values: bool = False
) -> RerunOutcome:
    """Judge a fault by its first run, whose re-run in place gave the same, and a run on other GPUs.

    ``first_bad``: the first step that is not to be trusted. ``suspects``: the ranks that may be at fault; empty: all.
    ``is_of_values``: the fault is a value that is no number, or too high.
    """
    if first.num_ranks and elsewhere.num_ranks and first.num_ranks != elsewhere.num_ranks:
        return _undecided(f"it ran with {elsewhere.num_ranks} ranks instead of {first.num_ranks}")
    if elsewhere.from_step >= first_bad:
        return _undecided("the run on other GPUs began after the first step that is not to be trusted")
    is_whole = first.end_step == elsewhere.end_step
    since = max(first.from_step, elsewhere.from_step)
    compared = [
        _compare(
            rank,
            _after(since, first.ranks[rank]),
            _after(since, elsewhere.ranks[rank]),
            first_bad,
            is_whole=is_whole,
        )
        for rank in sorted(first.ranks.keys() & elsewhere.ranks.keys())
    ]
    considered = [each for each in compared if not suspects or each.rank in suspects]
    if not considered:
        return _undecided("no suspect rank reported the results of both runs")
    if any(0 < each.first_step < first_bad for each in compared):
        return _undecided("steps from before the fault gave other results, so the program does not repeat itself")
    is_unlike = any(not each.is_same for each in compared)
    if elsewhere.is_again and is_unlike:
        return _undecided("the fault came again on other GPUs with other bits")
    if elsewhere.is_again:
        return _of_program(considered, is_whole=is_whole)
    if not any(not each.is_same for each in considered):
        return _undecided("other GPUs gave the suspect ranks the same results without the fault")
    if is_of_values and any(each.num_before < ENOUGH for each in compared):
        return _undecided(f"fewer than {ENOUGH} losses of each rank from before the fault were run again")
    named = _first_to_differ(compared if is_of_values else considered)
    return _of_gpus(named if all(each in considered for each in named) else [], considered)


def _of_program(considered: Sequence[_Compared], *, is_whole: bool) -> RerunOutcome:
    if not all(each.has_moved for each in considered):
        return _undecided("some suspect ranks ran on the same GPU again")
    if not is_whole and not any(each.has_losses for each in considered):
        return _undecided("the fault came earlier on other GPUs, and no losses show that it is the same")
    return RerunOutcome(RerunCause.PROGRAM, (), "other GPUs gave the same fault, bit for bit")


def _of_gpus(named: Sequence[_Compared], considered: Sequence[_Compared]) -> RerunOutcome:
    if not all(each.has_moved for each in named or considered):
        return _undecided("a rank whose results differ ran on the same GPU again")
    if not named:
        why = "other GPUs gave no fault, and no suspect rank differs first, so no GPU is named"
        return RerunOutcome(RerunCause.PERSISTENT, (), why)
    return RerunOutcome(RerunCause.PERSISTENT, _ranks(named), "other GPUs gave other results there, and no fault")


def _after(step: int, result: RankResult) -> RankResult:
    """Return the result without the losses up to ``step``, which one of the two runs does not have."""
    return replace(result, losses={at: loss for at, loss in result.losses.items() if at > step})


def _compare(rank: int, first: RankResult, second: RankResult, first_bad: int, *, is_whole: bool) -> _Compared:
    both = first.losses.keys() & second.losses.keys()
    steps = first.losses.keys() | second.losses.keys() if is_whole else both
    differs = min((step for step in steps if first.losses.get(step) != second.losses.get(step)), default=0)
    return _Compared(
        rank,
        has_moved=bool(first.place and second.place) and first.place != second.place,
        first_step=differs,
        is_same=not differs and (not is_whole or first.state == second.state),
        num_before=sum(step < first_bad for step in both),
        has_losses=bool(both),
    )


def _first_to_differ(considered: Sequence[_Compared]) -> Sequence[_Compared]:
    """Return the ranks that differ first: averaged gradients carry a rank's fault to the others. Empty: all do."""
    unlike = [each for each in considered if not each.is_same]
    if len(unlike) < len(considered) or len(considered) == 1:
        return unlike
    if not all(each.has_losses for each in considered):  # a pipeline's last stage alone reports one
        return []
    earliest = min((each.first_step for each in unlike if each.first_step), default=0)
    found = [each for each in unlike if earliest and each.first_step == earliest]
    return found if len(found) < len(considered) else []


def _ranks(named: Iterable[_Compared]) -> tuple[int, ...]:
    return tuple(each.rank for each in named)


def _undecided(why: str) -> RerunOutcome:
    return RerunOutcome(RerunCause.UNDECIDED, (), why)
