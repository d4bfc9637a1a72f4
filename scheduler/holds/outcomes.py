"""The outcomes of reclaim for a job that does not fit: victims, enough GPUs without reclaim, or no help."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from scheduler.fleet.topology import Ints


class Obstacle(StrEnum):
    """Reasons why reclaim cannot help a job now although lower tiers have GPUs that would."""

    MIN_RUN = "min_run"
    CAP = "cap"
    GUARANTEES = "guarantees"
    """The GPUs that others borrow are not enough; the rest is guaranteed to them."""
    OWN_GUARANTEE = "own_guarantee"
    """A job is never reclaimed for its own tier, and with the job its tenant would have more than its guarantee."""
    TOO_LITTLE = "too_little"
    """There are candidates, and all of them together would not make one domain sufficient."""
    CLOSING = "closing"
    """Candidates would suffice if hosts did not close for planned work before the job would end."""


@dataclass(frozen=True, slots=True)
class Coming:
    """Enough GPUs become free by themselves until then: none is reclaimed."""

    until_ms: int


@dataclass(frozen=True, slots=True)
class Notified:
    """Victims were chosen.

    By ``until_ms`` they will have released ``num_gpus``; the GPUs on which the gang will run are held for it.
    ``frees_more``: they release others too.
    """

    until_ms: int
    num_gpus: int
    frees_more: bool


@dataclass(frozen=True, slots=True)
class Refused:
    """Reclaim does not help now.

    ``until_ms``: when the minimum run times of enough victims are over; ``free_from_ms``: the same for each attempt.
    ``num_gpus``: how many of the candidates' GPUs the obstacle excludes, or all their GPUs if even these are too few.
    ``most_nodes``: the most hosts that all candidates would free, if that is too little; ``most_unrounded``: the same
    without rounding to slices. ``is_behind``: jobs before it wait for minimum run times too.
    """

    obstacle: Obstacle | None = None
    until_ms: int | None = None
    num_gpus: int | None = None
    most_nodes: int = 0
    most_unrounded: int = 0
    is_behind: bool = False
    free_from_ms: Ints | None = field(default=None, compare=False, repr=False)


NO_REFUSAL: Final = Refused()
"""No time at which reclaim helps, for a job for which it was not tried, or whose GPUs become free without it."""

Outcome = Notified | Coming | Refused
