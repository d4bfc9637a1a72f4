"""The newest readings of GPUs that run in gangs: a row a node, whatever the number of its GPUs."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import text
from sqlalchemy.orm import Session

from muster.domain.ids import AttemptId, GpuUuid, NodeId

_GANGS: Final = text("""
SELECT t.node_id, n.gpu_readings, array_agg(t.gpu_uuid), array_agg(l.attempt_id), array_agg(g.cohort_key)
FROM allocation_gpus AS t
JOIN allocations AS l ON l.id = t.allocation_id
JOIN attempts AS a ON a.id = l.attempt_id AND a.state = 'RUNNING'
JOIN gpus AS g ON g.uuid = t.gpu_uuid
JOIN node_latest AS n ON n.node_id = t.node_id AND n.received_at > :since
WHERE t.state = 'HELD'
GROUP BY t.node_id, n.gpu_readings
ORDER BY t.node_id
""")


@dataclass(frozen=True, slots=True)
class WorkingNode:
    """A node with running GPUs.

    ``readings``: packed (``control.telemetry.node_readings``). The other three: one for each running GPU.
    """

    node_id: NodeId
    readings: bytes
    gpu_uuids: list[GpuUuid]
    attempt_ids: list[AttemptId]
    cohort_keys: list[str]


def working_nodes(session: Session, since: datetime) -> list[WorkingNode]:
    """Return the nodes that reported after ``since``, with the GPUs of RUNNING attempts there."""
    rows = session.execute(_GANGS, {"since": since})
    return [WorkingNode(row[0], bytes(row[1]), *row[2:]) for row in rows]
