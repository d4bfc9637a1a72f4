"""The output of jobs by day: days are made before they begin, and go as a whole; no row is lost between them."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from control.core.unit_of_work import UnitOfWorkFactory
from control.jobs.job_logs import EVERYTHING, chunks_after, log_marks
from control.jobs.jobs import READ
from control.system import log_days
from control.system.log_days import DAYS_AHEAD, DEFAULT
from control.system.retention import sweep, sweep_once
from muster.domain.ids import JobId
from tests.control.conftest import SetClock
from tests.control.system.test_retention import before_each
from tests.fleet_factory import Fleet, make_fleet

DAY_S = 86_400
LOGS_DAYS = 30
PIECE = """
    INSERT INTO log_chunks (attempt_id, node_id, stream, byte_offset, tenant_id, job_id, content, received_at)
    VALUES ('a', 'n', '0', :offset, 't', :job_id, 'x', :at) RETURNING tableoid::regclass::text
"""
PIECES = """
    INSERT INTO log_chunks (attempt_id, node_id, stream, byte_offset, tenant_id, job_id, content, received_at)
    SELECT 'a', 'n', '0', :first + number, 't', :job_id, repeat('x', 100)::bytea, :at
    FROM generate_series(1, 10000) AS number
"""
DAYS = """
    SELECT relname FROM pg_class WHERE relispartition AND relkind = 'r' AND relname ~ '^log_chunks_[0-9]' ORDER BY 1
"""


def first_day(units: UnitOfWorkFactory) -> datetime:
    """Return the first day that has a partition of its own: a week after the tables were made."""
    until = "SELECT relname FROM pg_class WHERE relname ~ '^log_chunks_until_[0-9]+$'"
    with units.read() as session:
        name = str(session.scalar(text(until)))
    return datetime.strptime(name.rpartition("_")[2] + "+0000", "%Y%m%d%z")


class Logs:
    """A job's output, a week after the tables were made, so that each further day has a partition."""

    def __init__(self, units: UnitOfWorkFactory, clock: SetClock) -> None:
        self.units, self.clock = units, clock
        self.fleet: Fleet = make_fleet(units)
        clock.now = first_day(units)
        self.begin_day()
        self.job_id = self.fleet.submit()
        self._offset = 0

    def begin_day(self, number: int = 1) -> None:
        """Advance by days, to a minute after midnight."""
        self.clock.advance(number * DAY_S)
        midnight = self.clock.now.replace(hour=0, minute=1, second=0, microsecond=0)
        self.clock.advance((midnight - self.clock.now).total_seconds())

    def print(self) -> str:
        """Store a piece now, and return the name of its partition."""
        self._offset += 1
        given = {"offset": self._offset, "job_id": self.job_id, "at": self.clock.now}
        with self.units.engine.begin() as connection:
            return str(connection.scalar(text(PIECE), given))

    def days(self) -> list[str]:
        with self.units.read() as session:
            return list(session.scalars(text(DAYS)))

    def offsets(self) -> list[int]:
        """Return the pieces that a reader of the job finds."""
        with self.units.begin(self.fleet.tenant, READ, dry_run=True, quiet=True) as unit:
            found = chunks_after(unit, self.job_id, EVERYTHING, after=0, limit=100)
        return [one.byte_offset for one in found]

    def name(self, days: int = 0) -> str:
        return f"log_chunks_{self.clock.now + timedelta(days=days):%Y%m%d}"


@pytest.fixture
def logs(units: UnitOfWorkFactory, clock: SetClock) -> Logs:
    return Logs(units, clock)


def test_days_are_made_before_they_begin_and_output_is_in_its_own(logs: Logs) -> None:
    assert sweep_once(logs.units)["log_days_made"] == DAYS_AHEAD + 1
    assert logs.days() == [logs.name(number) for number in range(DAYS_AHEAD + 1)]
    assert [sweep_once(logs.units)["log_days_made"], logs.print()] == [0, logs.name()]
    logs.begin_day()
    assert logs.print() == logs.name(), "it was there before the keepers' next round"
    assert sweep_once(logs.units)["log_days_made"] == 1


