"""A durable placement: one job's 8 GPUs checked again, held, audited and told of, in one transaction with fsync."""

import statistics
import tempfile
import time
from pathlib import Path

from sqlalchemy import update

from benchmarks.figures import Figure
from muster.db import migrate
from muster.db.engine import make_engine
from muster.db.models import Gpu, Node, Tenant
from muster.domain.ids import GpuUuid, TenantId
from muster.domain.job_spec import JobSpec
from muster.domain.principals import Principal, Role, system_principal
from muster.domain.states import Contact, Standing
from muster.embedded.postgres import PostgresServer
from muster.identity import new_id
from muster.services import fleet, jobs
from muster.services.fleet import GpuInventory, gpu_views
from muster.services.placement import PLACE, place, waiting_jobs
from muster.services.policies import active_policy
from muster.services.unit_of_work import UnitOfWorkFactory
from scheduler.planner import Plan, plan

NODES = 260
GPUS = 8
JOBS = 250
WARM = 30
_OPERATOR = Principal(name="operator:bench", role=Role.OPERATOR)


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="muster-commit-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        server = PostgresServer(folder / "postgres")
        server.start()
        try:
            migrate.upgrade(server.url())
            engine = make_engine(server.url())
            times_ms = _times_ms(UnitOfWorkFactory(engine))
            engine.dispose()
        finally:
            server.stop()
    quantiles = statistics.quantiles(times_ms[WARM:], n=20)
    peers = {"p95": quantiles[18], "mean": statistics.mean(times_ms[WARM:])}
    return [Figure("durable placement of 8 GPUs, p50", quantiles[9], "ms", 3.0, peers=peers)]


def _times_ms(units: UnitOfWorkFactory) -> list[float]:
    """From the decision to its commit, by the wall clock, one placement after another."""
    _fill(units)
    principal = system_principal("scheduler")
    decided = _decide(units)
    times_ms = []
    with units.read() as session:
        policy = active_policy(session)
    for placement in decided.placements:
        started = time.perf_counter()
        with units.begin(principal, PLACE) as unit:
            place(unit, placement, policy)
        times_ms.append((time.perf_counter() - started) * 1000)
    return times_ms


def _decide(units: UnitOfWorkFactory) -> Plan:
    with units.read() as session:
        policy = active_policy(session)
        decided = plan(gpu_views(session, units.clock()), waiting_jobs(session), policy)
    if len(decided.placements) != JOBS:
        message = f"{len(decided.placements)} of {JOBS} jobs were placed: {decided.waiting[:1]}"
        raise AssertionError(message)
    return decided


def _fill(units: UnitOfWorkFactory) -> None:
    for number in range(NODES):
        gpus = [_gpu(number, slot) for slot in range(GPUS)]
        with units.begin(_OPERATOR, fleet.ENROL) as unit:
            fleet.enrol_node(unit, f"host-{number}", gpus, address="127.0.0.1", rack=f"rack-{number // 16}")
    tenant_id = TenantId(new_id("tenant"))
    with units.begin(_OPERATOR, fleet.ENROL) as unit:
        for standing in (Standing.PROBATION, Standing.HEALTHY):
            unit.session.execute(update(Gpu).values(standing=standing))
        unit.session.execute(update(Node).values(contact=Contact.LIVE))
        unit.session.add(Tenant(id=tenant_id, name="bench", created_at=unit.now))
        unit.audit("tenant.create", "tenant", tenant_id)
    tenant = Principal(name="member", role=Role.TENANT_MEMBER, tenant_id=tenant_id)
    spec = JobSpec.model_validate(
        {"name": "bench", "program": {"script": "/srv/train.py"}, "shape": {"gpus_per_node": GPUS}}, strict=False
    )
    for _ in range(JOBS):
        with units.begin(tenant, jobs.SUBMIT) as unit:
            jobs.submit(unit, spec)


def _gpu(number: int, slot: int) -> GpuInventory:
    return GpuInventory(
        uuid=GpuUuid(f"GPU-{number}-{slot}"),
        slot_index=slot,
        model="H100",
        memory_bytes=80 << 30,
        compute_capability="9.0",
        driver_version="580",
    )
