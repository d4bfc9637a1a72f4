"""Limits of the database for a machine that does ten things at once: what a test is not about must not run out."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sqlalchemy import Engine

from muster.db.engine import SessionLimits, make_engine

PATIENT: Final = SessionLimits(
    statement_ms=60_000, lock_ms=30_000, idle_in_transaction_ms=60_000, connect_s=60, pool_s=60
)


@contextmanager
def patient_engine(database_url: str, *, pool_size: int = 5, max_overflow: int = 5) -> Iterator[Engine]:
    """Yield an engine with these limits, and close its connections afterwards."""
    engine = make_engine(database_url, pool_size=pool_size, max_overflow=max_overflow, limits=PATIENT)
    try:
        yield engine
    finally:
        engine.dispose()
