"""Preference for nodes that hold a job's bundle: of places that are equal in all else."""

import numpy as np

from scheduler.fleet.tally import Tally, least_of
from scheduler.fleet.topology import Ints, Layout
from scheduler.solve.request import Request


def absence_key(layout: Layout, request: Request, cells: Ints) -> Ints | None:
    """Return 0 for each of ``cells`` whose node holds the request's bundle, else 1; None if that is equal for all."""
    if not request.bundle_holders:
        return None
    absent = 1 - np.isin(cells, _holding_cells(layout, request)).astype(np.int64)
    return absent if 0 < np.count_nonzero(absent) < len(absent) else None


def homes_of_most_holders(layout: Layout, room: Tally, request: Request, level: int, homes: Ints) -> Ints:
    """Return the ones of equal ``homes`` with the most hosts that hold the bundle, counted up to the gang's size."""
    holding = _holding_cells(layout, request)
    holding = holding[room.usable[holding] > 0]
    groups = holding if level == layout.node_level else layout.groups[level][holding]
    size = int(max(homes.max(), groups.max(initial=0))) + 1
    counts = np.bincount(groups[groups >= 0], minlength=size).astype(np.int64)
    return least_of(homes, -np.minimum(counts[homes], request.nodes))


def _holding_cells(layout: Layout, request: Request) -> Ints:
    cells = [cell for node_id in request.bundle_holders for cell in layout.cells_of_node.get(node_id, ())]
    return np.array(cells, dtype=np.int64)
