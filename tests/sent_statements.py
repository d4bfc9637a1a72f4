"""The statements that SQLAlchemy sends to a database, for tests that bound their number."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, event


@contextmanager
def statements_of(bind: Engine | Connection) -> Iterator[list[str]]:
    """Yield a list to which each statement is added that is sent meanwhile."""
    sent: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        sent.append(statement)

    event.listen(bind, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        event.remove(bind, "before_cursor_execute", note)
