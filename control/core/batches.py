"""Work in small batches, each a transaction of its own, until nothing is left."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from sqlalchemy import (
    ColumnElement,
    SQLColumnExpression,
    TableClause,
    any_,
    delete,
    func,
    literal_column,
    select,
)

from control.core.unit_of_work import UnitOfWork
from muster.db.models import Base


def in_batches(delete_once: Callable[[], dict[str, int]], batch: int, most_batches: int) -> dict[str, int]:
    """Repeat ``delete_once`` while it finds a full batch of any kind, at most so often. Return the sums."""
    deleted: Counter[str] = Counter()
    for _ in range(most_batches):
        found = delete_once()
        deleted.update(found)
        if all(number < batch for number in found.values()):
            break
    return dict(deleted)


def delete_oldest(
    unit: UnitOfWork,
    rows: type[Base] | TableClause,
    age: SQLColumnExpression[Any],
    is_over: ColumnElement[bool],
    batch: int,
) -> int:
    """Delete the oldest rows. An index by ``age`` finds them and their places do the rest, however large the table.

    A place names a row of one table alone: ``rows`` is never a partitioned one.
    """
    place: ColumnElement[Any] = literal_column("ctid")
    doomed = select(place).select_from(rows).where(is_over).order_by(age).limit(batch).scalar_subquery()
    statement = delete(rows).where(place == any_(func.array(doomed))).returning(age)
    return len(unit.session.execute(statement.execution_options(synchronize_session=False)).all())
