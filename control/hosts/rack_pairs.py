"""The responders of probes by rack, and the results of probes between racks."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import ARRAY, String, bindparam, text
from sqlalchemy.orm import Session

from muster.domain.ids import NodeId

_ANSWERING: Final = """
FROM pair_probe_responders AS r
JOIN nodes AS n ON n.id = r.node_id
JOIN node_latest AS l ON l.node_id = r.node_id AND l.received_at > :contact_since
    AND COALESCE(l.boot_id = r.boot_id, TRUE)
"""
"""Responders in contact. A host that rebooted and has not asked since is left out: it may not answer."""
_RACKS: Final = text(f"""
SELECT COALESCE(n.rack, '') AS rack, array_agg(n.id ORDER BY n.id) AS nodes
{_ANSWERING}
WHERE r.told_at > :reported_since AND n.is_simulated = (SELECT m.is_simulated FROM nodes AS m WHERE m.id = :node_id)
GROUP BY 1
""")  # noqa: S608
_RESPONDERS: Final = text(f"""
SELECT n.id, r.session, n.address, r.port {_ANSWERING} WHERE r.node_id = ANY(:nodes) AND r.told_at > :reported_since
""").bindparams(bindparam("nodes", type_=ARRAY(String)))
_BETWEEN_RACKS: Final = text("""
WITH told AS MATERIALIZED (
    SELECT LEAST(COALESCE(a.rack, ''), COALESCE(b.rack, '')) AS rack,
        GREATEST(COALESCE(a.rack, ''), COALESCE(b.rack, '')) AS other_rack,
        a.name AS node, b.name AS peer,
        (t.values ->> 'sent')::float8 AS sent, COALESCE((t.values ->> 'lost')::float8, 0) AS lost,
        (t.values ->> 'round_trip_p50_us')::float8 AS p50_us, (t.values ->> 'round_trip_p99_us')::float8 AS p99_us
    FROM gpu_signals AS t
    JOIN nodes AS a ON a.id = t.node_id
    JOIN nodes AS b ON b.id = t.text
    WHERE t.gpu_uuid IS NULL AND t.at > :since AND t.kind = 'pair_probe'
)
SELECT rack, other_rack, count(DISTINCT (LEAST(node, peer), GREATEST(node, peer))) AS num_pairs,
    sum(sent) AS sent, sum(lost) AS lost,
    percentile_cont(0.5) WITHIN GROUP (ORDER BY p50_us) AS p50_us, max(p99_us) AS p99_us,
    (array_agg(node ORDER BY lost / sent DESC, p99_us DESC NULLS LAST, node, peer))[1] AS worst_node,
    (array_agg(peer ORDER BY lost / sent DESC, p99_us DESC NULLS LAST, node, peer))[1] AS worst_peer
FROM told
WHERE sent BETWEEN 1 AND 1e6 AND lost BETWEEN 0 AND sent
    AND COALESCE(p50_us, 0) BETWEEN 0 AND 1e12 AND COALESCE(p99_us, 0) BETWEEN 0 AND 1e12
GROUP BY rack, other_rack
ORDER BY sum(lost) / sum(sent) DESC, max(p99_us) DESC NULLS LAST, rack, other_rack
LIMIT :limit
""")


@dataclass(frozen=True, slots=True)
class Responder:
    node_id: NodeId
    session: str
    address: str
    port: int


@dataclass(frozen=True, slots=True)
class RackPairRow:
    """Results of two racks; they may be the same, and empty where a host's is not known. Round trips in µs, or None.

    ``worst_node``, ``worst_peer``: names of the two hosts with the greatest loss, and of equal pairs the slowest.
    """

    rack: str
    other_rack: str
    num_pairs: int
    sent: float
    lost: float
    p50_us: float | None
    p99_us: float | None
    worst_node: str
    worst_peer: str


def racks_of(
    session: Session, node_id: NodeId, *, reported_since: datetime, contact_since: datetime
) -> Mapping[str, Sequence[NodeId]]:
    """Return hosts that answer probes and whose agents report, by rack. Simulated ones are among themselves."""
    limits = {"node_id": node_id, "reported_since": reported_since, "contact_since": contact_since}
    return {row.rack: row.nodes for row in session.execute(_RACKS, limits)}


def responders(
    session: Session, nodes: Collection[NodeId], *, reported_since: datetime, contact_since: datetime
) -> dict[NodeId, Responder]:
    """Return the responders among ``nodes`` that asked since ``reported_since``, and whose agents report."""
    if not nodes:
        return {}
    rows = session.execute(
        _RESPONDERS, {"nodes": list(nodes), "reported_since": reported_since, "contact_since": contact_since}
    )
    return {row.id: Responder(row.id, row.session, row.address, row.port) for row in rows}


def between_racks(session: Session, now: datetime, within: timedelta, limit: int) -> list[RackPairRow]:
    """Return the results within that time, by pair of racks, the greatest loss first."""
    rows = session.execute(_BETWEEN_RACKS, {"since": now - within, "limit": limit})
    return [RackPairRow(**row._mapping) for row in rows]  # noqa: SLF001  # SQLAlchemy's public name for a row's columns
