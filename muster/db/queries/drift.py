"""The attributes of GPUs and their hosts by their agents' newest reports, a row for equal GPUs of one node."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import text
from sqlalchemy.orm import Session

from muster.domain.ids import GpuUuid, NodeId

REPORTED_WITHIN: Final = timedelta(hours=3)
"""Agents report states once an hour: a state that was not repeated within this time is not known any more."""

_GPUS: Final = text("""
SELECT g.model, g.node_id, count(*) AS num_gpus, g.memory_bytes, g.compute_capability,
    COALESCE(NULLIF(l.readings ->> 'driver_version', ''), g.driver_version) AS driver_version, s.values AS state,
    COALESCE(s.text, '') AS text
FROM gpus AS g
LEFT JOIN node_latest AS l ON l.node_id = g.node_id
LEFT JOIN LATERAL (
    SELECT t.values, t.text FROM gpu_signals AS t
    WHERE t.gpu_uuid = g.uuid AND t.at > :since AND t.kind = 'gpu_state'
    ORDER BY t.at DESC LIMIT 1
) AS s ON TRUE
WHERE g.standing <> 'RETIRED'
GROUP BY g.model, g.node_id, g.memory_bytes, g.compute_capability, 6, s.values, s.text
""")
_REPORTED: Final = text("""
SELECT g.uuid, g.node_id, g.attributes, COALESCE(s.values, '{}'::jsonb) AS state, COALESCE(s.text, '') AS text
FROM gpus AS g
LEFT JOIN LATERAL (
    SELECT t.values, t.text FROM gpu_signals AS t
    WHERE t.gpu_uuid = g.uuid AND t.at > :since AND t.kind = 'gpu_state'
    ORDER BY t.at DESC LIMIT 1
) AS s ON TRUE
WHERE g.standing <> 'RETIRED'
ORDER BY g.uuid
""")
_PORTS: Final = text("""
SELECT DISTINCT ON (t.node_id, t.text) t.node_id, t.values FROM gpu_signals AS t
WHERE t.gpu_uuid IS NULL AND t.at > :since AND t.kind = 'port_state'
ORDER BY t.node_id, t.text, t.at DESC
""")


_HOSTS: Final = text("""
SELECT DISTINCT ON (t.node_id) t.node_id, t.text FROM gpu_signals AS t
WHERE t.gpu_uuid IS NULL AND t.at > :since AND t.kind = 'host_state'
ORDER BY t.node_id, t.at DESC
""")


@dataclass(frozen=True, slots=True)
class AlikeRow:
    """``state`` and ``text``: what the agent reported of them last, by ``domain.evidence.state_readings``; empty:
    nothing.
    """

    model: str
    node_id: NodeId
    num_gpus: int
    memory_bytes: int
    compute_capability: str
    driver_version: str
    state: dict[str, Any]
    text: str


@dataclass(frozen=True, slots=True)
class ReportedRow:
    """One GPU: ``attributes`` as its row has them, ``state`` and ``text`` as its agent reported them last."""

    uuid: GpuUuid
    node_id: NodeId
    attributes: dict[str, str]
    state: dict[str, Any]
    text: str


def reported_rows(session: Session, now: datetime) -> list[ReportedRow]:
    """Return the reported attributes of all GPUs that are not retired, by UUID."""
    rows = session.execute(_REPORTED, {"since": now - REPORTED_WITHIN})
    return [ReportedRow(row.uuid, row.node_id, row.attributes, row.state, row.text) for row in rows]


def alike_rows(session: Session, now: datetime) -> list[AlikeRow]:
    """``driver_version`` is what the node's agent reports; before its first report what the host claimed."""
    rows = session.execute(_GPUS, {"since": now - REPORTED_WITHIN})
    return [
        AlikeRow(
            model=row.model,
            node_id=row.node_id,
            num_gpus=row.num_gpus,
            memory_bytes=row.memory_bytes,
            compute_capability=row.compute_capability,
            driver_version=row.driver_version,
            state=row.state or {},
            text=row.text,
        )
        for row in rows
    ]


def ports(session: Session, now: datetime) -> Iterator[tuple[NodeId, dict[str, Any]]]:
    """Yield the newest state of each network port, by node and port."""
    for row in session.execute(_PORTS, {"since": now - REPORTED_WITHIN}):
        yield row.node_id, row.values


def host_texts(session: Session, now: datetime) -> dict[NodeId, str]:
    """Return each host's newest report of texts, by ``state_readings.HOST_READING_TEXTS``."""
    return {row.node_id: row.text for row in session.execute(_HOSTS, {"since": now - REPORTED_WITHIN})}
