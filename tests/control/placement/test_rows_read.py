"""A cycle, lists and heartbeats read as much of a job however long its program is, and of no job that has ended."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, text

from control.core.unit_of_work import UnitOfWorkFactory
from control.jobs import jobs
from control.jobs.listing import JobFilter, list_jobs
from control.jobs.queue_views import queue_of
from control.placement.queue_head import queue_head
from control.placement.scheduling import question
from control.policy.policies import active_policy
from control.tenants.job_limits import READ, limits_of
from tests.control.conftest import SetClock
from tests.control.reclaim.stage import Stage, make_stage
from tests.filled_once import filled_world


@pytest.fixture
def stage(units: UnitOfWorkFactory, clock: SetClock) -> Stage:
    """Two hosts of two GPUs, of which one has a job."""
    return filled_world(units, clock, "two hosts", lambda: make_stage(units, clock, num_hosts=2))


def cycle_reads(stage: Stage) -> object:
    with stage.units.read() as session:
        return question(session, stage.clock.now)


def head_reads(stage: Stage) -> object:
    with stage.units.read() as session, pytest.MonkeyPatch.context() as patch:
        patch.setattr("control.placement.queue_head.MAX_QUEUE", 2)
        return queue_head(session, active_policy(session))


def list_reads(stage: Stage) -> object:
    with stage.units.begin(stage.fleet.tenant, jobs.READ, quiet=True) as unit:
        return list_jobs(unit, JobFilter(), limit=50)


def queue_reads(stage: Stage) -> object:
    with stage.units.begin(stage.fleet.tenant, jobs.READ, quiet=True) as unit:
        return queue_of(unit, limit=50)


READERS: dict[str, Callable[[Stage], object]] = {
    "a cycle": cycle_reads,
    "a queue longer than a cycle takes": head_reads,
    "the list of jobs": list_reads,
    "the queue page": queue_reads,
    "heartbeats": lambda stage: [host.beat() for host in stage.hosts],
}


def fill(stage: Stage) -> None:
    """Two jobs run, three wait."""
    shape = {"nodes": 1, "gpus_per_node": 2}
    for _ in range(2):
        stage.run("on_demand", shape=shape)
    for _ in range(3):
        stage.submit("on_demand", shape=shape)


@contextmanager
def statements(engine: Engine) -> Iterator[list[tuple[str, Any, int]]]:
    """Yield each statement from here on with its parameters and the bytes of its result."""
    seen: list[tuple[str, Any, int]] = []

    def note(_: Connection, cursor: Any, statement: str, parameters: Any, *_rest: object) -> None:
        found = cursor.pgresult
        cells = ((row, column) for row in range(found.ntuples) for column in range(found.nfields))
        seen.append((statement, parameters, sum(len(found.get_value(*cell) or b"") for cell in cells)))

    event.listen(engine, "after_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(engine, "after_cursor_execute", note)


@pytest.mark.parametrize("reader", READERS)
def test_a_program_of_any_length_is_not_read(stage: Stage, engine: Engine, reader: str) -> None:
    def bytes_read() -> int:
        with statements(engine) as seen:
            READERS[reader](stage)
        return sum(num_bytes for _, _, num_bytes in seen)

    fill(stage)
    bytes_read()  # this process then knows the policy
    short = bytes_read()
    assert short > 500, "it reads jobs"
    lengthen(engine)
    assert abs(bytes_read() - short) < 100, "a heartbeat's number may have a digit more"


def lengthen(engine: Engine) -> None:
    """Give each job a program of 400 KB, and nothing else."""
    with engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE jobs SET spec = jsonb_set(spec, '{program,env}',"
                " (SELECT jsonb_object_agg('NAME_' || n, repeat(md5(n::text), 128)) FROM generate_series(1, 100) AS n))"
            )
        )
        assert (connection.scalar(text("SELECT min(length(spec::text)) FROM jobs")) or 0) > 400_000


def test_jobs_that_have_ended_are_not_scanned(stage: Stage, engine: Engine) -> None:
    fill(stage)
    cycle_reads(stage)
    before = rows_scanned(stage, engine)
    add_ended(engine, 20_000)
    after = rows_scanned(stage, engine)
    assert sum(before.values()) > 20, "it scans jobs"
    assert {name: after[name] - before.get(name, 0) for name in after if after[name] > before.get(name, 0) + 100} == {}


def rows_scanned(stage: Stage, engine: Engine) -> dict[str, int]:
    """Return the rows of each table that a cycle, a reconciliation and the limits read, with those left out."""
    with statements(engine) as seen:
        cycle_reads(stage)
        stage.reconcile()
        with stage.units.begin(stage.fleet.tenant, READ, quiet=True) as unit:
            limits_of(unit, stage.fleet.tenant_id)
    found: dict[str, int] = {}
    with engine.connect() as connection:
        for statement, parameters in [(one, given) for one, given, _ in seen if one.startswith("SELECT")]:
            explained = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", parameters)
            for name, num_rows in scans_in(explained.scalar_one()[0]["Plan"]):
                found[name] = found.get(name, 0) + num_rows
    return found


def scans_in(plan: dict[str, Any]) -> Iterator[tuple[str, int]]:
    if "Relation Name" in plan:
        per_loop = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)
        yield plan["Relation Name"], round(per_loop * plan["Actual Loops"])
    for part in plan.get("Plans", ()):
        yield from scans_in(part)


def add_ended(engine: Engine, number: int) -> None:
    """Add jobs of the tenant that ended a year ago, each with an attempt on a host and its GPUs."""
    with engine.begin() as connection:
        connection.execute(text("SET LOCAL session_replication_role = replica"))  # no triggers: the rows are copies
        for table, columns in COPIES.items():
            names = columns_of(connection, table)
            values = ", ".join(columns.get(name, f'"{name}"') for name in names)
            quoted = ", ".join(f'"{name}"' for name in names)
            source = f"(SELECT * FROM {table} LIMIT 1) AS one, generate_series(1, {number}) AS n"  # noqa: S608
            connection.execute(text(f"INSERT INTO {table} ({quoted}) SELECT {values} FROM {source}"))  # noqa: S608
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("ANALYZE"))


def columns_of(connection: Connection, table: str) -> list[str]:
    query = text(
        "SELECT attname FROM pg_attribute WHERE attrelid = CAST(:name AS regclass) AND attnum > 0"
        " AND NOT attisdropped AND attidentity = '' ORDER BY attnum"
    )
    return list(connection.scalars(query, {"name": table}))


_LONG_AGO = "now() - interval '400 days'"
COPIES = {
    "jobs": {"id": "'job-' || n", "state": "'SUCCEEDED'", "name": "'old-' || n % 50", "finished_at": _LONG_AGO},
    "attempts": {
        "id": "'att-' || n",
        "job_id": "'job-' || n",
        "fence": "1000000 + n",
        "state": "'ENDED'",
        "cause": "'succeeded'",
        "placed_at": _LONG_AGO,
        "ended_at": _LONG_AGO,
    },
    "attempt_hosts": {"attempt_id": "'att-' || n", "state": "'CLEAN'"},
    "allocations": {
        "id": "'alc-' || n",
        "attempt_id": "'att-' || n",
        "job_id": "'job-' || n",
        "state": "'RELEASED'",
        "created_at": _LONG_AGO,
        "released_at": _LONG_AGO,
    },
    "allocation_gpus": {"allocation_id": "'alc-' || n", "state": "'RELEASED'"},
}
"""By table, the columns of a copied row that differ."""


def test_a_row_of_release_0_1_0_is_planned_and_started_as_one_of_today(stage: Stage, engine: Engine) -> None:
    program = {"script": "/srv/train.py", "args": ["--steps", "8"], "venv": "/srv/venv"}
    stage.submit("on_demand", shape={"nodes": 1, "gpus_per_node": 2}, wall_time_s=60.0, program=program)
    planned = cycle_reads(stage)
    with stage.units.begin(stage.fleet.tenant, READ, quiet=True) as unit:
        admitted = limits_of(unit, stage.fleet.tenant_id)
    with engine.begin() as connection:
        connection.execute(text("UPDATE jobs SET request = NULL, labels = NULL, spec_bytes = NULL"))
    assert cycle_reads(stage) == planned
    with stage.units.begin(stage.fleet.tenant, READ, quiet=True) as unit:
        jobs_open, stored, *_ = limits_of(unit, stage.fleet.tenant_id)
    assert jobs_open == admitted[0]
    assert 0 < stored.used < 2 * admitted[1].used
    stage.cycle()
    host = stage.hosts[0]
    (unclaimed,) = host.beat().unclaimed
    order = host.claim(unclaimed.attempt_id, unclaimed.fence, capabilities=("venv",)).order
    assert order is not None
    assert (order.args, order.venv) == (("--steps", "8"), "/srv/venv")
