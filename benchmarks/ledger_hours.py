"""What an hour of the ledger costs: CPU of the control worker and of PostgreSQL, to compute and close it, and again."""

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from sqlalchemy import text

from benchmarks.console_stage import cpu_s
from benchmarks.figures import Basis, Figure, Groups
from benchmarks.ledger_fleet import MadeHour, fill
from benchmarks.sizes import Sizes
from control.core.unit_of_work import UnitOfWorkFactory
from control.ledger.closing import keep_ledger_once
from local.postgres import PostgresServer
from muster.db import migrate
from muster.db.engine import NO_LIMITS, make_engine

BAR_S: Final = 20.0
_HOUR: Final = datetime(2026, 11, 21, 4, tzinfo=UTC)
_LATE: Final = text("""
INSERT INTO training_steps (attempt_id, step, job_id, tenant_id, loss, step_s, at)
SELECT attempt_id, 5000, min(job_id), min(tenant_id), 1, 3, CAST(:hour AS timestamptz) + interval '30 minutes 40 s'
FROM training_steps WHERE attempt_id LIKE '%0\\_1' GROUP BY attempt_id
""")


@dataclass(frozen=True, slots=True)
class Size:
    nodes: int


SIZES: Final = Sizes(full=Size(nodes=12_500), smallest=Size(nodes=40))


@dataclass(slots=True)
class _Clock:
    now: datetime

    def __call__(self) -> datetime:
        return self.now


def measure(size: Size) -> Groups:
    with tempfile.TemporaryDirectory(prefix="muster-ledger-") as name, ExitStack() as stack:
        folder = Path(name)
        folder.chmod(0o711)
        postgres = PostgresServer(folder / "postgres", durable=False)
        postgres.start()
        stack.callback(postgres.stop)
        migrate.upgrade(postgres.url())
        engine = make_engine(postgres.url(), limits=NO_LIMITS)
        stack.callback(engine.dispose)
        made = fill(engine, size.nodes, _HOUR)
        clock = _Clock(_HOUR + timedelta(minutes=66))
        units = UnitOfWorkFactory(engine, clock)
        with engine.begin() as connection:
            connection.execute(text("""
                INSERT INTO ledger_hours (hour, computed_at, revision, num_gpus, capacity_ms, unexplained_ms, awaits,
                    gaps, due_at)
                VALUES (:hour, :hour, 0, 0, 0, 0, 0, '{}', CAST(:hour AS timestamptz) + interval '65 minutes')
            """), {"hour": _HOUR})  # fmt: skip

        def cost(work: Callable[[], bool]) -> tuple[float, float]:
            cpu, own, began_s = cpu_s(postgres.pid), time.process_time(), time.perf_counter()
            if not work():
                raise AssertionError("no hour was due")
            own_s = time.process_time() - own
            return cpu_s(postgres.pid) - cpu + own_s, time.perf_counter() - began_s

        yield [_closing(units, made, *cost(lambda: keep_ledger_once(units)))]
        yield [_corrected(units, made, clock, lambda: cost(lambda: keep_ledger_once(units)))]


def _closing(units: UnitOfWorkFactory, made: MadeHour, cpu: float, took_s: float) -> Figure:
    (hour,) = units.ask("SELECT * FROM ledger_hours ORDER BY hour LIMIT 1", {})
    (stored,) = units.ask(
        "SELECT count(*) AS entries, sum(num_ms) AS num_ms FROM ledger_entries WHERE hour = %(hour)s",
        {"hour": made.hour},
    )
    (facts,) = units.ask("SELECT count(*) AS facts FROM ledger_facts WHERE span_s = 3600", {})
    if hour.closed_at is None or hour.unexplained_ms or int(stored.num_ms) != made.num_gpus * 3_600_000:
        raise AssertionError(f"the hour is not as it was made: {hour}")
    peers = {
        "clock s": took_s,
        "GPUs": float(made.num_gpus),
        "attempts": float(made.num_attempts),
        "steps": float(made.num_steps),
        "entries": float(stored.entries),
        "facts": float(facts.facts),
    }
    name = f"ledger: an hour of {made.num_gpus:,} GPUs closes, CPU of app + PostgreSQL"
    return Figure(name, cpu, "s", BAR_S, peers=peers, basis=Basis.CPU)


def _corrected(
    units: UnitOfWorkFactory, made: MadeHour, clock: _Clock, cost: Callable[[], tuple[float, float]]
) -> Figure:
    """Late steps of one attempt in ten: the hour is computed again, and has corrections."""
    with units.engine.begin() as connection:
        connection.execute(_LATE, {"hour": made.hour})
        connection.execute(text("UPDATE ledger_hours SET due_at = NULL WHERE hour > :hour"), {"hour": made.hour})
        connection.execute(text("UPDATE ledger_hours SET due_at = :now WHERE hour = :hour"), {
            "hour": made.hour, "now": clock.now
        })  # fmt: skip
    cpu, took_s = cost()
    (stored,) = units.ask(
        "SELECT count(*) AS entries, sum(num_ms) AS num_ms FROM ledger_entries WHERE revision = 1", {}
    )
    if not stored.entries or int(stored.num_ms) != 0:
        raise AssertionError("the late steps have made no correction, or one whose sum is not 0")
    peers = {"clock s": took_s, "correction entries": float(stored.entries)}
    name = f"ledger: an hour of {made.num_gpus:,} GPUs is corrected, CPU of app + PostgreSQL"
    return Figure(name, cpu, "s", None, peers=peers, basis=Basis.CPU)
