"""The places of a gang's hosts and their labels, as the rows are now."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from sqlalchemy.orm import Session

from muster.db.pipeline.batched import query_together
from muster.db.pipeline.packed_arrays import joined_texts
from muster.domain.ids import NodeId


class PlaceRow(NamedTuple):
    """Hosts of one rack and of equal labels, of the requested ones; ``ranks``: their places in the list."""

    rack: str | None
    labels: Mapping[str, str]
    ranks: Sequence[int]


_PLACES: Final = r"""
SELECT rack, told AS labels, array_agg(place - 1) AS ranks
FROM unnest(string_to_array(%(nodes)s, E'\x1f')) WITH ORDINALITY AS host (node_id, place)
JOIN nodes ON nodes.id = host.node_id
CROSS JOIN LATERAL (
    SELECT coalesce(jsonb_object_agg(key, value), '{}') AS told
    FROM jsonb_each(labels) WHERE key = ANY(string_to_array(%(names)s, E'\x1f'))
) AS own
GROUP BY rack, told
"""


def places_of(session: Session, nodes: Iterable[NodeId], names: Iterable[str]) -> Sequence[PlaceRow]:
    """Return the places of these hosts, distinguished by their rack and by the labels ``names`` alone: mostly few."""
    asked = {"nodes": joined_texts(nodes), "names": joined_texts(names)}
    (rows,) = query_together(session, (_PLACES, asked))
    return [PlaceRow(*row) for row in rows]
