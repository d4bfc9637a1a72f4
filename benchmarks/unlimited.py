"""Sessions for rows and vacuums of a benchmark, whose statements may take longer than the product's may.

A statement's own ``SET statement_timeout`` does not suffice: the client's deadline of each exchange follows from the
limits with which the engine was made.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Engine

from muster.db.engine import NO_LIMITS, make_engine


@contextmanager
def without_limits(engine: Engine) -> Iterator[Engine]:
    """Yield an engine of the same database whose sessions have no limits."""
    unlimited = make_engine(engine.url, pool_size=1, max_overflow=0, limits=NO_LIMITS)
    try:
        yield unlimited
    finally:
        unlimited.dispose()