def test_a_day_goes_as_a_whole_once_all_of_it_is_past_its_time(logs: Logs) -> None:
    deleted: list[str] = []

    def note(_cursor: Any, statement: str, _parameters: Any) -> None:
        if statement.startswith("DELETE FROM log_chunks") and "default" not in statement:
            deleted.append(statement)

    sweep_once(logs.units)
    first = logs.name()
    logs.print()
    logs.begin_day()
    logs.print()
    logs.begin_day(LOGS_DAYS - 1)
    sweep_once(logs.units)
    assert logs.offsets() == [1, 2], "of the first day, the last minutes are younger than 30 days"
    logs.begin_day()
    with before_each(logs.units, note):
        assert sweep_once(logs.units)["log_days"] == 1
    assert (logs.offsets(), first in logs.days(), deleted) == ([2], False, [])


def test_output_of_a_day_that_was_not_made_is_kept_and_goes_by_age(logs: Logs) -> None:
    """Such as after a week without any control worker. What it has of the day stays where it is."""
    assert logs.print() == DEFAULT
    unmade = logs.name()
    assert sweep_once(logs.units)["log_days_made"] == DAYS_AHEAD
    assert unmade not in logs.days()
    assert logs.print() == DEFAULT
    logs.begin_day()
    assert logs.print() == logs.name()
    assert logs.offsets() == [1, 2, 3]
    logs.begin_day(LOGS_DAYS)
    assert sweep_once(logs.units)["logs"] == 2
    assert logs.offsets() == [3]


def test_days_are_made_again_after_much_output_without_a_day(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large table of no day is set aside: a day is compared with no row, and each row goes with its day."""
    compared: list[str] = []

    def note(cursor: Any, statement: str, _parameters: Any) -> None:
        if "ATTACH PARTITION" in statement:
            cursor.execute("SELECT count(*) FROM log_chunks_default")
            compared.extend(row for row in cursor.fetchall() if row != (0,))

    monkeypatch.setattr(log_days, "LARGE", 1 << 20)
    many = text(PIECES)
    for day, first in ((0, 1), (1, 10_001), (9, 20_001)):
        given = {"first": first, "job_id": logs.job_id, "at": logs.clock.now + timedelta(days=day)}
        with logs.units.engine.begin() as connection:
            connection.execute(many, given)
    logs.begin_day()
    with before_each(logs.units, note):
        sweep(logs.units)
    assert compared == []
    assert logs.days() == [logs.name(number) for number in range(-1, DAYS_AHEAD + 2)]
    with logs.units.read() as session:
        found = session.execute(text("SELECT tableoid::regclass::text, count(*) FROM log_chunks GROUP BY 1 ORDER BY 1"))
        assert [tuple(row) for row in found] == [(logs.name(day), 10_000) for day in (-1, 0, 8)]
        assert session.scalar(text("SELECT to_regclass('log_chunks_aside')")) is None
        positions = text("SELECT count(DISTINCT position), count(*) FROM log_chunks")
        assert tuple(session.execute(positions).one()) == (30_000, 30_000)
    logs.begin_day()
    assert sweep_once(logs.units)["log_days_made"] == 0, "the clock ahead made that day"
    logs.begin_day()
    assert sweep_once(logs.units)["log_days_made"] == 1


def test_a_second_control_worker_leaves_the_days_to_the_first(logs: Logs) -> None:
    with logs.units.engine.begin() as connection:
        connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('muster log days'))"))
        assert sweep_once(logs.units)["log_days_made"] == 0
    assert sweep_once(logs.units)["log_days_made"] == DAYS_AHEAD + 1


def test_readers_of_a_job_read_no_day_before_it(logs: Logs) -> None:
    plans: list[str] = []

    def explain(cursor: Any, statement: str, parameters: Any) -> None:
        if "log_chunks" in statement:
            cursor.execute("EXPLAIN (ANALYZE, TIMING OFF) " + statement, parameters)
            plans.append("\n".join(line for (line,) in cursor.fetchall() if "never executed" not in line))

    for _ in range(4):
        sweep_once(logs.units)
        logs.begin_day()
    logs.job_id = JobId(logs.fleet.submit())
    logs.print()
    with before_each(logs.units, explain):
        assert logs.offsets() == [1]
        assert log_marks(logs.units, [logs.job_id])[logs.job_id].position > 0
    assert len(plans) == 2
    for plan in plans:
        assert logs.name() in plan
        assert logs.name(-2) not in plan
        assert "until" not in plan
