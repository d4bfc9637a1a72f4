"""Statements of the ledger about a window: rows as plain tuples, times as whole milliseconds."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from muster.domain.times import to_time

Rows = Sequence[Any]


def in_ms(moment: str) -> str:
    """Return the SQL expression of a moment in milliseconds, as ``muster.domain.times.to_ms`` gives it."""
    return f"floor(extract(epoch FROM {moment}) * 1000)::bigint"


class Window:
    """Reads about the time from ``start_ms`` to before ``end_ms``, in one snapshot of the caller's."""

    def __init__(self, session: Session, start_ms: int, end_ms: int) -> None:
        self._session = session
        self.start_ms, self.end_ms = start_ms, end_ms
        self._given = {"since": to_time(start_ms), "until": to_time(end_ms)}

    def rows(self, statement: str, given: Mapping[str, Any] | None = None) -> Rows:
        """Return the rows of a statement, which may use ``:since`` and ``:until``."""
        return self._session.execute(text(statement), {**self._given, **(given or {})}).all()
