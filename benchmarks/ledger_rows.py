"""A simulated month as the control plane's own rows in PostgreSQL, and its clock, which closes the ledger hour by hour.

What happened stands there from the beginning: hosts, GPUs, attempts, reclaims, evidence, waits. What hosts report comes
with the clock: steps when they are known, heartbeats, and the marker of what a host had to drop.
"""

import json
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Engine, text

from benchmarks.ledger_tables import MonthTables, Row, copy_rows
from control.core.late_reports import note_late
from control.core.unit_of_work import UnitOfWorkFactory
from control.ledger.closing import SETTLES, STORE, keep_ledger_once
from ledger.figures.hours import HOUR
from muster.domain.principals import system_principal
from simulator.month.facts import job_id, node_id
from simulator.month.history import HOUR_MS
from simulator.month.reports import Reports, Step

POLLED_AFTER: Final = timedelta(minutes=15)
"""The clock stops so long after each hour, when the steps that reach into the next one are known."""
_MORE_HOURS: Final = 28
"""So many hours after the month each of its hours had its last computation."""
LATE_EACH: Final = 8
LATE_EVERY_H: Final = 12
LATE_BY_MS: Final = 3 * HOUR_MS
"""One of ``LATE_EACH`` steps in one of so many hours is reported so late, when its hour is closed."""
_PRINCIPAL: Final = system_principal("ledger")
_HEARTBEATS: Final = text("UPDATE nodes SET last_heartbeat_at = :now WHERE NOT id = ANY(:silent)")
_WORDS: Final = text("""
UPDATE training_ranks SET updated_at = least(coalesce(own.ended_at, :now), :now) FROM attempts AS own
WHERE own.id = attempt_id AND NOT node_id = ANY(:silent) AND own.placed_at <= :now
    AND updated_at < least(coalesce(own.ended_at, :now), :now)
""")
_HOURS: Final = text("""
INSERT INTO ledger_hours (hour, computed_at, revision, num_gpus, capacity_ms, unexplained_ms, awaits, gaps, due_at)
SELECT hour, :begin, 0, 0, 0, 0, 0, '{}', CASE WHEN hour < :end THEN hour + :after END
FROM generate_series(CAST(:begin AS timestamptz), CAST(:end AS timestamptz) + :more, interval '1 hour') AS hour
""")
"""The hours of the month, and as many after it as its clock continues: these are never computed."""
_CLEAN: Final = "DELETE FROM ledger_hours; DELETE FROM node_latest; DELETE FROM gpus; DELETE FROM nodes"


class Clock:
    """A clock that is set."""

    def __init__(self, now: datetime) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now


class MonthRows:
    """``begin``: the moment 0 of the history; its hours are whole hours of UTC."""

    def __init__(self, engine: Engine, reports: Reports, begin: datetime) -> None:
        self.begin, self._reports, self._history, self._engine = begin, reports, reports.history, engine
        self.clock = Clock(begin)
        self.units = UnitOfWorkFactory(engine, self.clock)
        self._to_come = sorted(_steps(reports), key=lambda one: one[0], reverse=True)
        self._lost = sorted((one for one in reports.silences if one.is_lost), key=lambda one: -one.end_ms)

    def at(self, moment_ms: int) -> datetime:
        return self.begin + timedelta(milliseconds=moment_ms)

    def fill(self) -> None:
        """Store what happened, in place of the fleet that is there."""
        with self._engine.begin() as connection:
            connection.execute(text("SET LOCAL session_replication_role = replica"))
            for statement in _CLEAN.split(";"):
                connection.execute(text(statement))
            for table, columns, rows in MonthTables(self._reports, self.begin):
                copy_rows(connection, table, columns, rows)
            end = self.at(self._history.shape.num_hours * HOUR_MS)
            given = {"begin": self.begin, "end": end, "after": HOUR + SETTLES, "more": _MORE_HOURS * 2 * HOUR}
            connection.execute(_HOURS, given)
        with self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("ANALYZE"))

    def play(self, keep: Callable[[UnitOfWorkFactory], bool] = keep_ledger_once) -> int:
        """Let the month pass, and all of its hours be closed. Return how often an hour was computed.

        ``keep``: computes the oldest hour that is due, and returns whether there was one.
        """
        num = 0
        for hour in range(1, self._history.shape.num_hours + _MORE_HOURS):
            self.clock.now = self.at(hour * HOUR_MS) + POLLED_AFTER
            self._report()
            while keep(self.units):
                num += 1
        return num

    def _report(self) -> None:
        """Store what hosts report until now."""
        now_ms = (self.clock.now - self.begin) // timedelta(milliseconds=1)
        silent = [node_id(one.node) for one in self._reports.silences if one.start_ms <= now_ms < one.end_ms]
        come: list[Row] = []
        oldest_ms = now_ms
        while self._to_come and self._to_come[-1][0] <= now_ms:
            _, done_ms, row = self._to_come.pop()
            come.append((*row, self.at(done_ms)))
            oldest_ms = min(oldest_ms, done_ms)
        gaps = []
        while self._lost and self._lost[-1].end_ms <= now_ms:
            one = self._lost.pop()
            times = self.at(one.start_ms), self.at(one.end_ms), "spool_full", self.at(one.end_ms)
            gaps.append((node_id(one.node), "boot", one.start_ms, 0, "samples", 1, 2, 1, *times))
        with self.units.begin(_PRINCIPAL, STORE, quiet=True) as unit:
            connection = unit.session.connection()
            copy_rows(connection, "training_steps", "attempt_id, step, job_id, tenant_id, step_s, pace, at", come)
            copy_rows(connection, "telemetry_gaps", _GAPS, gaps)
            unit.session.execute(_HEARTBEATS, {"now": unit.now, "silent": silent})
            unit.session.execute(_WORDS, {"now": unit.now, "silent": silent})
            note_late(unit, self.at(oldest_ms), None)


def _steps(reports: Reports) -> Iterator[tuple[int, int, Row]]:
    """Yield each step that is ever reported: when that is, when it was done, and its row without that time."""
    for one in reports.history.attempts:
        whose = job_id(one.job), reports.history.jobs[one.job].tenant
        for step, known_ms in zip(reports.steps[one.attempt_id], reports.known_ms[one.attempt_id], strict=True):
            if known_ms is not None:
                row = (one.attempt_id, step.number, *whose, (step.end_ms - step.start_ms) / 1000, _pace(step))
                is_late = step.end_ms // HOUR_MS % LATE_EVERY_H == 1 and (one.job + step.number) % LATE_EACH == 0
                yield known_ms + (LATE_BY_MS if is_late else 0), step.end_ms, row


def _pace(step: Step) -> str | None:
    return json.dumps({"num_steps": 1, "checkpoint_s": step.save_ms / 1000}) if step.save_ms else None


_GAPS: Final = (
    "node_id, boot_id, report_seq, ordinal, priority, first_seq, last_seq, num_reports, from_at, until_at, why,"
    " received_at"
)
