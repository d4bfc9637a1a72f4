"""Table of a check: for each step after the resume, the losses of both runs and what differs."""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from watch.reproducibility.compare import differences
from watch.reproducibility.judge import Runs
from watch.reproducibility.records import At, Attempt

_NONE = "-"


@dataclass(frozen=True, slots=True)
class Row:
    """One step, counted from 1. ``differs``: kinds and names of what differs before or after it, on any rank."""

    step: int
    loss: str
    resumed_loss: str
    differs: tuple[str, ...]


def rows(runs: Runs, ignored: AbstractSet[str] = frozenset()) -> Iterator[Row]:
    """Yield a row for each step of the resumed run."""
    differing: dict[int, list[str]] = {}
    for each in differences(runs.whole, runs.resumed, ignored):
        step = each.step + (each.at is At.BEGIN)
        differing.setdefault(step, []).extend(key.text for key in each.all_keys)
    for step in range(runs.resumed.first_step + 1, runs.resumed.last_step + 1):
        found = tuple(dict.fromkeys(differing.get(step, [])))
        yield Row(step, _loss(runs.whole, step), _loss(runs.resumed, step), found)


def _loss(attempt: Attempt, step: int) -> str:
    """Return the loss of the first rank that reported one."""
    moments = (attempt.moment(rank, step, At.END) for rank in sorted(attempt.ranks))
    return next((each.values["loss"] for each in moments if each is not None and "loss" in each.values), _NONE)
