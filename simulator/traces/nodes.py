"""Which GPUs of a fleet of equal nodes are free: best fit by node, no topology, no failures."""

from heapq import heappop, heappush
from itertools import accumulate


class Nodes:
    """``free``: the free GPUs of each node. ``num_with[n]``: how many nodes have n of them free."""

    __slots__ = ("_by_free", "free", "num_free", "num_with", "size")

    def __init__(self, num_nodes: int, gpus_per_node: int) -> None:
        self.size = gpus_per_node
        self.free = [gpus_per_node] * num_nodes
        self.num_free = num_nodes * gpus_per_node
        self.num_with = [0] * gpus_per_node + [num_nodes]
        self._by_free: list[list[int]] = [[] for _ in range(gpus_per_node)] + [list(range(num_nodes))]

    @property
    def num_whole(self) -> int:
        return self.num_with[self.size]

    @property
    def num_gpus(self) -> int:
        return len(self.free) * self.size

    def fits(self, num_nodes: int, gpus_per_node: int) -> bool:
        if self.num_free < num_nodes * gpus_per_node:
            return False
        return sum(self.num_with[gpus_per_node:]) >= num_nodes

    def num_with_at_least(self) -> list[int]:
        """Of each number of GPUs, how many nodes have so many of them free, or more."""
        return list(accumulate(reversed(self.num_with)))[::-1]

    def take(self, num_nodes: int, gpus_per_node: int) -> list[int]:
        """The fullest nodes that have room, the first of equals. They must fit."""
        taken: list[int] = []
        left: list[int] = []
        for free in range(gpus_per_node, self.size + 1):
            while self.num_with[free] and len(taken) < num_nodes:
                taken.append(self._pop(free))
                left.append(free - gpus_per_node)
        for node, free in zip(taken, left, strict=True):
            self._put(node, free)
        self.num_free -= num_nodes * gpus_per_node
        return taken

    def give(self, nodes: list[int], gpus_per_node: int) -> None:
        for node in nodes:
            self.num_with[self.free[node]] -= 1
            self._put(node, self.free[node] + gpus_per_node)
        self.num_free += len(nodes) * gpus_per_node

    def _pop(self, free: int) -> int:
        """Entries whose node has changed since are passed over."""
        waiting = self._by_free[free]
        while True:
            node = heappop(waiting)
            if self.free[node] == free:
                self.num_with[free] -= 1
                self.free[node] = -1
                return node

    def _put(self, node: int, free: int) -> None:
        self.free[node] = free
        self.num_with[free] += 1
        heappush(self._by_free[free], node)
