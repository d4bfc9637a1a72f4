"""Every GPU of the fleet, or of one tenant's holdings, in topology order: one plain query, read as tuples."""

from typing import Any, Final

from sqlalchemy import Connection, text

from muster.domain.ids import TenantId
from muster.domain.metrics import INDEX

_UTILISATION: Final = INDEX["utilisation_percent"] + 1
_TEMPERATURE: Final = INDEX["temperature_c"] + 1

# Cordons and holders are few beside GPUs: each is read once and joined by hash, never looked up a row at a time.
_GPUS: Final = text(f"""
SELECT g.node_id, g.standing, g.score, l.values[{_UTILISATION}], l.values[{_TEMPERATURE}], l.is_lost, h.tenant_id,
       c.gpu_uuid IS NOT NULL
FROM gpus g
JOIN nodes n ON n.id = g.node_id
LEFT JOIN gpu_latest l ON l.gpu_uuid = g.uuid
LEFT JOIN (
    SELECT ag.gpu_uuid, a.tenant_id FROM allocation_gpus ag JOIN allocations a ON a.id = ag.allocation_id
    WHERE ag.state IN ('HELD', 'CLEANING')
) h ON h.gpu_uuid = g.uuid
LEFT JOIN (
    SELECT DISTINCT gpu_uuid FROM cordons
    WHERE gpu_uuid IS NOT NULL AND released_at IS NULL AND (until IS NULL OR until > now())
) c ON c.gpu_uuid = g.uuid
WHERE CAST(:tenant_id AS text) IS NULL OR h.tenant_id = :tenant_id
ORDER BY n.rack, n.name, n.id, g.slot_index
""")  # noqa: S608  # the positions of two metrics, from our own table
_NODES: Final = text("""
SELECT n.id, n.name, coalesce(n.rack, ''), n.contact, n.is_simulated,
       EXISTS (SELECT 1 FROM cordons c WHERE c.node_id = n.id AND c.released_at IS NULL
               AND (c.until IS NULL OR c.until > now()))
FROM nodes n ORDER BY n.rack, n.name, n.id
""")
_TENANTS: Final = text("SELECT id, name FROM tenants ORDER BY name")


def gpu_rows(connection: Connection, tenant_id: TenantId | None) -> list[Any]:
    """(node id, standing, score, utilisation in percent, °C, is lost, tenant id, is cordoned) a GPU."""
    return list(connection.execute(_GPUS, {"tenant_id": tenant_id}))


def node_rows(connection: Connection) -> list[Any]:
    """(id, name, rack, contact, is simulated, is cordoned) a node, in the GPUs' order."""
    return list(connection.execute(_NODES))


def tenant_rows(connection: Connection) -> list[Any]:
    return list(connection.execute(_TENANTS))
