"""The ends of planned work on nodes, as far as known, and the fleet after them. Pure."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from muster.domain.ids import NodeId
from scheduler.fleet.topology import NEVER_MS, FleetState, Ints
from scheduler.model import Workload
from scheduler.solve.request import Request
from scheduler.solve.solver import could_ever_fit


def maintenance_ends_of(windows: Iterable[tuple[NodeId, int, int]]) -> dict[NodeId, int]:
    """Return for each node the end of its next window, with all windows that begin before that end.

    ``windows``: a node, from when, until when, without completed ones. Later windows are not foreseen.
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


def reopenings_ahead(workload: Workload) -> list[tuple[int, NodeId]]:
    """Return each end after now with its node, in order."""
    return sorted((at_ms, node_id) for node_id, at_ms in workload.maintenance_ends.items() if at_ms > workload.now_ms)


class MaintenanceEnds:
    """The ends of planned work in one cycle. ``moments_ms``: when planned work on any node is over, in order."""

    def __init__(self, state: FleetState, workload: Workload) -> None:
        self._state, self._ahead = state, reopenings_ahead(workload)
        self.moments_ms = [at_ms for at_ms, _ in self._ahead]
        self._in_the_end: FleetState | None = None
        self._could_be: dict[Request, bool] = {}

    def next_ms(self, after_ms: int) -> int:
        """Return the next end after this time; ``NEVER_MS`` if none is known."""
        number = self.num_until(after_ms)
        return self.moments_ms[number] if number < len(self._ahead) else NEVER_MS

    def of_gpus(self) -> Ints:
        """Return when planned work on each GPU's node is over.

        ``NEVER_MS`` if no planned work, or no end of it, is known.
        """
        layout = self._state.layout
        reopens_ms = np.full(len(layout.uuids), NEVER_MS, dtype=np.int64)
        for at_ms, node_id in self._ahead:
            cells = np.array(layout.cells_of_node.get(node_id, ()), dtype=np.int64)
            reopens_ms[layout.gpus_of_cells(cells)] = at_ms
        return reopens_ms

    def nodes_until(self, at_ms: int) -> set[NodeId]:
        """Return the nodes on which it is over by then."""
        return {node_id for _, node_id in self._ahead[: self.num_until(at_ms)]}

    def num_until(self, at_ms: int) -> int:
        return bisect_right(self.moments_ms, at_ms)

    def fleet(self) -> "FleetLater":
        return FleetLater(self._state, self)

    @property
    def in_the_end(self) -> FleetState:
        """Return the fleet after all planned work. Which GPUs are free in it has no meaning."""
        if self._in_the_end is None:
            self._in_the_end = self.fleet().at(self.moments_ms[-1]) if self._ahead else self._state
        return self._in_the_end

    def could_be(self, request: Request) -> bool:
        """Return whether the fewest hosts fit if every GPU that its tier admits is idle and all planned work is over.

        False if no end of planned work is known.
        """
        if not self._ahead:
            return False
        anytime = replace(request.at_least(), maintenance_start_ms=None)
        if anytime not in self._could_be:
            self._could_be[anytime] = could_ever_fit(self.in_the_end, anytime)
        return self._could_be[anytime]


class FleetLater:
    """The fleet of now, without planned work that is over by a later moment; valid as long as the fleet stays so."""

    def __init__(self, state: FleetState, maintenance_ends: MaintenanceEnds) -> None:
        self._state, self._reopenings = state, maintenance_ends
        self._of_number = {0: state}

    def at(self, at_ms: int) -> FleetState:
        """Return the state itself if nothing is over by then, else a fork."""
        number = self._reopenings.num_until(at_ms)
        if number not in self._of_number:
            fork = self._state.fork(self._state.is_free.copy(), ())
            self._of_number[number] = fork.reopened(self._reopenings.nodes_until(at_ms))
        return self._of_number[number]
