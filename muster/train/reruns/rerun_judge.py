"""What a re-run in place shows: two runs of the same steps on the same GPUs, compared rank by rank.

| the second run | ranks with two results | found |
|---|---|---|
| ends without the fault | some | ``transient``: a fault of the ranks that differed first |
| ends without the fault | none, or also before the fault | ``undecided``: the program does not repeat itself |
| shows the fault again | none | ``repeated``: of the program, or of a GPU that computes wrong each time: another GPU decides |
| shows the fault again | some | ``again``: it names no rank, since a program that draws its own numbers does the same |

Averaged gradients carry a rank's fault to all others. So of the ranks that may be at fault, those with the earliest
loss that differs are named; or, if no loss differs, those with another state. If that is every rank, none is named.

Nothing is named unless the second run repeated the first in all that is not suspect: the kernels give the same bits
each time, and the optimizer's settings and the program's extras are equal. A value that is no number differs from each
number, so it proves nothing by itself: ``ENOUGH`` losses of each rank from before it must have been repeated.

``watch.reruns.judge`` compares with a run on other GPUs in the same way.
"""  # noqa: E501  # a table's row is one line

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from muster.train.parallel.naming import ranks_in_words

if TYPE_CHECKING:
    from collections.abc import Sequence

TRANSIENT, REPEATED, AGAIN, UNDECIDED = "transient", "repeated", "again", "undecided"
ENOUGH = 3
"""Losses of each rank from before a value fault that the second run must repeat, before the fault names a rank."""


@dataclass(frozen=True)
class Compared:
    """Two results of one rank. ``first_step``: the first step with another loss, 0 for none.

    ``num_before``: losses from before the fault. ``has_losses``: it reports any. ``is_repeatable``: its kernels give
    the same bits each time, and its settings were the same both times.
    """

    is_same: bool
    first_step: int
    num_before: int = 0
    has_losses: bool = True
    is_repeatable: bool = True


@dataclass(frozen=True)
class Suspected:
    """The ranks that a fault leaves as possible. ``accused``: those with the false copy, as most copies agree.

    ``group``: those among which it is; empty: all. ``is_of_values``: values are no numbers, or too high.
    ``is_of_buffers``: only buffers differ, which a program may change on one rank alone.
    """

    accused: tuple[int, ...] = ()
    group: tuple[int, ...] = ()
    is_of_values: bool = False
    is_of_buffers: bool = False


@dataclass(frozen=True)
class Found:
    """What a re-run shows. ``ranks``: the ranks named; empty: none is."""

    kind: str
    ranks: tuple[int, ...]

    def __str__(self) -> str:
        on = ranks_in_words(self.ranks) if self.ranks else ""
        if self.kind == TRANSIENT:
            words = f"{on} computed otherwise the first time" if on else "no rank differs alone from the first time"
            return f"the fault did not come again, and {words}: it was transient"
        if self.kind == REPEATED:
            words = f"; suspected: {on}" if on else ""
            return f"the same fault came again, bit for bit: of the program, or of a GPU that is always wrong{words}"
        if self.kind == AGAIN:
            return "the fault came again with other bits, so it is undecided"
        return "the two runs do not show whether a GPU or the program was wrong, so it is undecided"


def judge(compared: Sequence[Compared], suspected: Suspected, *, first_bad: int, is_again: bool) -> Found:
    """Judge a re-run.

    ``compared``: by rank. ``first_bad``: the first step that is not to be trusted, so the steps before it must repeat.
    ``is_again``: the second run shows the fault too.
    """
    if suspected.is_of_buffers or any(0 < each.first_step < first_bad for each in compared):
        return Found(UNDECIDED, ())
    is_same = all(each.is_same for each in compared)
    if is_again:
        return Found(REPEATED, suspected.accused or suspected.group) if is_same else Found(AGAIN, ())
    if is_same or not all(each.is_repeatable for each in compared):
        return Found(UNDECIDED, ())
    if suspected.is_of_values and any(each.num_before < ENOUGH for each in compared):
        return Found(UNDECIDED, ())
    candidates = suspected.group or tuple(range(len(compared)))
    unlike = tuple(rank for rank in candidates if not compared[rank].is_same)
    if not set(suspected.accused) <= set(unlike) or not unlike:
        return Found(UNDECIDED, ())
    if suspected.accused and not suspected.is_of_values:
        return Found(TRANSIENT, suspected.accused)
    return Found(TRANSIENT, _first_to_differ(compared, candidates, unlike))


def _first_to_differ(
    compared: Sequence[Compared], candidates: tuple[int, ...], unlike: tuple[int, ...]
) -> tuple[int, ...]:
    if len(unlike) < len(candidates):
        return unlike
    if not all(compared[rank].has_losses for rank in candidates):  # a pipeline's last stage alone reports one
        return ()
    earliest = min((compared[rank].first_step for rank in candidates if compared[rank].first_step), default=0)
    first = tuple(rank for rank in candidates if earliest and compared[rank].first_step == earliest)
    return first if len(first) < len(candidates) else ()
