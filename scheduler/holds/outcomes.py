"""What reclaim comes to for a job that does not fit: victims were chosen, enough comes by itself, or it cannot help."""

from dataclasses import dataclass, field
from enum import StrEnum

from scheduler.fleet.topology import Ints


class Obstacle(StrEnum):
    """Why reclaim cannot help a job now although lower tiers hold GPUs that would."""

    MIN_RUN = "min_run"
    CAP = "cap"
    GUARANTEES = "guarantees"
    """What others borrow is not enough; the rest is guaranteed to them."""
    OWN_GUARANTEE = "own_guarantee"
    """No tier gives way to its own, and with the job its tenant would hold more than it is guaranteed."""
    TOO_LITTLE = "too_little"
    """There are those who would give way, and all of them would not make one domain sufficient."""
    CLOSING = "closing"
    """They would, but for hosts that close for planned work before it would end."""


@dataclass(frozen=True, slots=True)
class Coming:
    """Enough comes free by itself until then: nothing is taken."""

    until_ms: int


@dataclass(frozen=True, slots=True)
class Notified:
    """Victims were chosen; all will have let go of ``num_gpus`` by then, and what the gang runs on is held for it."""

    until_ms: int
    num_gpus: int


@dataclass(frozen=True, slots=True)
class Refused:
    """``until_ms``: when the minimum run times of enough victims are over; ``free_from_ms``: of each attempt.
    ``num_gpus``: what the obstacle leaves out of what would give way, or all of that where it would not do.
    ``most_nodes``: for so many hosts all who would give way make room, where that is too little, ``most_unrounded``
    if nothing were rounded down to slices. ``is_behind``: jobs before it wait for minimum run times too.
    """

    obstacle: Obstacle | None = None
    until_ms: int | None = None
    num_gpus: int | None = None
    most_nodes: int = 0
    most_unrounded: int = 0
    is_behind: bool = False
    free_from_ms: Ints | None = field(default=None, compare=False, repr=False)


Outcome = Notified | Coming | Refused
