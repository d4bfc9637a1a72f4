"""Every GPU of the fleet, or of one tenant's holdings, in topology order: one plain query, read as tuples."""

from collections.abc import Collection
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, Text, bindparam, exists, func, select, text, type_coerce

from muster.db.base import UtcTimestamp
from muster.db.models import Cordon, Gpu, Node
from muster.db.queries.assignments import HOLDERS
from muster.db.queries.effective_standing import cordon_stands, effective_standing, has_own_cordon
from muster.domain.gpu.metrics import INDEX
from muster.domain.ids import TenantId

_UTILISATION: Final = INDEX["utilisation_percent"]
_TEMPERATURE: Final = INDEX["temperature_c"]

_NOW: Final = bindparam("now", type_=UtcTimestamp())
# Holders are few compared with GPUs: they are read once and joined by hash, never looked up a row at a time. So are
# cordons and overrides. The standing is read as its stored text, since our own type would cost more than the query.
_GPUS: Final = (
    select(
        Gpu.uuid,
        Gpu.node_id,
        type_coerce(effective_standing(_NOW), Text),
        Gpu.score,
        HOLDERS.c.tenant_id,
        has_own_cordon(_NOW),
    )
    .join(Node, Node.id == Gpu.node_id)
    .outerjoin(HOLDERS, HOLDERS.c.gpu_uuid == Gpu.uuid)
    .order_by(Node.rack, Node.name, Node.id, Gpu.slot_index)
)
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
_NODES: Final = select(
    Node.id,
    Node.name,
    func.coalesce(Node.rack, ""),
    type_coerce(Node.contact, Text),
    Node.is_simulated,
    exists().where(Cordon.node_id == Node.id, *cordon_stands(_NOW)),
).order_by(Node.rack, Node.name, Node.id)
_TENANTS: Final = text("SELECT id, name FROM tenants ORDER BY name")


def gpu_rows(connection: Connection, tenant_id: TenantId | None, now: datetime) -> list[Any]:
    """Return (uuid, node id, effective standing, score, tenant id, has a cordon of its own) for each GPU."""
    query = _GPUS if tenant_id is None else _GPUS.where(HOLDERS.c.tenant_id == tenant_id)
    return list(connection.execute(query, {"now": now}))


def reading_rows(connection: Connection, node_ids: Collection[str] | None) -> list[Any]:
    """Return the packed readings of each reporting node; ``node_ids`` None: of all.

    A row has its GPUs' uuids, joined, their utilisation in percent, their °C and whether they are lost.
    """
    wanted = None if node_ids is None else sorted(node_ids)
    return list(connection.execute(_READINGS, {"node_ids": wanted}))


def node_rows(connection: Connection, now: datetime) -> list[Any]:
    """Return (id, name, rack, contact, is simulated, is cordoned) for each node, in the GPUs' order."""
    return list(connection.execute(_NODES, {"now": now}))


def tenant_rows(connection: Connection) -> list[Any]:
    return list(connection.execute(_TENANTS))
