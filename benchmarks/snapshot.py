"""All that one cycle of the scheduler is asked, from PostgreSQL to arrays: 100,000 GPUs, of which gangs hold 40,000.

Asked in a process of its own, whose memory is told too. By the CPU time of that process, and its backend's beside it.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import psutil
from sqlalchemy import text, update

from benchmarks.commit import place_by_hosts, submit
from benchmarks.console_stage import analyse, enrol
from benchmarks.figures import Figure
from muster.db import migrate
from muster.db.engine import NO_LIMITS, make_engine
from muster.db.models import Gpu, Node, Tenant
from muster.domain.ids import TenantId
from muster.domain.policy import Policy
from muster.domain.states import Contact, Standing
from muster.embedded.bootstrap import bootstrap
from muster.embedded.postgres import PostgresServer
from muster.identity import new_id
from muster.services.scheduling import question
from muster.services.unit_of_work import UnitOfWorkFactory
from scheduler.topology import FleetState

NUM_GPUS = 100_000
NUM_GANGS = 312
NODES_A_GANG = 16
NUM_WAITING = 100
TIMES = 7
MOVES = (
    (Standing.SUSPECT, Standing.HEALTHY),
    (Standing.UNPROVEN, Standing.PROBATION),
    (Standing.PROBATION, Standing.HEALTHY),
)


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="muster-snapshot-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        postgres = PostgresServer(folder / "postgres", durable=False)
        postgres.start()
        try:
            migrate.upgrade(postgres.url())
            _fill(postgres.url(), folder)
            command = [sys.executable, "-m", "benchmarks.snapshot", postgres.url()]
            told = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)  # noqa: S603
        finally:
            postgres.stop()
    peers = {name: told[name] for name in ("first ms", "PostgreSQL ms", "by the clock ms", "to arrays ms", "gangs")}
    return [
        Figure("state of 100,000 GPUs from the store, CPU p50", told["ms"], "ms", 400.0, peers=peers),
        Figure("memory of a scheduler of 100,000 GPUs", told["MB"], "MB", 300.0),
    ]


def _fill(url: str, folder: Path) -> None:
    engine = make_engine(url, limits=NO_LIMITS)
    units = UnitOfWorkFactory(engine)
    bootstrap(units, folder / "keys", policy=Policy(), policy_name="the benchmark")
    enrol(engine, NUM_GPUS)
    tenant = Tenant(id=TenantId(new_id("tenant")), name="bench", created_at=datetime.now(UTC))
    with engine.begin() as connection:
        connection.execute(text("SET LOCAL statement_timeout = 0"))
        for was, becomes in MOVES:
            connection.execute(update(Gpu).where(Gpu.standing == was).values(standing=becomes))
        connection.execute(update(Node).values(contact=Contact.LIVE))
        connection.execute(
            text("INSERT INTO tenants (id, name, created_at) VALUES (:id, 'bench', now())"), {"id": tenant.id}
        )
    analyse(engine)
    place_by_hosts(units, tenant.id, NUM_GANGS, NODES_A_GANG)
    submit(units, tenant.id, NUM_WAITING, {"nodes": 2, "gpus_per_node": 8})
    analyse(engine)
    engine.dispose()


def ask(url: str) -> dict[str, float]:
    """In this process: what a cycle costs. The first makes plans, compiles statements and knows no node yet: beside."""
    engine = make_engine(url, limits=NO_LIMITS)
    units = UnitOfWorkFactory(engine)
    own_ms, backend_ms, wall_ms, array_ms, num_gangs = [], [], [], [], 0
    for _ in range(TIMES):
        with units.read() as session:
            backend = psutil.Process(session.scalars(text("SELECT pg_backend_pid()")).one())
            before, own, wall = sum(backend.cpu_times()[:2]), time.process_time(), time.perf_counter()
            asked = question(session, units.clock())
            read = time.process_time()
        if asked is None or len(asked.gpus) != NUM_GPUS:
            message = "the snapshot of the benchmark is not the fleet that was filled"
            raise AssertionError(message)
        state = FleetState(asked.gpus, asked.policy)
        own_ms.append((time.process_time() - own) * 1000)
        array_ms.append((time.process_time() - read) * 1000)
        wall_ms.append((time.perf_counter() - wall) * 1000)
        backend_ms.append((sum(backend.cpu_times()[:2]) - before) * 1000)
        num_gangs = len(asked.workload.running)
        del asked, state
    return {
        "ms": statistics.median(own_ms[1:]),
        "first ms": own_ms[0],
        "PostgreSQL ms": statistics.median(backend_ms[1:]),
        "by the clock ms": statistics.median(wall_ms[1:]),
        "to arrays ms": statistics.median(array_ms[1:]),
        "gangs": float(num_gangs),
        "MB": psutil.Process().memory_info().rss / 1e6,
    }


if __name__ == "__main__":
    print(json.dumps(ask(sys.argv[1])))
