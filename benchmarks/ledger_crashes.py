"""Hours of the ledger whose workers die: at each step of closing and correcting, or stand still, or meet another one.

A schedule is the life of one hour of a small simulated fleet, from its first computation to its last. Each computation
may be killed at a failpoint (SIGKILL, in a process of its own), stand still until its lease is over and store then, or
meet a second worker. The server's clock steps back, reports come late, and the ledger is restored to an hour before.
``python -m benchmarks.ledger_crashes 1000`` plays so many schedules; `make soak` does.
"""

import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Final

from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from benchmarks.figures import Basis, Figure, Groups
from benchmarks.ledger_agreement import Agreement, agreement_of
from benchmarks.ledger_rows import Clock, MonthRows
from benchmarks.sizes import Sizes
from control.core.unit_of_work import UnitOfWorkFactory
from control.ledger import closing
from control.ledger.closing import LEASE, keep_ledger_once
from local.postgres import PostgresServer
from muster.db import migrate
from muster.db.engine import NO_LIMITS, make_engine
from muster.failpoints import arming
from simulator.month.history import Shape, play_month
from simulator.month.reports import LONGEST_H, Reports, silences_of

BEGIN: Final = datetime(2026, 10, 2, tzinfo=UTC)
SEED: Final = 7
POINTS: Final = (
    *(f"{action}.{place}_commit" for action in (closing.TAKE, closing.STORE) for place in ("before", "after")),
    *(closing.REMOVED, closing.ADDED, closing.SUMMED),
)
_BACK: Final = timedelta(minutes=40)
_LATEST: Final = timedelta(hours=LONGEST_H + 2)
"""What is reported later than this after its hour is reported within the backup too, or lost."""
_AGAIN: Final = text("""
UPDATE ledger_hours SET due_at = :now WHERE hour >= :since AND hour + interval '65 minutes' <= :now
    AND (closed_at IS NOT NULL OR due_at IS NOT NULL)
""")
_TABLES: Final = ("ledger_hours", "ledger_entries", "ledger_facts")
_NUM_NODES: Final = 2


@dataclass(frozen=True, slots=True)
class Size:
    schedules: int


SIZES: Final = Sizes(full=Size(200), smallest=Size(3))


class StoppedUnits(UnitOfWorkFactory):
    """Units of a worker whose process stops (SIGSTOP) once it has taken an hour, before it reads what it computes."""

    @contextmanager
    def read(self) -> Iterator[Session]:
        os.kill(os.getpid(), signal.SIGSTOP)
        with super().read() as session:
            yield session


@dataclass(slots=True)
class Crasher:
    """Computes hours as workers do that die. ``counts``: what happened how often, by name."""

    engine: Engine
    url: str
    clock: Clock
    rng: Random
    counts: Counter[str] = field(default_factory=Counter)
    backed_up_at: datetime = BEGIN

    def __call__(self, units: UnitOfWorkFactory) -> bool:
        drawn = self.rng.random()
        if drawn < 0.02:
            self._restore()
        elif drawn < 0.08:
            self._back_up()
        drawn = self.rng.random()
        if drawn < 0.35:
            return self._killed(units)
        if drawn < 0.39:
            return self._stands_still(units)
        if drawn < 0.43:
            return self._two_at_once()
        if drawn < 0.47:
            return self._steps_back(units)
        return keep_ledger_once(units)

    def _killed(self, units: UnitOfWorkFactory) -> bool:
        point = self.rng.choice(POINTS)
        status = self._wait(self._child(f"{point}=kill"))
        if os.WIFSIGNALED(status):
            self.counts[f"killed at {point}"] += 1
        return keep_ledger_once(units)

    def _stands_still(self, units: UnitOfWorkFactory) -> bool:
        """Let a worker store what it computed after its lease, when another one has the hour."""
        child = self._child("", StoppedUnits)
        status = os.waitpid(child, os.WUNTRACED)[1]
        if not os.WIFSTOPPED(status):
            return self._exit_code(status) == 1
        now, self.clock.now = self.clock.now, self.clock.now + LEASE + timedelta(minutes=1)
        is_done = keep_ledger_once(units)
        self.clock.now = now
        os.kill(child, signal.SIGCONT)
        self._wait(child)
        self.counts["stood still"] += 1
        return is_done

    def _two_at_once(self) -> bool:
        children = [self._child(""), self._child("")]
        self.counts["two at once"] += 1
        return 1 in [self._exit_code(self._wait(child)) for child in children]

    def _steps_back(self, units: UnitOfWorkFactory) -> bool:
        self.clock.now -= _BACK
        is_done = keep_ledger_once(units)
        self.clock.now += _BACK
        self.counts["clock stepped back"] += 1
        return is_done or keep_ledger_once(units)

    def _child(self, armed: str, factory: type[UnitOfWorkFactory] = UnitOfWorkFactory) -> int:
        """Start a process that computes an hour. It exits with 1 where there was one."""
        pid = os.fork()
        if pid:
            return pid
        try:
            self.engine.dispose(close=False)
            engine = make_engine(self.url, limits=NO_LIMITS)
            with arming(armed):
                os._exit(int(keep_ledger_once(factory(engine, self.clock))))
        finally:
            os._exit(9)

    def _wait(self, child: int) -> int:
        status = os.waitpid(child, 0)[1]
        self._exit_code(status)
        return status

    @staticmethod
    def _exit_code(status: int) -> int:
        code = os.waitstatus_to_exitcode(status)
        if code > 1:
            raise AssertionError(f"a worker ended with {code}")
        return code

    def _back_up(self) -> None:
        self.backed_up_at = self.clock.now
        with self.engine.begin() as connection:
            for table in _TABLES:
                connection.execute(text(f"DROP TABLE IF EXISTS old_{table}"))
                connection.execute(text(f"CREATE TABLE old_{table} AS SELECT * FROM {table}"))  # noqa: S608  # our own
            connection.execute(text("DROP TABLE IF EXISTS old_events"))
            connection.execute(text("CREATE TABLE old_events AS SELECT id FROM events"))
        self.counts["backups"] += 1

    def _restore(self) -> None:
        """Put the ledger back to its last backup, as a restore of the whole database does, if there is one."""
        if not self.counts["backups"]:
            return
        with self.engine.begin() as connection:
            for table in reversed(_TABLES):
                connection.execute(text(f"DELETE FROM {table}"))  # noqa: S608  # our own
            for table in _TABLES:
                always = " OVERRIDING SYSTEM VALUE" if table == "ledger_entries" else ""
                connection.execute(text(f"INSERT INTO {table}{always} SELECT * FROM old_{table}"))  # noqa: S608
            connection.execute(text("SET LOCAL session_replication_role = replica"))
            connection.execute(text("DELETE FROM events WHERE id NOT IN (SELECT id FROM old_events)"))
            # As `control.system.restores`: the hours of which a report may have come since are computed again.
            connection.execute(_AGAIN, {"now": self.clock.now, "since": self.backed_up_at - _LATEST})
        self.counts["restores"] += 1


