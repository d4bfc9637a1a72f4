"""What agents measured on the hosts of a stalled attempt in the last minutes, as part of the hosts' reports.

A host's report has the state of its ranks. Its agent has sent the rest: faults in the kernel's log, readings of the
attempt's GPUs, growth of network ports. Only GPUs of the attempt are read, and only since its placement, so that no
report shows another tenant's. An agent of release 0.1.0 sends the same; a host without an agent has none.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final

from sqlalchemy import or_, select

from control.attempts.attempts import LoadedAttempt
from control.core.unit_of_work import UnitOfWork
from control.evidence.rows import signal_of
from control.policy.policies import active_policy
from control.telemetry.node_readings import GpuReadings, newest_readings
from health.host_lines import MOST_LINES, OF_THE_LOG, fault_lines
from muster.db.models import Allocation, AllocationGpu, StoredSignal
from muster.domain.evidence.findings import EventKind
from muster.domain.gpu.metrics import value_of
from muster.domain.ids import AttemptId, GpuUuid, NodeId
from watch.lines.port_growth import RETRY_COUNTERS
from watch.reports import HostReport

RECENT: Final = timedelta(minutes=15)
MOST_SIGNALS: Final = 500
MOST_HOSTS: Final = 64
"""Hosts whose readings are read; the lines of all are."""
_FRESH: Final = timedelta(minutes=5)
_READINGS: Final = {
    "utilisation": "utilisation_percent",
    "tensor_active_percent": "tensor_active_percent",
    "power_w": "power_w",
    "temperature_c": "temperature_c",
    "sm_clock_mhz": "sm_clock_mhz",
}


def with_measured(
    unit: UnitOfWork, loaded: LoadedAttempt, reports: Mapping[NodeId, HostReport]
) -> dict[NodeId, HostReport]:
    """Return the reports with kernel log lines and readings of the last minutes; what they had before stays."""
    gpus = gpus_of(unit, loaded.attempt.id)
    policy = active_policy(unit.session).health
    signals: dict[NodeId, list[StoredSignal]] = {}
    for row in _signals(unit, loaded, list(reports), [gpu for of_node in gpus.values() for gpu in of_node]):
        signals.setdefault(row.node_id, []).append(row)
    known = newest_readings(unit.session.connection(), list(reports)[:MOST_HOSTS], since=unit.now - _FRESH)
    found: dict[NodeId, HostReport] = {}
    for node_id, report in reports.items():
        of_node = signals.get(node_id, [])
        readings = _readings_in(known, gpus.get(node_id, ()))
        lines = tuple(dict.fromkeys((*report.lines, *fault_lines(map(signal_of, of_node), policy))))[-MOST_LINES:]
        found[node_id] = replace(
            report, lines=lines, readings={**report.readings, **readings, **_port_readings(of_node)}
        )
    return found


def gpus_of(unit: UnitOfWork, attempt_id: AttemptId) -> dict[NodeId, list[GpuUuid]]:
    """Return the attempt's own GPUs by host."""
    query = (
        select(AllocationGpu.node_id, AllocationGpu.gpu_uuid)
        .join(Allocation, Allocation.id == AllocationGpu.allocation_id)
        .where(Allocation.attempt_id == attempt_id)
        .order_by(AllocationGpu.gpu_uuid)
    )
    found: dict[NodeId, list[GpuUuid]] = {}
    for node_id, gpu_uuid in unit.session.execute(query):
        found.setdefault(node_id, []).append(gpu_uuid)
    return found


def _signals(
    unit: UnitOfWork, loaded: LoadedAttempt, nodes: Sequence[NodeId], gpus: Sequence[GpuUuid]
) -> Sequence[StoredSignal]:
    since = max(loaded.attempt.placed_at, unit.now - RECENT)
    is_of_xid = StoredSignal.gpu_uuid.in_(gpus)
    query = select(StoredSignal).where(
        StoredSignal.node_id.in_(nodes),
        StoredSignal.received_at >= since,
        StoredSignal.kind.in_((*OF_THE_LOG, EventKind.PORT_RATES)),
        or_(is_of_xid, StoredSignal.gpu_uuid.is_(None) & (StoredSignal.kind != EventKind.XID)),
    )
    in_order = StoredSignal.at.desc(), StoredSignal.signal_id.desc()
    return unit.session.scalars(query.order_by(*in_order).limit(MOST_SIGNALS)).all()[::-1]


def _readings_in(known: Mapping[str, GpuReadings], gpus: Sequence[GpuUuid]) -> dict[str, float]:
    """Return the known readings of these GPUs by name."""
    found: dict[str, float] = {}
    for gpu in gpus:
        of_gpu = known.get(gpu)
        if of_gpu is None:
            continue
        for name, metric in _READINGS.items():
            if (value := value_of(of_gpu.values, metric)) is not None:
                found[f"gpu.{gpu}.{name}"] = value
    return found


def _port_readings(signals: Iterable[StoredSignal]) -> dict[str, float]:
    """Return by how much the retries and timeouts of each port grew in the last minutes."""
    found: dict[str, float] = {}
    for row in signals:
        if row.kind != EventKind.PORT_RATES:
            continue
        for counter in RETRY_COUNTERS:
            if isinstance(rise := row.values.get(counter), int | float) and rise > 0:
                name = f"port.{row.text[:64]}.{counter}"
                found[name] = found.get(name, 0.0) + rise
    return found
