"""A job's states over time, as the parts of one drawn bar: waiting, starting, training, stopping."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from console.words import clock, span
from control.attempts.types import AttemptRecord
from control.checkpoints.types import CheckpointRecord
from control.jobs.job_details import AttemptDetail, JobDetail
from muster.domain.states import CheckpointStatus

NARROWEST: Final = 0.25
"""Least width in per cent of the bar, so that a moment is visible too."""
MARKS: Final = 80
NOT_TO_BE_USED: Final = (CheckpointStatus.TAINTED, CheckpointStatus.REJECTED)


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the bar.

    ``left`` and ``width`` are per cent of the whole; ``state`` gives the tone, ``words`` the text.
    """

    state: str
    left: float
    width: float
    words: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A checkpoint. ``is_bad``: TAINTED or REJECTED, now or before it expired."""

    left: float
    is_bad: bool
    words: str


@dataclass(frozen=True, slots=True)
class Life:
    """The whole bar. ``labels``: where each attempt begins, with its number, as far as there is room for it."""

    parts: Sequence[Part]
    labels: Sequence[tuple[float, int]]
    marks: Sequence[Mark]
    since: datetime
    until: datetime
    is_over: bool

    @property
    def words(self) -> str:
        return "; ".join(part.words for part in self.parts)


def life_of(detail: JobDetail, checkpoints: Sequence[CheckpointRecord], now: datetime) -> Life:
    """Return the bar from the job's submission, or the first shown attempt, until its end or ``now``."""
    job, shown = detail.job, detail.attempts
    since = job.created_at if detail.num_attempts == len(shown) or not shown else shown[0].attempt.placed_at
    until = max(job.finished_at or now, since + timedelta(milliseconds=1))
    scale = _Scale(since, until)
    parts = list(_parts(detail, scale))
    labels: list[tuple[float, int]] = []
    for each in shown:
        left = scale.at(each.attempt.placed_at)
        if not labels or left - labels[-1][0] > 6:  # per cent: the room that a label needs
            labels.append((left, each.attempt.number))
    marks = [_mark(row, scale) for row in checkpoints[:MARKS] if row.committed_at is not None]
    marks = [mark for mark in marks if 0 <= mark.left <= 100]  # per cent
    return Life(parts, labels, marks, since, until, job.finished_at is not None)


class _Scale:
    def __init__(self, since: datetime, until: datetime) -> None:
        self._since = since
        self.until = until
        self._whole_s = (until - since).total_seconds()

    def at(self, moment: datetime) -> float:
        return 100 * (moment - self._since).total_seconds() / self._whole_s

    def part(self, state: str, start: datetime, end: datetime, what: str) -> Part:
        left, right = max(self.at(start), 0.0), min(self.at(end), 100.0)
        return Part(state, left, max(right - left, NARROWEST), f"{what} for {span(max(end - start, timedelta(0)))}")


def _parts(detail: JobDetail, scale: _Scale) -> Iterator[Part]:
    free_since: datetime | None = detail.job.created_at
    if detail.num_attempts > len(detail.attempts):
        free_since = None
    for each in detail.attempts:
        attempt = each.attempt
        if free_since is not None:
            what = "waited" if attempt.number == 1 else "waited to continue"
            yield scale.part("QUEUED", free_since, attempt.placed_at, what)
        yield from _of_attempt(attempt, each, scale)
        free_since = attempt.ended_at
    if free_since is not None and detail.job.finished_at is None:
        yield scale.part(detail.job.state, free_since, scale.until, "waits" if detail.attempts else "has waited")


def _of_attempt(attempt: AttemptRecord, each: AttemptDetail, scale: _Scale) -> Iterator[Part]:
    """Yield its parts: starting until its ranks train, training, and stopping."""
    end = attempt.ended_at or scale.until
    stopping = attempt.stopping_at or end
    trains = each.resumed.at if each.resumed is not None else attempt.running_at
    begun = min(trains or stopping, stopping)
    name = f"attempt {attempt.number}"
    yield scale.part("PLACED", attempt.placed_at, begun, f"{name} started")
    if trains is not None and begun < stopping:
        yield scale.part("LOST" if attempt.lost_at else "RUNNING", begun, stopping, f"{name} ran")
    if attempt.stopping_at is not None:
        yield scale.part("STOPPING", attempt.stopping_at, end, f"{name} was stopping")


def _mark(row: CheckpointRecord, scale: _Scale) -> Mark:
    at = row.committed_at or row.created_at
    is_bad = is_spoilt(row)
    status = f"{row.status}, {row.reason}" if is_bad else str(row.status)
    return Mark(scale.at(at), is_bad, f"checkpoint of step {row.step:,} at {clock(at)[:8]}: {status}")


def is_spoilt(row: CheckpointRecord) -> bool:
    """Return whether it is never to be resumed from: TAINTED or REJECTED, also where it has expired since."""
    return row.status in NOT_TO_BE_USED or (row.status is CheckpointStatus.EXPIRED and row.reason is not None)
