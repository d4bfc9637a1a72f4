"""Retention: what one control worker deletes in a second, and what a whole day of output costs to drop.

Compared with what may be stored: one sequencer numbers all events, and an event without a number is never deleted.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from sqlalchemy import text

from benchmarks.console_stage import cpu_s
from benchmarks.figures import Basis, Figure, Groups
from benchmarks.sizes import Sizes
from control.core.sequencer import sequence_once
from control.core.unit_of_work import UnitOfWorkFactory
from control.policy.policies import ACTIVATE, store_policy
from control.system import log_days, retention
from local.postgres import PostgresServer
from muster.db import migrate
from muster.db.engine import NO_LIMITS, make_engine
from muster.domain.policy.document import Policy
from muster.domain.principals import Principal, Role, system_principal

_OPERATOR: Final = Principal(name="bench", role=Role.OPERATOR)
_FILL: Final = {
    "events": """
        INSERT INTO events (id, at, kind, subject_type, subject_id, tenant_id, payload)
        SELECT 'evt_' || md5(at::text), now() - interval '400 days' + at * interval '1 ms', 'checkpoint.verified',
            'attempt', 'att_' || md5((at % 1000)::text), 'ten_1', jsonb_build_object('step', at, 'job_id', 'job_1')
        FROM generate_series(1, :rows) AS made (at)
    """,
    "idempotency_keys": """
        INSERT INTO idempotency_keys (principal_scope, key, method_path, body_sha256, status, body, created_at)
        SELECT 'ten_1', md5(at::text), 'POST /v1/jobs', sha256(at::text::bytea), 201,
            jsonb_build_object('id', repeat(md5(at::text), 20)), now() - interval '400 days' + at * interval '1 ms'
        FROM generate_series(1, :rows) AS made (at)
    """,
}
_PIECES: Final = """
    INSERT INTO log_chunks (attempt_id, node_id, stream, byte_offset, tenant_id, job_id, content, received_at)
    SELECT 'att_' || md5((at % 1000)::text), 'node_1', (at % 8)::text, at * 100, 'ten_1', 'job_1',
        decode(repeat(md5(at::text), 16), 'hex'), CAST(:day AS timestamptz) + at * interval '1 ms'
    FROM generate_series(1, :rows) AS made (at)
"""


@dataclass(frozen=True, slots=True)
class Size:
    """``rows`` of a kind to delete; ``pieces`` of a day's output, and a tenth of them."""

    rows: int
    pieces: int


SIZES: Final = Sizes(full=Size(rows=200_000, pieces=1_000_000), smallest=Size(rows=4_000, pieces=2_000))


@dataclass(slots=True)
class _Clock:
    now: datetime

    def __call__(self) -> datetime:
        return self.now


@dataclass(frozen=True, slots=True)
class Stage:
    """A store, its server's process and the time of its services."""

    units: UnitOfWorkFactory
    postgres: PostgresServer
    clock: _Clock

    def cost(self, work: Callable[[], int]) -> tuple[int, float, float]:
        """Return what ``work`` returned, and seconds: by the clock, and of CPU here and in PostgreSQL."""
        cpu, began_s = cpu_s(self.postgres.pid) + time.process_time(), time.perf_counter()
        number = work()
        took_s = time.perf_counter() - began_s
        return number, took_s, cpu_s(self.postgres.pid) + time.process_time() - cpu

    def execute(self, statement: str, **given: object) -> int:
        with self.units.engine.begin() as connection:
            connection.execute(text("SET LOCAL session_replication_role = replica"))
            return connection.execute(text(statement), given).rowcount


def measure(size: Size) -> Groups:
    with tempfile.TemporaryDirectory(prefix="muster-retention-") as name, ExitStack() as stack:
        folder = Path(name)
        folder.chmod(0o711)
        postgres = PostgresServer(folder / "postgres")
        postgres.start()
        stack.callback(postgres.stop)
        migrate.upgrade(postgres.url())
        engine = make_engine(postgres.url(), limits=NO_LIMITS)
        stack.callback(engine.dispose)
        clock = _Clock(datetime.now(UTC))
        stage = Stage(UnitOfWorkFactory(engine, clock), postgres, clock)
        with stage.units.begin(_OPERATOR, ACTIVATE) as unit:
            store_policy(unit, Policy(), reason="the benchmark")
        yield list(_by_row(stage, size))
        yield list(_by_day(stage, size))


def _by_row(stage: Stage, size: Size) -> Iterator[Figure]:
    numbered_per_s = 0.0
    for kind, fill in _FILL.items():
        stored, _, store_cpu = stage.cost(lambda fill=fill: stage.execute(fill, rows=size.rows))  # type: ignore[misc]
        if kind == "events":
            numbered, took_s, _ = stage.cost(lambda: sum(iter(lambda: sequence_once(stage.units), 0)))
            numbered_per_s = numbered / took_s
        deleted, took_s, cpu = stage.cost(lambda kind=kind: _deleted(stage, kind))  # type: ignore[misc]
        peers = {"CPU µs a row, stored in bulk": store_cpu / stored * 1e6, "deleted a second": deleted / took_s}
        name = f"retention: CPU of app + PostgreSQL a row of {kind}"
        yield Figure(name, cpu / deleted * 1e6, "µs", 15.0, peers=peers, basis=Basis.CPU)
        if kind == "events":
            times, of = deleted / took_s / numbered_per_s, {"numbered a second": numbered_per_s}
            name = "retention: events deleted a second over the numbered ones of one sequencer"
            yield Figure(name, times, "×", 3.0, "higher", of, basis=Basis.RATIO)


def _deleted(stage: Stage, kind: str) -> int:
    return retention.sweep(stage.units, most_batches=10**9)[kind]


def _by_day(stage: Stage, size: Size) -> Iterator[Figure]:
    """Fill two days of output, one with ten times as many pieces as the other, and drop both when they are over."""
    stage.clock.now += timedelta(days=30)
    while _in_unit(stage, log_days.make_day):
        pass
    begin = stage.clock.now.replace(hour=0, minute=0, second=0, microsecond=0)
    costs = []
    for number, pieces in ((1, size.pieces // 10), (2, size.pieces)):
        stage.execute(_PIECES, day=begin + timedelta(days=number), rows=pieces)
    for number in (1, 2):
        stage.clock.now = begin + timedelta(days=31 + number, minutes=1)
        costs.append(stage.cost(lambda: _in_unit(stage, log_days.drop_days)))
    dropped = sum(number for number, _, _ in costs)
    (_, few_s, _), (_, many_s, many_cpu) = costs
    peers = {"a tenth of them ms": few_s * 1e3, "CPU ms": many_cpu * 1e3, "partitions dropped": float(dropped)}
    name = f"retention: a day of {size.pieces:,} pieces of output dropped"
    yield Figure(name, many_s * 1e3, "ms", 1000.0, peers=peers, basis=Basis.CLOCK)


def _in_unit(stage: Stage, work: Callable[..., int]) -> int:
    with stage.units.begin(system_principal("retention"), retention.ACTION, quiet=True) as unit:
        return work(unit)
