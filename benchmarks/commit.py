"""A durable placement: one job's GPUs checked again, held and told of, in one transaction with fsync.

By the wall clock in the least disturbed of some windows, and beside it what it costs this process and its PostgreSQL
backend: on a shared machine the clock mostly tells how busy the others are.
"""

import random
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import psutil
from sqlalchemy import Engine, select, text, update

from benchmarks import commit_baseline
from benchmarks.figures import Figure
from muster.db import migrate
from muster.db.engine import make_engine
from muster.db.models import Gpu, Job, Node, Tenant
from muster.domain.ids import GpuUuid, JobId, NodeId, TenantId
from muster.domain.job_spec import JobSpec
from muster.domain.policy import Policy
from muster.domain.principals import Principal, Role, system_principal
from muster.domain.states import Contact, Standing
from muster.embedded.postgres import PostgresServer
from muster.identity import new_id
from muster.services import fleet, jobs
from muster.services.fleet import GpuInventory, gpu_views
from muster.services.placement import PLACE, place
from muster.services.policies import active_policy
from muster.services.unit_of_work import UnitOfWorkFactory
from muster.services.waiting import waiting_jobs
from scheduler.planner import Placement, Plan, plan

NODES = 512
GPUS = 8
JOBS = 250
WARM = 30
WINDOW = 44
BAR_MS, BARE_MS = 3.0, 0.91
"""What the placement of 8 GPUs may take, and what the bare rows of it took on the machine on which that was set."""
GANGS = {128: 12.0, 512: 40.0}
"""Hosts of a large gang, and the bar of its placement, in ms."""
LARGE_TIMES = 34
LARGE_WARM = 6
"""From the sixth time on PostgreSQL keeps a plan, as on a connection of a scheduler that has run for a while."""
LARGE_WINDOW = 7
HISTORY = 40_000
"""Gangs of one host that have come and gone before: a placement writes into a table with a past."""
_REMEMBER = text("""
INSERT INTO allocation_gpus (allocation_id, gpu_uuid, node_id, node_rank, local_index, state)
SELECT 'alc_00' || lpad(number::text, 24, '0'), gpus.uuid, gpus.node_id, 0, gpus.slot_index, 'RELEASED'
FROM (SELECT id, row_number() OVER (ORDER BY id) - 1 AS place FROM nodes) AS host
JOIN generate_series(1, :history) AS number ON number * 7919 % :num_nodes = host.place
JOIN gpus ON gpus.node_id = host.id
ORDER BY number, gpus.slot_index
""")
_END_ALL = (
    "UPDATE allocation_gpus SET state = 'CLEANING' WHERE state = 'HELD'",
    "UPDATE allocation_gpus SET state = 'RELEASED' WHERE state = 'CLEANING'",
)
_OPERATOR = Principal(name="operator:bench", role=Role.OPERATOR)
_SCHEDULER = system_principal("scheduler")


