"""Statements are compiled once in a run, as they are once in our own processes, however many databases a run has.

SQLAlchemy keeps what it compiled by engine, and each test has its own: that was a third of what a test of the services
costs. Statements are executed by the dialect that compiled them: listen to an engine's events, not to its dialect's.
"""

from typing import Any, Final
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Dialect, Engine, event
from sqlalchemy.util import LRUCache

MOST_STATEMENTS: Final = 5_000
_compiled: Final[LRUCache[Any, Any]] = LRUCache(MOST_STATEMENTS)
_dialects: Final[dict[tuple[object, ...], Dialect]] = {}
_shared: Final[WeakKeyDictionary[Engine, Dialect]] = WeakKeyDictionary()
"""By engine, from its first connection on: by then its dialect has read the server's settings."""


def compile_once() -> None:
    """For every engine of this process from now on."""
    if not event.contains(Engine, "engine_connect", _share):
        event.listen(Engine, "engine_connect", _share)


def _share(connection: Connection) -> None:
    """What is compiled is kept by its dialect: that of the first engine stands for all that found the same server."""
    engine = connection.engine
    if engine not in _shared:
        _shared[engine] = _dialects.setdefault(_found(engine.dialect), engine.dialect)
    connection.dialect = _shared[engine]
    if "compiled_cache" not in engine.get_execution_options():
        engine.update_execution_options(compiled_cache=_compiled)
        connection.execution_options(compiled_cache=_compiled)


def _found(dialect: Dialect) -> tuple[object, ...]:
    """Return all that it was given or asked the server for: its plain values."""
    plain = [
        (name, value) for name, value in vars(dialect).items() if isinstance(value, bool | int | str | tuple | None)
    ]
    return (type(dialect), *sorted(plain))
