"""Running attempts that use their GPUs little: without work, by their newest samples, and by the ledger."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import func, select, text, true

from control.core.unit_of_work import UnitOfWork
from control.core.visibility import visible_rows
from control.telemetry.node_readings import GpuReadings, newest_readings
from muster.db.models import Allocation, AllocationGpu, Attempt, Job
from muster.domain.amounts import MS_PER_HOUR
from muster.domain.gpu.metrics import INDEX
from muster.domain.ids import NodeId
from muster.domain.principals import Permission
from muster.domain.states import AttemptState

EXAMINED: Final = 200
"""Attempts that are read: those with a notice first, then those with the most GPUs."""
HOSTS_READ: Final = 500
FRESH: Final = timedelta(minutes=5)
DAY: Final = timedelta(days=1)
LOW_PERCENT: Final = 30.0
"""GPUs whose mean utilisation is less are used little; one below ``UNUSED_PERCENT`` is unused."""
UNUSED_PERCENT: Final = 5.0
IDLE_SHARE: Final = 0.1
"""From this share of its time in the last day on, and from an hour of one GPU on, idle time is worth advice."""
_METRIC: Final = INDEX["utilisation_percent"]
_TIME: Final = text("""
    SELECT job_id, coalesce(sum(num_ms) FILTER (WHERE account = 'idle'), 0)::bigint, sum(num_ms)::bigint
    FROM ledger_entries WHERE job_id = ANY(:jobs) AND hour >= :since GROUP BY job_id
""")


@dataclass(frozen=True, slots=True)
class LowUse:
    """An attempt that uses its GPUs little. ``idle_since``, ``stops_at``: of its notice of idleness.

    ``num_read``: its GPUs with a fresh sample; ``mean_percent``: their utilisation; None without one. ``num_unused``:
    of them. ``idle_ms``: of the ``assigned_ms`` of its job that the ledger has of the last day.
    """

    job_id: str
    job_name: str
    num_gpus: int
    idle_since: datetime | None
    stops_at: datetime | None
    num_read: int
    num_unused: int
    mean_percent: float | None
    idle_ms: int
    assigned_ms: int

    @property
    def idle_share(self) -> float | None:
        return self.idle_ms / self.assigned_ms if self.assigned_ms else None

    @property
    def is_low(self) -> bool:
        """Whether its GPUs are used little at this time."""
        return self.mean_percent is not None and (self.mean_percent < LOW_PERCENT or self.num_unused > 0)

    @property
    def is_often_idle(self) -> bool:
        return self.idle_ms >= MS_PER_HOUR and self.idle_ms >= IDLE_SHARE * self.assigned_ms


def little_used(unit: UnitOfWork, job_id: str | None = None) -> list[LowUse]:
    """Return the visible attempts that are worth advice: with a notice first, then those with the most GPUs.

    ``job_id``: of one job alone.
    """
    unit.principal.require(Permission.JOB_READ)
    rows = _running(unit, job_id)
    nodes = list(dict.fromkeys(NodeId(node) for row in rows for node in row.nodes))[:HOSTS_READ]
    readings = newest_readings(unit.session.connection(), nodes, since=unit.now - FRESH) if nodes else {}
    given = {"jobs": [row.job_id for row in rows], "since": unit.now - DAY}
    times = {job_id: (idle_ms, assigned_ms) for job_id, idle_ms, assigned_ms in unit.session.execute(_TIME, given)}
    found = [_use(row, readings, *times.get(row.job_id, (0, 0))) for row in rows]
    return [each for each in found if each.idle_since is not None or each.is_low or each.is_often_idle]


def _running(unit: UnitOfWork, job_id: str | None) -> Sequence[Any]:
    num_gpus = func.count(AllocationGpu.gpu_uuid)
    own = Attempt.job_id, Job.name, Attempt.idle_since, Attempt.idle_stop_at
    query = (
        select(
            *own,
            num_gpus.label("num_gpus"),
            func.array_agg(AllocationGpu.gpu_uuid).label("gpus"),
            func.array_agg(AllocationGpu.node_id.distinct()).label("nodes"),
        )
        .join(Allocation, Allocation.attempt_id == Attempt.id)
        .join(AllocationGpu, AllocationGpu.allocation_id == Allocation.id)
        .join(Job, Job.id == Attempt.job_id)
        .where(Attempt.state == AttemptState.RUNNING, visible_rows(unit.principal, Attempt.tenant_id))
        .where(true() if job_id is None else Attempt.job_id == job_id)
        .group_by(Attempt.id, *own)
        .order_by(Attempt.idle_since.nulls_last(), num_gpus.desc(), Attempt.job_id)
        .limit(EXAMINED)
    )
    return unit.session.execute(query).all()


def _use(row: Any, readings: Mapping[str, GpuReadings], idle_ms: int, assigned_ms: int) -> LowUse:
    known = [readings[gpu].values[_METRIC] for gpu in row.gpus if gpu in readings]
    values = [value for value in known if value is not None]
    return LowUse(
        row.job_id,
        row.name,
        row.num_gpus,
        row.idle_since,
        row.idle_stop_at,
        len(values),
        sum(value < UNUSED_PERCENT for value in values),
        sum(values) / len(values) if values else None,
        idle_ms,
        assigned_ms,
    )