@contextmanager
def _database() -> Iterator[tuple[Engine, str]]:
    with tempfile.TemporaryDirectory(prefix="muster-ledger-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        postgres = PostgresServer(folder / "postgres", durable=False)
        postgres.start()
        migrate.upgrade(postgres.url())
        engine = make_engine(postgres.url(), limits=NO_LIMITS)
        try:
            yield engine, postgres.url()
        finally:
            engine.dispose()
            postgres.stop()


def crashed(engine: Engine, url: str, num_schedules: int, seed: int) -> tuple[Agreement, Counter[str]]:
    """Play so many schedules, an hour each. Return how the ledger agrees in the end, and what happened."""
    shape = Shape(_NUM_NODES, num_schedules / 24, failures_a_day=2.0, repair_s=14_400.0)
    history = play_month(shape, seed)
    reports = Reports(history, silences_of(history, seed))
    rows = MonthRows(engine, reports, BEGIN)
    rows.fill()
    crasher = Crasher(engine, url, rows.clock, Random(f"crashes {seed}"))  # noqa: S311  # a simulation
    rows.play(crasher)
    _settle(rows)
    return agreement_of(engine, reports, BEGIN), crasher.counts


def _settle(rows: MonthRows) -> None:
    """Compute what the last deaths left, without another death."""
    for _ in range(4):
        rows.clock.now += timedelta(hours=1)
        while keep_ledger_once(rows.units):
            pass


def measure(size: Size) -> Groups:
    with _database() as (engine, url):
        found, counts = crashed(engine, url, size.schedules, SEED)
    for fault in found.faults:
        print(fault)
    state = found.state
    twice = found.num_counted_twice + found.num_facts_different + state["closed_twice"]
    peers = {
        "schedules": float(state["hours"]),
        "kills": float(sum(num for name, num in counts.items() if name.startswith("killed"))),
        "points of kills": float(sum(name.startswith("killed") for name in counts)),
        **{name: float(num) for name, num in counts.items() if not name.startswith("killed")},
        "corrections": float(state["corrections"]),
    }
    name = f"ledger: {state['hours']} schedules of crashes"
    yield [
        Figure(f"{name}: counted twice or not at all", twice, "", 0.0, peers=peers, basis=Basis.COUNT),
        Figure(f"{name}: GPU-hours unlike the truth", found.num_different, "", 0.0, basis=Basis.COUNT),
        Figure(f"{name}: hours not closed", state["open"], "", 0.0, basis=Basis.COUNT),
    ]


if __name__ == "__main__":
    for group in measure(Size(int(sys.argv[1]))):
        for figure in group:
            print(figure.name, figure.value, figure.peers)
            if not figure.holds:
                raise SystemExit(f"{figure.name}: {figure.value}, and the bar is {figure.bar}")
