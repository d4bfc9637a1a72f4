"""JSON queries, which PostgreSQL answers with one JSON document: one statement and one row for any number of joins.

A query runs within a unit of work, or in one statement with the check of the caller's key
(``control.tenants.keys.Caller``). Its rows are records (``db.pipeline.records``), which belong to no session.
"""

from typing import Any, Final, Generic, TypeVar

import msgspec
from sqlalchemy.orm import Session

from muster.db.pipeline.batched import query_together
from muster.db.queries.keys import with_key

T = TypeVar("T")


class JsonQuery(Generic[T]):
    """A query that PostgreSQL answers with one JSON document.

    ``document``: an SQL expression in the driver's parameter style that gives JSON, or NULL where there is nothing to
    show. ``kind``: the type of the JSON. Run with a key, the expression may name the key's row, ``k``.
    """

    def __init__(self, document: str, kind: type[T]) -> None:
        self.by_key: Final = with_key(f"({document})::text")
        self._alone = f"SELECT ({document})::text AS answer"
        self._decoder = msgspec.json.Decoder(kind)

    def ask(self, session: Session, parameters: dict[str, Any]) -> T | None:
        """Run the query in the transaction of ``session``, which must have been flushed."""
        ((row,),) = query_together(session, (self._alone, parameters))
        return self.read(row.answer)

    def read(self, answer: str | None) -> T | None:
        return None if answer is None else self._decoder.decode(answer)
