"""Check whether the learning rate suits the batch: a rate that was tuned for one batch is wrong for another.

With k times the batch the rate grows k-fold for SGD (arXiv 1706.02677, section 2.1) and √k-fold for Adam and its kin
(arXiv 2205.10287). A run that follows either rule is right; a run that follows neither most likely got more GPUs while
its learning rate stayed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

_TOLERANCE = 0.05
_SAME_BATCH = 0.01


@dataclass(frozen=True)
class TunedFor:
    """Values that were tuned together: ``batch`` in samples of a step of all ranks, ``learning_rate`` at its highest.

    Raises:
        ValueError: one of them is not above 0.
    """

    batch: int
    learning_rate: float

    def __post_init__(self) -> None:
        if not 0 < self.batch < math.inf:
            raise ValueError(f"batch must be a number of samples above 0, not {self.batch!r}")
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate must be a number above 0, not {self.learning_rate!r}")


class Rates:
    """An optimizer's learning rates as a run begins.

    ``is_fresh``: the run did not resume. After a resume, only a schedule that stores its initial rate gives the
    original rate.
    """

    def __init__(self, optimizer: torch.optim.Optimizer | None, *, is_fresh: bool) -> None:
        groups = [] if optimizer is None else optimizer.param_groups
        self.current = [rate for group in groups if (rate := _number(group.get("lr"))) is not None]
        names = ("max_lr", "initial_lr", *(("lr",) if is_fresh else ()))
        known = [
            next((rate for name in names if (rate := _number(group.get(name))) is not None), None) for group in groups
        ]
        self.highest = None if None in known else max((rate for rate in known if rate is not None), default=None)
        """Highest rate of all groups at the schedule's begin, or its peak if it names one; None if it is unknown."""


def tuning_text(tuned: TunedFor, batch: int | None, rates: Rates) -> str:
    """Return a warning if the rate follows neither rule. ``batch``: samples of a step, of all ranks; None: unknown."""
    if rates.highest is None:
        return ""
    rate = rates.highest
    if batch is None:
        return (
            f"the batch of a step is not known, and the learning rate of {tuned.learning_rate:g} is tuned for one of "
            f"{tuned.batch:,} samples: report it by run.report(samples=…), or use run.sample_indices"
        )
    factor = batch / tuned.batch
    linear, root = tuned.learning_rate * factor, tuned.learning_rate * math.sqrt(factor)
    if any(math.isclose(rate, each, rel_tol=_TOLERANCE) for each in (linear, root)):
        return ""
    if _is_same(factor):
        return (
            f"the learning rate is {rate:g}, and {tuned.learning_rate:g} was tuned for this batch of {batch:,} samples"
        )
    return (
        f"the batch is {batch:,} samples, {factor:g} times the {tuned.batch:,} that a learning rate of "
        f"{tuned.learning_rate:g} was tuned for, and the rate {rate:g}: scaled with the batch it would be {linear:g} "
        f"(SGD), with its square root {root:g} (Adam)"
    )


def resume_text(batch_before: float, batch: int, rates: Rates) -> str:
    """Return a warning if a step takes another number of samples than before at the same rate.

    ``batch_before``: the mean over the steps before the resume.
    """
    factor = batch / batch_before
    if _is_same(factor) or not rates.current:
        return ""
    return (
        f"a step takes {batch:,} samples, {factor:g} times as many as those before the checkpoint ({batch_before:g}), "
        f"and the learning rate is still {_listed(rates)}"
    )


def ranks_text(before: int, now: int, rates: Rates) -> str:
    """Return a warning about another number of ranks, for a run that does not report how many samples a step takes."""
    if not rates.current:
        return ""
    return (
        f"resumed on {now} ranks from a checkpoint of {before}: with as many samples a rank as before the batch is "
        f"{now / before:g} times as large, and the learning rate still {_listed(rates)}"
    )


def batch_of(batches: Sequence[tuple[int, int | None]]) -> int | None:
    """Return the samples of all ranks' first step, from each rank's reader number and its count; None if one is
    unknown.
    """
    of_reader = dict(batches)
    counts = [count for count in of_reader.values() if count is not None]
    return sum(counts) if counts and len(counts) == len(of_reader) else None


def _is_same(factor: float) -> bool:
    return abs(factor - 1) <= _SAME_BATCH


def _listed(rates: Rates) -> str:
    return ", ".join(sorted({f"{rate:g}" for rate in rates.current}))


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, torch.Tensor)):
        return None
    return float(value)