def batched(values: list[float], size: int) -> list[list[float]]:
    return [values[start : start + size] for start in range(0, len(values), size)]


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one placement, in ms, and of the bare rows of 8 GPUs right after it.

    In turn, since the machine may be twice as fast a minute later.
    """

    wall_ms: float
    own_cpu_ms: float
    backend_cpu_ms: float
    bare_ms: float


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="muster-commit-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        server = PostgresServer(folder / "postgres")
        server.start()
        try:
            migrate.upgrade(server.url())
            engine = make_engine(server.url())
            units = UnitOfWorkFactory(engine)
            with commit_baseline.bare_placements(server.dsn(), JOBS + len(GANGS) * LARGE_TIMES, GPUS) as bare:
                small = _costs(units, bare)
                _remember(engine)
                large = {hosts: _large_costs(units, hosts, bare) for hosts in GANGS}
            engine.dispose()
        finally:
            server.stop()
    p50_ms = statistics.median(cost.wall_ms for cost in small)
    bare_ms = statistics.median(cost.bare_ms for cost in small)
    return [
        _figure(GPUS, small, WINDOW, BAR_MS),
        Figure("durable placement: the same over the bare rows", p50_ms / bare_ms, "×", BAR_MS / BARE_MS),
        *(_figure(hosts * GPUS, costs, LARGE_WINDOW, GANGS[hosts]) for hosts, costs in large.items()),
    ]


def _figure(gpus: int, costs: list[Cost], window: int, bar_ms: float) -> Figure:
    """By the clock in the calmest window. How fast the machine was just then is told by the bare rows beside it."""
    wall_ms = [cost.wall_ms for cost in costs]
    peers = {
        "p50 of all": statistics.median(wall_ms),
        "p95": statistics.quantiles(wall_ms, n=20)[18],
        "CPU here": statistics.mean(cost.own_cpu_ms for cost in costs),
        "CPU of PostgreSQL": statistics.mean(cost.backend_cpu_ms for cost in costs),
        "bare rows of 8": statistics.median(cost.bare_ms for cost in costs),
    }
    calmest_ms = min(statistics.median(part) for part in batched(wall_ms, window))
    return Figure(f"durable placement of {gpus:,} GPUs, p50", calmest_ms, "ms", bar_ms, peers=peers)


def _cost(
    units: UnitOfWorkFactory, placement: Placement, policy: Policy, backend: psutil.Process, bare: Callable[[], float]
) -> Cost:
    own_s, backend_s = time.process_time(), _cpu_s(backend)
    wall_ms = _commit(units, placement, policy)
    return Cost(wall_ms, (time.process_time() - own_s) * 1000, (_cpu_s(backend) - backend_s) * 1000, bare())


def _costs(units: UnitOfWorkFactory, bare: Callable[[], float]) -> list[Cost]:
    """From the decision to its commit, one placement after another."""
    _fill(units)
    placements = _decide(units).placements
    with units.read() as session:
        policy = active_policy(session)
    backend = _backend(units)
    return [_cost(units, placement, policy, backend, bare) for placement in placements][WARM:]


def _backend(units: UnitOfWorkFactory) -> psutil.Process:
    with units.read() as session:
        return psutil.Process(session.scalars(text("SELECT pg_backend_pid()")).one())


def _large_costs(units: UnitOfWorkFactory, num_hosts: int, bare: Callable[[], float]) -> list[Cost]:
    """One gang after another on the same hosts, which each leaves before the next comes."""
    jobs_of_size = _submit(units, LARGE_TIMES, {"nodes": num_hosts, "gpus_per_node": GPUS})
    with units.read() as session:
        policy = active_policy(session)
        versions = dict(session.execute(select(Job.id, Job.version).where(Job.id.in_(jobs_of_size))).tuples().all())
        rows = session.execute(select(Gpu.node_id, Gpu.uuid).order_by(Gpu.node_id, Gpu.slot_index)).all()
    uuids: dict[NodeId, list[GpuUuid]] = {}
    for node_id, uuid in rows:
        uuids.setdefault(node_id, []).append(uuid)
    parts = tuple((node_id, tuple(part)) for node_id, part in list(uuids.items())[:num_hosts])
    costs, backend = [], _backend(units)
    for job_id, version in versions.items():
        _end_all(units.engine)
        costs.append(_cost(units, Placement(job_id, version, parts), policy, backend, bare))
    return costs[LARGE_WARM:]


def _remember(engine: Engine) -> None:
    """A past of GPUs alone, as no trigger looks at: the allocations that they name are asked for nothing here."""
    with engine.begin() as connection:
        connection.execute(text("SET LOCAL statement_timeout = 0"))
        connection.execute(text("SET LOCAL session_replication_role = replica"))
        connection.execute(_REMEMBER, {"history": HISTORY, "num_nodes": NODES})
    _tidy(engine)


def _end_all(engine: Engine) -> None:
    """As attempts that end leave their GPUs, and as autovacuum leaves the table after a while."""
    with engine.begin() as connection:
        for statement in _END_ALL:
            connection.execute(text(statement))
    _tidy(engine)


def _tidy(engine: Engine) -> None:
    with engine.connect() as connection:
        alone = connection.execution_options(isolation_level="AUTOCOMMIT")
        alone.execute(text("SET statement_timeout = 0"))
        alone.execute(text("VACUUM ANALYZE allocation_gpus"))
        alone.execute(text("RESET statement_timeout"))


def _commit(units: UnitOfWorkFactory, placement: Placement, policy: Policy) -> float:
    started = time.perf_counter()
    with units.begin(_SCHEDULER, PLACE) as unit:
        place(unit, placement, policy)
    return (time.perf_counter() - started) * 1000


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _decide(units: UnitOfWorkFactory) -> Plan:
    with units.read() as session:
        policy = active_policy(session)
        decided = plan(gpu_views(session, units.clock(), policy.health), waiting_jobs(session), policy)
    if len(decided.placements) != JOBS:
        message = f"{len(decided.placements)} of {JOBS} jobs were placed: {decided.waiting[:1]}"
        raise AssertionError(message)
    return decided


def _fill(units: UnitOfWorkFactory) -> None:
    chance = random.Random(1)  # noqa: S311  # a seeded fleet must repeat
    for number in range(NODES):
        gpus = [_gpu(slot, chance) for slot in range(GPUS)]
        with units.begin(_OPERATOR, fleet.ENROL) as unit:
            fleet.enrol_node(unit, f"host-{number}", gpus, address="127.0.0.1", rack=f"rack-{number // 16}")
    tenant_id = TenantId(new_id("tenant"))
    with units.begin(_OPERATOR, fleet.ENROL) as unit:
        for standing in (Standing.PROBATION, Standing.HEALTHY):
            unit.session.execute(update(Gpu).values(standing=standing))
        unit.session.execute(update(Node).values(contact=Contact.LIVE))
        unit.session.add(Tenant(id=tenant_id, name="bench", created_at=unit.now))
        unit.audit("tenant.create", "tenant", tenant_id)
    _submit(units, JOBS, {"gpus_per_node": GPUS})


def place_by_hosts(units: UnitOfWorkFactory, tenant_id: TenantId, num_gangs: int, num_hosts: int) -> None:
    """Gangs of so many whole hosts, one after another from the first host on, each committed."""
    gangs = submit(units, tenant_id, num_gangs, {"nodes": num_hosts, "gpus_per_node": GPUS})
    with units.read() as session:
        policy = active_policy(session)
        versions = dict(session.execute(select(Job.id, Job.version).where(Job.id.in_(gangs))).tuples().all())
        rows = session.execute(select(Gpu.node_id, Gpu.uuid).order_by(Gpu.node_id, Gpu.slot_index)).all()
    hosts: dict[NodeId, list[GpuUuid]] = {}
    for node_id, uuid in rows:
        hosts.setdefault(node_id, []).append(uuid)
    parts = [(node_id, tuple(uuids)) for node_id, uuids in hosts.items()]
    for number, job_id in enumerate(gangs):
        on = tuple(parts[number * num_hosts : (number + 1) * num_hosts])
        _commit(units, Placement(job_id, versions[job_id], on), policy)


def _submit(units: UnitOfWorkFactory, num_jobs: int, shape: dict[str, int]) -> list[JobId]:
    """For the one tenant there is."""
    with units.read() as session:
        tenant_id = session.scalars(select(Tenant.id)).one()
    return submit(units, tenant_id, num_jobs, shape)


def submit(units: UnitOfWorkFactory, tenant_id: TenantId, num_jobs: int, shape: dict[str, int]) -> list[JobId]:
    tenant = Principal(name="member", role=Role.TENANT_MEMBER, tenant_id=tenant_id)
    spec = JobSpec.model_validate(
        {"name": "bench", "program": {"script": "/srv/train.py"}, "shape": shape}, strict=False
    )
    ids = []
    for _ in range(num_jobs):
        with units.begin(tenant, jobs.SUBMIT) as unit:
            ids.append(jobs.submit(unit, spec).id)
    return ids


def _gpu(slot: int, chance: random.Random) -> GpuInventory:
    """Under a UUID as long and as scattered as NVIDIA's."""
    return GpuInventory(
        uuid=GpuUuid(f"GPU-{UUID(int=chance.getrandbits(128))}"),
        slot_index=slot,
        model="H100",
        memory_bytes=80 << 30,
        compute_capability="9.0",
        driver_version="580",
    )
