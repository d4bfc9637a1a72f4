"""All reads of one cycle of the scheduler, from PostgreSQL to arrays: 100,000 GPUs, of which gangs have 40,000.

They run in a process of its own, whose memory is measured too. The figure is the CPU time of that process; its peers
have its backend's.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import psutil
from sqlalchemy import text, update

from benchmarks.commit import place_by_hosts
from benchmarks.commit_fleet import submit
from benchmarks.console_stage import analyse, enrol
from benchmarks.figures import Basis, Figure, Groups
from benchmarks.sizes import Sizes
from control.core.unit_of_work import UnitOfWorkFactory
from control.placement.scheduling import question
from local.bootstrap import bootstrap
from local.postgres import PostgresServer
from muster.db import migrate
from muster.db.engine import NO_LIMITS, make_engine
from muster.db.models import Gpu, Node, Tenant
from muster.domain.ids import TenantId
from muster.domain.policy.document import Policy
from muster.domain.states import Contact, Standing
from muster.identity import new_id
from scheduler.fleet.topology import FleetState

MOVES = (
    (Standing.SUSPECT, Standing.HEALTHY),
    (Standing.UNPROVEN, Standing.PROBATION),
    (Standing.PROBATION, Standing.HEALTHY),
)


@dataclass(frozen=True, slots=True)
class Size:
    """Size of the benchmark. ``gangs``: with GPUs, each ``nodes_a_gang`` hosts; ``times``: cycles, the first not
    counted.
    """

    gpus: int
    gangs: int
    nodes_a_gang: int
    waiting: int
    times: int


SIZES: Final = Sizes(
    full=Size(gpus=100_000, gangs=312, nodes_a_gang=16, waiting=100, times=7),
    smallest=Size(gpus=1_024, gangs=4, nodes_a_gang=4, waiting=3, times=2),
)


def measure(size: Size) -> Groups:
    with tempfile.TemporaryDirectory(prefix="muster-snapshot-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        postgres = PostgresServer(folder / "postgres", durable=False)
        postgres.start()
        try:
            migrate.upgrade(postgres.url())
            _fill(postgres.url(), folder, size)
            command = [sys.executable, "-m", "benchmarks.snapshot", postgres.url(), json.dumps(asdict(size))]
            told = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)  # noqa: S603
        finally:
            postgres.stop()
    peers = {name: told[name] for name in ("first ms", "PostgreSQL ms", "by the clock ms", "to arrays ms", "gangs")}
    name = f"state of {size.gpus:,} GPUs from the store, CPU p50"
    yield [
        Figure(name, told["ms"], "ms", 400.0, peers=peers, basis=Basis.CPU),
        Figure(f"memory of a scheduler of {size.gpus:,} GPUs", told["MB"], "MB", 300.0, basis=Basis.COUNT),
    ]


def _fill(url: str, folder: Path, size: Size) -> None:
    engine = make_engine(url, limits=NO_LIMITS)
    units = UnitOfWorkFactory(engine)
    bootstrap(units, folder / "keys", policy=Policy(), policy_name="the benchmark")
    enrol(engine, size.gpus)
    tenant = Tenant(id=TenantId(new_id("tenant")), name="bench", created_at=datetime.now(UTC))
    with engine.begin() as connection:
        for was, becomes in MOVES:
            connection.execute(update(Gpu).where(Gpu.standing == was).values(standing=becomes))
        connection.execute(update(Node).values(contact=Contact.LIVE))
        connection.execute(
            text("INSERT INTO tenants (id, name, created_at) VALUES (:id, 'bench', now())"), {"id": tenant.id}
        )
    analyse(engine)
    place_by_hosts(units, tenant.id, size.gangs, size.nodes_a_gang)
    submit(units, tenant.id, size.waiting, {"nodes": 2, "gpus_per_node": 8})
    analyse(engine)
    engine.dispose()


def ask(url: str, size: Size) -> dict[str, float]:
    """Measure a cycle in this process. The first, which makes plans and compiles statements, is a peer."""
    engine = make_engine(url, limits=NO_LIMITS)
    units = UnitOfWorkFactory(engine)
    own_ms, backend_ms, wall_ms, array_ms, num_gangs = [], [], [], [], 0
    for _ in range(size.times):
        with units.read() as session:
            backend = psutil.Process(session.scalars(text("SELECT pg_backend_pid()")).one())
            before, own, wall = sum(backend.cpu_times()[:2]), time.process_time(), time.perf_counter()
            asked = question(session, units.clock())
            read = time.process_time()
        if asked is None or len(asked.gpus) != size.gpus:
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
    print(json.dumps(ask(sys.argv[1], Size(**json.loads(sys.argv[2])))))
