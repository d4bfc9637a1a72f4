"""When planned work on nodes is over, as far as it is known of. Pure."""

from collections import defaultdict
from collections.abc import Iterable

from muster.domain.ids import NodeId


def reopenings_of(windows: Iterable[tuple[NodeId, int, int]]) -> dict[NodeId, int]:
    """``windows``: of a node, from when until when, those that are over left out. When the next one of each node is
    over, with all that begin before it is; what comes later is not foreseen.
    """
    of_node: defaultdict[NodeId, list[tuple[int, int]]] = defaultdict(list)
    for node_id, from_ms, until_ms in windows:
        of_node[node_id].append((from_ms, until_ms))
    return {node_id: _over_ms(sorted(own)) for node_id, own in of_node.items()}


def _over_ms(windows: list[tuple[int, int]]) -> int:
    over_ms = windows[0][1]
    for from_ms, until_ms in windows[1:]:
        if from_ms > over_ms:
            break
        over_ms = max(over_ms, until_ms)
    return over_ms
