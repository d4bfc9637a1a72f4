"""API reads compared with an empty FastAPI route under the same server, and lists whose tables grow a thousandfold."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Final

import httpx
import uvicorn
from fastapi import FastAPI
from sqlalchemy import text

from benchmarks.console_stage import Stage, analyse, cost_ms, costs_ms, request, shared_stage, stage, wait_for
from benchmarks.figures import Basis, Figure, Groups
from benchmarks.sizes import Sizes
from benchmarks.unlimited import without_limits
from muster.domain.job.spec import JobSpec
from muster.ports import free_port

EMPTY = "an empty route"
READS = ("/v1/whoami", "/v1/gpus/GPU-00000-0", "/v1/nodes/h100-00000", "/v1/jobs/{job}", "/v1/jobs?limit=1")
LISTS = (
    "/v1/events?limit=50",
    "/v1/jobs?limit=50",
    "/v1/jobs?limit=50&state=FAILED",
    "/v1/audit?limit=50",
    "/console/events",
    "/console/events?kind=job.submitted",
    "/console/jobs",
    "/console/audit",
)
NO_DEARER = 1.5
"""A table of a thousand times as many rows has an index one or two levels deeper, and no more."""

_EVENTS = text("""
INSERT INTO events (id, position, at, kind, subject_type, subject_id, tenant_id, payload)
SELECT 'evt_' || lpad(n::text, 26, '0'), n, now() - (:last - n) * interval '1 second',
    (ARRAY['job.submitted', 'job.active', 'attempt.placed', 'gpu.standing'])[1 + n % 4], 'job',
    'job_' || lpad((n % 5000)::text, 26, '0'), CASE WHEN n % 3 = 0 THEN (SELECT min(id) FROM tenants) END, '{}'
FROM generate_series(CAST(:first AS int), CAST(:last AS int)) AS n
""")
_JOBS = text("""
INSERT INTO jobs (id, tenant_id, name, tier, state, state_reason, spec, submitted_by, created_at, updated_at,
    finished_at, restarts_used, launch_failures, version)
SELECT 'job_' || lpad(n::text, 26, '0'), (SELECT min(id) FROM tenants), 'train-' || n, 'on_demand',
    CASE WHEN n % 10 = 0 THEN 'FAILED' ELSE 'SUCCEEDED' END, '', CAST(:spec AS jsonb), 'key:demo',
    now() - (:last - n) * interval '1 second', now(), now(), 0, 0, 1
FROM generate_series(CAST(:first AS int), CAST(:last AS int)) AS n
""")
_AUDIT = text("""
INSERT INTO audit_entries (id, at, actor, role, action, subject_type, subject_id, detail)
SELECT 'aud_' || lpad(n::text, 26, '0'), now(), 'key:demo', 'operator', 'job.submit', 'job', 'job', '{}'
FROM generate_series(CAST(:first AS int), CAST(:last AS int)) AS n
""")
SPEC = JobSpec.model_validate({"name": "train", "program": {"script": "/srv/train.py"}}).model_dump_json()


@dataclass(frozen=True, slots=True)
class Size:
    """Size: reads come ``times`` in a row in each of ``rounds``, lists ``list_times``. ``few``: rows before tables
    grow. ``shares_stage``: use the same control plane as ``console_pages``, which leaves its fleet as it was.
    """

    gpus: int
    rounds: int
    times: int
    list_times: int
    few: int
    many_events: int
    many_jobs: int
    shares_stage: bool


SIZES: Final = Sizes(
    full=Size(
        gpus=1_024,
        rounds=60,
        times=25,
        list_times=50,
        few=1_000,
        many_events=1_000_000,
        many_jobs=100_000,
        shares_stage=False,
    ),
    smallest=Size(gpus=64, rounds=1, times=1, list_times=1, few=100, many_events=500, many_jobs=300, shares_stage=True),
)


def measure(size: Size) -> Groups:
    with (shared_stage if size.shares_stage else stage)(size.gpus) as ours:
        _grow(ours, 1, size.few, size.few)
        yield _reads(ours, size)
        yield _lists(ours, size)


def _reads(ours: Stage, size: Size) -> list[Figure]:
    """Measure each read over the empty route of its own round; the median of the rounds counts."""
    with (
        empty_route() as (pid, port),
        httpx.Client(base_url=f"http://127.0.0.1:{port}") as theirs,
        httpx.Client(base_url=ours.url, headers=ours.by_key, timeout=60) as client,
    ):
        asked = {path: (ours.pid, request(client, path.format(job=f"job_{'1'.zfill(26)}"))) for path in READS}
        rounds = costs_ms({EMPTY: (pid, request(theirs, "/")), **asked}, rounds=size.rounds, times=size.times)
    return [_read_figure(path, rounds) for path in READS]


def _read_figure(path: str, rounds: list[dict[str, float]]) -> Figure:
    ratios = sorted(costs[path] / costs[EMPTY] for costs in rounds)
    peers = {
        "ours ms": median(costs[path] for costs in rounds),
        "empty route ms": median(costs[EMPTY] for costs in rounds),
        "least ×": ratios[0],
        "most ×": ratios[-1],
    }
    return Figure(f"CPU of {path} over an empty route's", median(ratios), "×", 3.0, peers=peers, basis=Basis.RATIO)


def _lists(ours: Stage, size: Size) -> list[Figure]:
    few = _costs(ours, size.list_times)
    _grow(ours, size.few + 1, size.many_events, size.many_jobs)
    many = _costs(ours, size.list_times)
    return [
        Figure(
            f"{path}: full tables over {size.few:,} rows",
            many[path] / few[path],
            "×",
            NO_DEARER,
            peers={"few ms": few[path], "many ms": many[path]},
            basis=Basis.RATIO,
        )
        for path in LISTS
    ]


def _costs(ours: Stage, times: int) -> dict[str, float]:
    """Return the CPU ms of API and PostgreSQL a request."""
    pids = (ours.pid, ours.postgres.pid)
    with httpx.Client(base_url=ours.url, headers={**ours.by_key, **ours.by_cookie}, timeout=600) as client:
        return {path: cost_ms(pids, request(client, path), times=times) for path in LISTS}


def _grow(ours: Stage, first: int, last_event: int, last_job: int) -> None:
    """Insert events, audit entries and jobs with these numbers."""
    with without_limits(ours.engine) as unlimited, unlimited.begin() as connection:
        connection.execute(text("SET LOCAL session_replication_role = replica"))  # only the sequencer gives positions
        connection.execute(text("DELETE FROM events WHERE position IS NULL"))
        for statement, last in ((_EVENTS, last_event), (_AUDIT, last_event)):
            connection.execute(statement, {"first": first, "last": last})
        connection.execute(_JOBS, {"first": first, "last": last_job, "spec": SPEC})
    analyse(ours.engine)


@contextmanager
def empty_route() -> Iterator[tuple[int, int]]:
    """Yield (process, port) of a FastAPI application that answers ``{}``, under our server and settings."""
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.console_reads", str(port)]
    with subprocess.Popen(command) as process:  # noqa: S603  # our own module
        try:
            wait_for(f"http://127.0.0.1:{port}/")
            yield process.pid, port
        finally:
            process.terminate()


def _serve_empty(port: int) -> None:
    app = FastAPI()

    @app.get("/")
    def empty() -> dict[str, str]:
        return {}

    uvicorn.run(
        app, host="127.0.0.1", port=port, loop="uvloop", http="httptools", access_log=False, log_level="warning"
    )


if __name__ == "__main__":
    _serve_empty(int(sys.argv[1]))
