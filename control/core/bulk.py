"""Changes of all objects that a selector matches: bounded, counted before, and each as the change of one object is.

What is changed is one unit of work. An object that the change of one refuses is left as it is and named with the
reason; the others are changed.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import ColumnElement, SQLColumnExpression, func, not_, select

from control.core.unit_of_work import UnitOfWork
from muster.domain.errors import (
    ConflictError,
    ForbiddenError,
    MusterError,
    NotFoundError,
    TenantLimitError,
    ValidationFailedError,
)

MOST: Final = 100
"""Objects that one request changes: its locks are held until all of them are changed."""
_REFUSALS: Final = (ConflictError, ForbiddenError, NotFoundError, TenantLimitError, ValidationFailedError)


@dataclass(frozen=True, slots=True)
class BulkRequest:
    """What is wanted of all matching objects.

    ``expected``: how many of them are to be changed, as a dry run counted; None: in a dry run. ``after``: only those
    with a greater id, to continue. ``limit``: how many are tried.
    """

    reason: str
    expected: int | None = None
    after: str | None = None
    limit: int = MOST


@dataclass(frozen=True, slots=True)
class BulkOutcome:
    """What became of one object. ``refusal``: why it is left as it is; None: it is changed."""

    id: str
    name: str
    refusal: MusterError | None


@dataclass(frozen=True, slots=True)
class BulkResult:
    """What became of all. ``num_matched``: objects that were to be changed; ``num_unchanged``: others that match.

    ``next_after``: where to continue; None: nothing is left.
    """

    num_matched: int
    num_unchanged: int
    outcomes: Sequence[BulkOutcome]

    @property
    def num_refused(self) -> int:
        return sum(each.refusal is not None for each in self.outcomes)

    @property
    def num_left(self) -> int:
        return self.num_matched - len(self.outcomes)

    @property
    def next_after(self) -> str | None:
        return self.outcomes[-1].id if self.num_left and self.outcomes else None


@dataclass(frozen=True, slots=True)
class Subjects:
    """The rows that a selector matches. ``conditions``: its own; ``is_due``: that the change is still to be made."""

    own_id: SQLColumnExpression[str]
    name: SQLColumnExpression[str]
    conditions: Sequence[ColumnElement[bool]]
    is_due: ColumnElement[bool]
    visible: ColumnElement[bool]


def change_matching(
    unit: UnitOfWork,
    request: BulkRequest,
    subjects: Subjects,
    change: Callable[[str], object],
    *,
    lock: Callable[[Sequence[str]], object] | None = None,
) -> BulkResult:
    """Make the change of each matching object, in the order of ids. ``lock``: takes the locks of all of them first.

    Raises:
        ValidationFailedError: the selector is empty, so it selects nothing (I24).
        ConflictError: another number matches than ``expected``.
    """
    if not subjects.conditions:
        words = "name at least one condition: an empty selector selects nothing"
        raise ValidationFailedError.at("/selector", "empty", words)
    conditions = [subjects.visible, *subjects.conditions, *_behind(subjects, request)]
    num_matched = _count(unit, subjects, [*conditions, subjects.is_due])
    num_unchanged = _count(unit, subjects, [*conditions, not_(subjects.is_due)])
    if request.expected is not None and request.expected != num_matched:
        raise ConflictError(
            f"{num_matched} match now, and {request.expected} were expected",
            suggestion="Look again with `dry_run=true`, then send the number that it answers as `expected`.",
            num_matched=num_matched,
        )
    rows = select(subjects.own_id, subjects.name).where(*conditions, subjects.is_due)
    found = unit.session.execute(rows.order_by(subjects.own_id).limit(request.limit)).all()
    if lock is not None:
        lock([row[0] for row in found])
    outcomes = [BulkOutcome(own_id, name, _refusal(change, own_id)) for own_id, name in found]
    return BulkResult(num_matched, num_unchanged, outcomes)


def _behind(subjects: Subjects, request: BulkRequest) -> Iterator[ColumnElement[bool]]:
    if request.after is not None:
        yield subjects.own_id > request.after


def _count(unit: UnitOfWork, subjects: Subjects, conditions: Sequence[ColumnElement[bool]]) -> int:
    return unit.session.scalar(select(func.count(subjects.own_id)).where(*conditions)) or 0


def _refusal(change: Callable[[str], object], own_id: str) -> MusterError | None:
    """Return why the change of one object is refused. A refusal comes before the first change, so nothing is undone."""
    try:
        change(own_id)
    except _REFUSALS as refusal:
        return refusal
    return None
