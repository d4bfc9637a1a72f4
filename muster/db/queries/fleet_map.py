"""Every GPU of the fleet, or of one tenant's holdings, in topology order: one plain query, read as tuples."""

from collections.abc import Collection
from typing import Any, Final

from sqlalchemy import Connection, text

from muster.domain.gpu.metrics import INDEX
from muster.domain.ids import TenantId

_UTILISATION: Final = INDEX["utilisation_percent"]
_TEMPERATURE: Final = INDEX["temperature_c"]

# Cordons and holders are few compared with GPUs: each is read once and joined by hash, never looked up a row at a time.
_GPUS: Final = text("""
SELECT g.uuid, g.node_id, g.standing, g.score, h.tenant_id, c.gpu_uuid IS NOT NULL
FROM gpus g
JOIN nodes n ON n.id = g.node_id
LEFT JOIN (
    SELECT ag.gpu_uuid, a.tenant_id FROM allocation_gpus ag JOIN allocations a ON a.id = ag.allocation_id
    WHERE ag.state IN ('HELD', 'CLEANING')
) h ON h.gpu_uuid = g.uuid
LEFT JOIN (
    SELECT DISTINCT gpu_uuid FROM cordons
    WHERE gpu_uuid IS NOT NULL AND released_at IS NULL AND (until IS NULL OR until > now())
        AND (starts_at IS NULL OR starts_at <= now())
) c ON c.gpu_uuid = g.uuid
WHERE CAST(:tenant_id AS text) IS NULL OR h.tenant_id = :tenant_id
ORDER BY n.rack, n.name, n.id, g.slot_index
""")
# Cut out of what ``control.telemetry.node_readings`` packs: a node's GPUs side by side.
_READINGS: Final = text(f"""
SELECT convert_from(substring(gpu_readings FROM 5 + 8 * num * width + num), 'UTF8'),
       substring(gpu_readings FROM 5 + 8 * num * {_UTILISATION} FOR 8 * num),
       substring(gpu_readings FROM 5 + 8 * num * {_TEMPERATURE} FOR 8 * num),
       substring(gpu_readings FROM 5 + 8 * num * width FOR num)
FROM node_latest, LATERAL (
    SELECT get_byte(gpu_readings, 0) * 256 + get_byte(gpu_readings, 1) AS num,
           get_byte(gpu_readings, 2) * 256 + get_byte(gpu_readings, 3) AS width
) AS head
WHERE gpu_readings <> '' AND (CAST(:node_ids AS text[]) IS NULL OR node_id = ANY(:node_ids))
""")  # noqa: S608  # the positions of two metrics, from our own table
_NODES: Final = text("""
SELECT n.id, n.name, coalesce(n.rack, ''), n.contact, n.is_simulated,
       EXISTS (SELECT 1 FROM cordons c WHERE c.node_id = n.id AND c.released_at IS NULL
               AND (c.until IS NULL OR c.until > now()) AND (c.starts_at IS NULL OR c.starts_at <= now()))
FROM nodes n ORDER BY n.rack, n.name, n.id
""")
_TENANTS: Final = text("SELECT id, name FROM tenants ORDER BY name")


def gpu_rows(connection: Connection, tenant_id: TenantId | None) -> list[Any]:
    """Return (uuid, node id, standing, score, tenant id, is cordoned) for each GPU."""
    return list(connection.execute(_GPUS, {"tenant_id": tenant_id}))


def reading_rows(connection: Connection, node_ids: Collection[str] | None) -> list[Any]:
    """Return the packed readings of each reporting node; ``node_ids`` None: of all.

    A row has its GPUs' uuids, joined, their utilisation in percent, their °C and whether they are lost.
    """
    wanted = None if node_ids is None else sorted(node_ids)
    return list(connection.execute(_READINGS, {"node_ids": wanted}))


def node_rows(connection: Connection) -> list[Any]:
    """Return (id, name, rack, contact, is simulated, is cordoned) for each node, in the GPUs' order."""
    return list(connection.execute(_NODES))


def tenant_rows(connection: Connection) -> list[Any]:
    return list(connection.execute(_TENANTS))
