"""Which GPUs of a fleet of equal nodes are free: best fit by node and, where it has racks, by rack."""

from heapq import heappop, heappush
from itertools import accumulate


class ByCount:
    """Things by a number that each has: ``first`` and ``change`` cost a step of a heap."""

    __slots__ = ("_by_count", "count", "most", "num_with")

    def __init__(self, counts: list[int], most: int) -> None:
        self.count, self.most = counts, most
        self.num_with = [0] * (most + 1)
        self._by_count: list[list[int]] = [[] for _ in self.num_with]
        for thing, count in enumerate(counts):
            self.num_with[count] += 1
            self._by_count[count].append(thing)

    def first(self, count: int) -> int:
        """The first of those that have this number: there is one."""
        things = self._by_count[count]
        while self.count[things[0]] != count:  # an entry from before it changed
            heappop(things)
        return things[0]

    def firsts(self, count: int, number: int) -> list[int]:
        """So many of them: there are as many."""
        things: list[int] = []
        while len(things) < number:
            thing = self.first(count)
            heappop(self._by_count[count])
            if thing not in things[-1:]:  # an entry may be there twice, and then follows itself
                things.append(thing)
        return things

    def change(self, thing: int, count: int) -> None:
        self.num_with[self.count[thing]] -= 1
        self.num_with[count] += 1
        self.count[thing] = count
        heappush(self._by_count[count], thing)


class Nodes:
    """``free``: the free GPUs of each node. ``num_with[n]``: how many nodes have n of them free.

    ``nodes_per_rack``: so many that follow each other stand in one rack; None: nobody knows where they stand.
    """

    __slots__ = ("_by_free", "_racks", "free", "num_free", "num_with", "size")

    def __init__(self, num_nodes: int, gpus_per_node: int, nodes_per_rack: int | None = None) -> None:
        self.size = gpus_per_node
        self.num_free = num_nodes * gpus_per_node
        self._by_free = ByCount([gpus_per_node] * num_nodes, gpus_per_node)
        self.free, self.num_with = self._by_free.count, self._by_free.num_with
        self._racks: ByCount | None = None
        if nodes_per_rack is not None:
            starts = range(0, num_nodes, nodes_per_rack)
            self._racks = ByCount([min(nodes_per_rack, num_nodes - start) for start in starts], nodes_per_rack)

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

    def num_racks_of(self, nodes: list[int]) -> int:
        """In how many racks these stand: 1 where nobody knows of any."""
        return 1 if self._racks is None else len({node // self._racks.most for node in nodes})

    def take(self, num_nodes: int, gpus_per_node: int) -> list[int]:
        """The fullest nodes that have room, the first of equals; those that are wholly free by rack. They must fit."""
        taken: list[int] = []
        for free in range(gpus_per_node, self.size):
            for _ in range(min(num_nodes - len(taken), self.num_with[free])):
                taken.append(self._by_free.first(free))
                self._by_free.change(taken[-1], free - gpus_per_node)
        if len(taken) < num_nodes:
            for node in self._whole(num_nodes - len(taken)):
                taken.append(node)
                self._by_free.change(node, self.size - gpus_per_node)
        self.num_free -= num_nodes * gpus_per_node
        return taken

    def give(self, nodes: list[int], gpus_per_node: int) -> None:
        for node in nodes:
            free = self.free[node] + gpus_per_node
            self._by_free.change(node, free)
            if free == self.size and self._racks is not None:
                rack = node // self._racks.most
                self._racks.change(rack, self._racks.count[rack] + 1)
        self.num_free += len(nodes) * gpus_per_node

    def lose(self, node: int) -> None:
        """A node that is wholly free is not there until it is given back as a whole."""
        self._by_free.change(node, 0)
        if self._racks is not None:
            rack = node // self._racks.most
            self._racks.change(rack, self._racks.count[rack] - 1)
        self.num_free -= self.size

    def _whole(self, num_nodes: int) -> list[int]:
        """Wholly free ones: of the rack that keeps the fewest; else of the freest racks, the last by best fit."""
        found: list[int] = []
        if self._racks is None:
            return self._by_free.firsts(self.size, num_nodes)
        while len(found) < num_nodes:
            rack = self._rack_for(self._racks, num_nodes - len(found))
            own = range(rack * self._racks.most, min((rack + 1) * self._racks.most, len(self.free)))
            whole = [node for node in own if self.free[node] == self.size][: num_nodes - len(found)]
            self._racks.change(rack, self._racks.count[rack] - len(whole))
            found += whole
        return found

    @staticmethod
    def _rack_for(racks: ByCount, num_nodes: int) -> int:
        enough = (count for count in range(min(num_nodes, racks.most + 1), racks.most + 1) if racks.num_with[count])
        freest = (count for count in range(racks.most, 0, -1) if racks.num_with[count])
        return racks.first(next(enough, None) or next(freest))
