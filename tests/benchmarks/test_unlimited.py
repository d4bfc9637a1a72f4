"""Rows and vacuums of a benchmark run without the product's limits, on the server and at the client."""

from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

import benchmarks
from benchmarks.unlimited import without_limits
from muster.db.engine import SessionLimits, make_engine

LONG = text("SELECT count(*) FROM generate_series(1, 300000)")


def test_a_statement_that_takes_longer_than_a_limit_runs_without_limits(database_url: str) -> None:
    engine = make_engine(database_url, limits=SessionLimits(statement_ms=1))
    with pytest.raises(DBAPIError), engine.connect() as connection:
        connection.execute(LONG)
    with without_limits(engine) as unlimited, unlimited.connect() as connection:
        assert connection.scalar(LONG) == 300_000
        driver = connection.connection.driver_connection
        assert driver is not None
        assert driver.patience_s is None, "the client waits as long as the server works"
    engine.dispose()


def test_no_benchmark_lifts_the_servers_limit_alone() -> None:
    folder = Path(str(benchmarks.__file__)).parent
    lifting = {path.name for path in folder.glob("*.py") if "statement_timeout = 0" in path.read_text(encoding="utf-8")}
    assert lifting == set()
