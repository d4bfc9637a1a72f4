"""The engine: psycopg 3, a pool that looks before it lends, and limits that hold in every session."""

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import URL, Engine, create_engine, event, make_url

from muster.db.pipeline.pg_pipeline import Connection
from muster.db.pool_checks import check_before_lending


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """The limits of a statement, a wait for a lock and an idle transaction, in milliseconds. 0: no limit.

    ``connect_s`` and ``pool_s``: how long to wait for a new connection, and for a free one of the pool.
    """

    statement_ms: int = 5_000
    lock_ms: int = 2_000
    idle_in_transaction_ms: int = 10_000
    connect_s: int = 2
    pool_s: int = 2


DEFAULT_LIMITS: Final = SessionLimits()
NO_LIMITS: Final = SessionLimits(statement_ms=0, lock_ms=0, idle_in_transaction_ms=0)


def driver_url(url: str | URL) -> URL:
    """``postgresql://…`` or ``postgres://…`` as SQLAlchemy needs it for psycopg 3."""
    parsed = make_url(url)
    if parsed.drivername in {"postgres", "postgresql", "postgresql+psycopg"}:
        return parsed.set(drivername="postgresql+psycopg")
    raise ValueError(f"a database URL begins with postgresql://, not {parsed.drivername}://")


def make_engine(
    url: str | URL,
    *,
    application_name: str = "muster",
    pool_size: int = 5,
    max_overflow: int = 5,
    limits: SessionLimits = DEFAULT_LIMITS,
) -> Engine:
    """Return an engine whose sessions run in UTC under ``limits``.

    Its sessions show ``application_name`` in pg_stat_activity.
    """
    settings = {
        "timezone": "UTC",
        "statement_timeout": limits.statement_ms,
        "lock_timeout": limits.lock_ms,
        "idle_in_transaction_session_timeout": limits.idle_in_transaction_ms,
    }
    engine = create_engine(
        driver_url(url),
        pool_size=pool_size,
        max_overflow=max_overflow,
        pool_timeout=limits.pool_s,
        pool_reset_on_return=None,  # lending.py does, where there is something to end
        connect_args={
            "application_name": application_name,
            "connect_timeout": limits.connect_s,
            "options": " ".join(f"-c {name}={value}" for name, value in settings.items()),
        },
    )
    event.listen(engine, "do_connect", _connect)
    check_before_lending(engine)
    return engine


def _connect(_dialect: Any, _record: Any, arguments: list[Any], named: dict[str, Any]) -> Connection:
    return Connection.connect(*arguments, **named)
