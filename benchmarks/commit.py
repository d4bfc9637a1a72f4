"""A durable placement: one job's GPUs checked again, assigned and reported, in one transaction with fsync.

What a cycle reads once for its plan, the policy and the guarantees, is read before, as the scheduler's loop does.
It is measured by the wall clock in the least disturbed of some windows. The part that this process and its PostgreSQL
backend compute is scaled by the calibration loop. The rest, which is waiting for the disk, is scaled by the wait of the
bare rows in the same run.
"""

import statistics
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from sqlalchemy import Engine, select, text

from benchmarks import commit_baseline
from benchmarks.commit_baseline import Clock, Turn
from benchmarks.commit_fleet import GPUS, fill, submit
from benchmarks.figures import Basis, Figure, Groups
from benchmarks.sizes import Sizes
from benchmarks.unlimited import without_limits
from control.core.unit_of_work import UnitOfWorkFactory
from control.fleet.inventory import gpu_views
from control.placement.pending_jobs import waiting_jobs
from control.placement.placement import PLACE, place
from control.policy.policies import active_policy
from control.tenants.guarantees import Guarantees, guarantees_now
from local.postgres import PostgresServer
from muster.db import migrate
from muster.db.engine import make_engine
from muster.db.models import Gpu, Job, Tenant
from muster.domain.ids import GpuUuid, JobId, NodeId, TenantId
from muster.domain.policy.document import Policy
from muster.domain.principals import system_principal
from scheduler.planner import Placement, Plan, plan

BAR_MS, BARE_MS = 3.0, 0.91
"""Bar for the placement of 8 GPUs, and time of its bare rows on the machine on which the bar was set."""
LEAST_WAIT_MS: Final = 0.02
"""Least wait: a disk that reports a write without writing waits for nothing, which must not make ours seem slow."""
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
_SCHEDULER = system_principal("scheduler")


def _batched(costs: list["Cost"], window: int) -> list[list["Cost"]]:
    return [costs[start : start + window] for start in range(0, len(costs), window)]


def _median(values: list[float]) -> float:
    return statistics.median(values)


@dataclass(frozen=True, slots=True)
class Times:
    """Numbers of placements: ``warm`` uncounted ones, then windows of so many.

    From the sixth time on PostgreSQL keeps a plan, as on a connection of a scheduler that has run for a while.
    """

    warm: int
    window: int
    windows: int

    @property
    def all(self) -> int:
        return self.warm + self.window * self.windows


@dataclass(frozen=True, slots=True)
class Size:
    """Size of the benchmark. ``gangs``: hosts of a large gang, and the bar of its placement, in ms.

    ``history``: gangs of one host that have ended before: a placement writes into a table with a past.
    """

    nodes: int
    gangs: Mapping[int, float]
    small: Times
    large: Times
    history: int


