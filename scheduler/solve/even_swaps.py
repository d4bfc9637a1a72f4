"""The choice of replacement hosts for a gang that is spread evenly."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from muster.domain.ids import NodeId
from scheduler.fleet.topology import FleetState, Ints
from scheduler.solve.solver import Request


class EvenSpread:
    """The spread of a gang over the domains of its ``balance``: its hosts in each."""

    def __init__(
        self, state: FleetState, request: Request, nodes: Sequence[NodeId], ranks: Sequence[Ints | None]
    ) -> None:
        level = None if request.rule.balance is None else state.layout.level(request.rule.balance)
        self._groups = None if level is None else state.layout.groups[level]
        self._hosts: Counter[int] = Counter()
        for node_id, part in zip(nodes, ranks, strict=True):
            if part is not None:
                self.settle(int(state.layout.cell_of_gpu[part[0]]))
            elif self._groups is not None:
                lost = list(state.layout.cells_of_node.get(node_id, ()))
                self._hosts.update(dict.fromkeys(self._groups[lost].tolist(), 0))

    def settle(self, cell: int) -> None:
        if self._groups is not None:
            self._hosts[int(self._groups[cell])] += 1

    def evenest(self, cells: Ints) -> Ints:
        """Return the ``cells`` in the domain with fewest of its hosts, among its own domains, so that none is added."""
        if self._groups is None:
            return cells
        most = sum(self._hosts.values())
        hosts = np.array([self._hosts.get(int(group), most) for group in self._groups[cells]], dtype=np.int64)
        evenest: Ints = cells[hosts == hosts.min(initial=most)]
        return evenest