SIZES: Final = Sizes(
    full=Size(512, {128: 12.0, 512: 40.0}, Times(30, 44, 5), Times(6, 7, 4), history=40_000),
    smallest=Size(16, {8: 12.0, 16: 40.0}, Times(1, 2, 2), Times(1, 1, 1), history=20),
)


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one placement, in ms, and of the bare rows of 8 GPUs right after it.

    They alternate, since the machine may be twice as fast a minute later.
    """

    ours: Turn
    own_cpu_ms: float
    backend_cpu_ms: float
    bare: Turn


@dataclass(frozen=True, slots=True)
class Planned:
    """What a cycle has read for its plan. ``backend``: the process of PostgreSQL that the commits then use."""

    policy: Policy
    guarantees: Guarantees
    backend: int

    @classmethod
    def under(cls, units: UnitOfWorkFactory) -> Self:
        with units.read() as session:
            backend = int(session.scalars(text("SELECT pg_backend_pid()")).one())
            return cls(active_policy(session), guarantees_now(session), backend)


def measure(size: Size) -> Groups:
    with tempfile.TemporaryDirectory(prefix="muster-commit-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        server = PostgresServer(folder / "postgres")
        server.start()
        try:
            migrate.upgrade(server.url())
            engine = make_engine(server.url())
            units = UnitOfWorkFactory(engine)
            with commit_baseline.bare_placements(
                server.dsn(), size.small.all + len(size.gangs) * size.large.all, GPUS
            ) as bare:
                small = _costs(units, bare, size)
                _remember(engine, size)
                large = {hosts: _large_costs(units, hosts, bare, size.large) for hosts in size.gangs}
            engine.dispose()
        finally:
            server.stop()
    waits = _median([cost.bare.waited_ms for cost in small]) / commit_baseline.REFERENCE_WAIT_MS
    yield [
        _figure(GPUS, small, size.small.window, BAR_MS, waits),
        _ratio_figure(small),
        *(_figure(hosts * GPUS, costs, size.large.window, size.gangs[hosts], waits) for hosts, costs in large.items()),
    ]


def _ratio_figure(costs: list[Cost]) -> Figure:
    p50_ms, bare_ms = _median([cost.ours.wall_ms for cost in costs]), _median([cost.bare.wall_ms for cost in costs])
    name = "durable placement: the same over the bare rows"
    return Figure(name, p50_ms / bare_ms, "×", BAR_MS / BARE_MS, peers={"bare rows ms": bare_ms}, basis=Basis.RATIO)


def _figure(gpus: int, costs: list[Cost], window: int, bar_ms: float, waits: float) -> Figure:
    """Return the figure by the clock in the calmest window. ``waits``: of the bare rows, in reference
    machine's waits.
    """
    wall_ms = [cost.ours.wall_ms for cost in costs]
    calmest = min(_batched(costs, window), key=lambda part: _median([cost.ours.wall_ms for cost in part]))
    raw_ms = _median([cost.ours.wall_ms for cost in calmest])
    computed_ms = min(raw_ms, _median([cost.ours.computed_ms for cost in calmest]))
    waited_ms = raw_ms - computed_ms
    peers = {
        "p50 of all": _median(wall_ms),
        "p95": sorted(wall_ms)[int(len(wall_ms) * 0.95)],
        "CPU here": statistics.mean(cost.own_cpu_ms for cost in costs),
        "CPU of PostgreSQL": statistics.mean(cost.backend_cpu_ms for cost in costs),
        "waited": waited_ms,
        "bare rows of 8": _median([cost.bare.wall_ms for cost in costs]),
        "these waited": _median([cost.bare.waited_ms for cost in costs]),
    }
    return Figure(
        f"durable placement of {gpus:,} GPUs, p50",
        computed_ms + waited_ms / max(waits, LEAST_WAIT_MS / commit_baseline.REFERENCE_WAIT_MS),
        "ms",
        bar_ms,
        peers=peers,
        basis=Basis.COMMITS,
        raw=raw_ms,
        computed=computed_ms,
    )


def _cost(units: UnitOfWorkFactory, placement: Placement, planned: Planned, bare: Callable[[], Turn]) -> Cost:
    clock = Clock(planned.backend)
    _commit(units, placement, planned)
    ours = clock.turn()
    return Cost(ours, clock.own_ms(), clock.backend_ms(), bare())


def _costs(units: UnitOfWorkFactory, bare: Callable[[], Turn], size: Size) -> list[Cost]:
    """Return the costs from the decision to its commit, one placement after another."""
    tenant_id = fill(units, size.nodes)
    submit(units, tenant_id, size.small.all, {"gpus_per_node": GPUS})
    placements = _decide(units, size.small.all).placements
    planned = Planned.under(units)
    return [_cost(units, placement, planned, bare) for placement in placements][size.small.warm :]


def _large_costs(units: UnitOfWorkFactory, num_hosts: int, bare: Callable[[], Turn], times: Times) -> list[Cost]:
    """Return the costs of one gang after another on the same hosts, which each leaves before the next comes."""
    jobs_of_size = _submit(units, times.all, {"nodes": num_hosts, "gpus_per_node": GPUS})
    with units.read() as session:
        versions = dict(session.execute(select(Job.id, Job.version).where(Job.id.in_(jobs_of_size))).tuples().all())
        rows = session.execute(select(Gpu.node_id, Gpu.uuid).order_by(Gpu.node_id, Gpu.slot_index)).all()
    uuids: dict[NodeId, list[GpuUuid]] = {}
    for node_id, uuid in rows:
        uuids.setdefault(node_id, []).append(uuid)
    parts = tuple((node_id, tuple(part)) for node_id, part in list(uuids.items())[:num_hosts])
    costs, planned = [], Planned.under(units)
    for job_id, version in versions.items():
        _end_all(units.engine)
        costs.append(_cost(units, Placement(job_id, version, parts), planned, bare))
    return costs[times.warm :]


def _remember(engine: Engine, size: Size) -> None:
    """Make past rows of GPUs alone, without triggers: the allocations that they name are not read here."""
    with without_limits(engine) as unlimited, unlimited.begin() as connection:
        connection.execute(text("SET LOCAL session_replication_role = replica"))
        connection.execute(_REMEMBER, {"history": size.history, "num_nodes": size.nodes})
    _tidy(engine)


def _end_all(engine: Engine) -> None:
    """Release all GPUs, as attempts that end do, and vacuum the table as autovacuum would."""
    with engine.begin() as connection:
        for statement in _END_ALL:
            connection.execute(text(statement))
    _tidy(engine)


def _tidy(engine: Engine) -> None:
    with without_limits(engine) as unlimited, unlimited.connect() as connection:
        alone = connection.execution_options(isolation_level="AUTOCOMMIT")
        alone.execute(text("VACUUM ANALYZE allocation_gpus"))


def _commit(units: UnitOfWorkFactory, placement: Placement, planned: Planned) -> None:
    with units.begin(_SCHEDULER, PLACE) as unit:
        place(unit, placement, planned.policy, planned_under=planned.guarantees)


def _decide(units: UnitOfWorkFactory, num_jobs: int) -> Plan:
    with units.read() as session:
        policy = active_policy(session)
        decided = plan(gpu_views(session, units.clock(), policy.health), waiting_jobs(session), policy)
    if len(decided.placements) != num_jobs:
        message = f"{len(decided.placements)} of {num_jobs} jobs were placed: {decided.waiting[:1]}"
        raise AssertionError(message)
    return decided


def place_by_hosts(units: UnitOfWorkFactory, tenant_id: TenantId, num_gangs: int, num_hosts: int) -> None:
    """Place gangs of so many whole hosts, one after another from the first host on, each committed."""
    gangs = submit(units, tenant_id, num_gangs, {"nodes": num_hosts, "gpus_per_node": GPUS})
    planned = Planned.under(units)
    with units.read() as session:
        versions = dict(session.execute(select(Job.id, Job.version).where(Job.id.in_(gangs))).tuples().all())
        rows = session.execute(select(Gpu.node_id, Gpu.uuid).order_by(Gpu.node_id, Gpu.slot_index)).all()
    hosts: dict[NodeId, list[GpuUuid]] = {}
    for node_id, uuid in rows:
        hosts.setdefault(node_id, []).append(uuid)
    parts = [(node_id, tuple(uuids)) for node_id, uuids in hosts.items()]
    for number, job_id in enumerate(gangs):
        on = tuple(parts[number * num_hosts : (number + 1) * num_hosts])
        _commit(units, Placement(job_id, versions[job_id], on), planned)


def _submit(units: UnitOfWorkFactory, num_jobs: int, shape: dict[str, int]) -> list[JobId]:
    """Submit jobs for the only tenant."""
    with units.read() as session:
        tenant_id = session.scalars(select(Tenant.id)).one()
    return submit(units, tenant_id, num_jobs, shape)
