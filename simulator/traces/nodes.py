"""The free GPUs of a fleet of equal nodes: best fit by node and, where it has racks, by rack.

A set of nodes is an integer with a bit for each node. So a gang on hundreds of nodes is placed and removed in one step
for each number of GPUs that a node may have free, not in one for each node.
"""

from collections.abc import Iterator

NodeSet = int


def lowest(nodes: NodeSet, number: int) -> NodeSet:
    """Return the first so many of them; there must be as many, and at least one."""
    if number == 1:
        return nodes & -nodes
    fewest, most = number, nodes.bit_length()
    while fewest < most:
        middle = (fewest + most) // 2
        if (nodes & ((1 << middle) - 1)).bit_count() < number:
            fewest = middle + 1
        else:
            most = middle
    return nodes & ((1 << most) - 1)


def _first(of: int) -> int:
    return (of & -of).bit_length() - 1


def give_back(free: list[NodeSet], nodes: NodeSet, gpus_per_node: int) -> None:
    """Add so many free GPUs to each of these nodes in ``free``: ``Nodes.free``, or a copy of it for a what-if."""
    for has in range(len(free) - gpus_per_node):
        part = free[has] & nodes
        if part:
            free[has] ^= part
            free[has + gpus_per_node] |= part
            nodes ^= part
            if not nodes:
                return


class Racks:
    """The number of wholly free nodes of each rack: ``size`` nodes in a row are one rack."""

    __slots__ = ("_num_in_last", "_num_whole", "_with", "size")

    def __init__(self, num_nodes: int, size: int) -> None:
        self.size = size
        self._num_in_last = (num_nodes - 1) % size + 1
        self._num_whole: list[int] = [0] * -(-num_nodes // size)
        self._with: list[int] = [0] * (size + 1)
        """By number of wholly free nodes, the racks that have so many: a bit each."""
        self._with[0] = (1 << len(self._num_whole)) - 1

    @property
    def num_in_whole_racks(self) -> int:
        """The nodes of wholly free racks. The last rack may have fewer nodes than the others."""
        last = self._num_in_last
        is_short = last < self.size and self._num_whole[-1] == last
        return self._with[self.size].bit_count() * self.size + last * is_short

    def nodes_of(self, rack: int) -> NodeSet:
        return ((1 << self.size) - 1) << (rack * self.size)

    def apart(self, nodes: NodeSet) -> Iterator[tuple[int, NodeSet]]:
        """Yield each rack that has any of them, with these nodes."""
        while nodes:
            rack = _first(nodes) // self.size
            inside = nodes & self.nodes_of(rack)
            nodes ^= inside
            yield rack, inside

    def add(self, whole: NodeSet, sign: int) -> None:
        """Record that these nodes are wholly free from now on, or no longer."""
        for rack, inside in self.apart(whole):
            self._with[self._num_whole[rack]] ^= 1 << rack
            self._num_whole[rack] += sign * inside.bit_count()
            self._with[self._num_whole[rack]] |= 1 << rack

    def best_for(self, num_nodes: int) -> int:
        """Return the rack that keeps the fewest whole nodes; if none has enough, the freest. The first of equals."""
        enough = range(min(num_nodes, self.size + 1), self.size + 1)
        racks = next(self._with[count] for count in (*enough, *range(self.size, 0, -1)) if self._with[count])
        return _first(racks)


class Nodes:
    """The nodes of a fleet. ``free[n]``: nodes with n free GPUs; ``at_least[n]``: how many have n or more.

    ``nodes_per_rack``: so many in a row are one rack; None: racks are unknown.
    """

    __slots__ = ("_racks", "at_least", "free", "num_free", "num_nodes", "size")

    def __init__(self, num_nodes: int, gpus_per_node: int, nodes_per_rack: int | None = None) -> None:
        self.num_nodes, self.size = num_nodes, gpus_per_node
        self.num_free = num_nodes * gpus_per_node
        self.free: list[NodeSet] = [0] * gpus_per_node + [(1 << num_nodes) - 1]
        self.at_least = [num_nodes] * (gpus_per_node + 1)
        self._racks = None if nodes_per_rack is None else Racks(num_nodes, nodes_per_rack)
        if self._racks is not None:
            self._racks.add(self.free[-1], 1)

    @property
    def num_whole(self) -> int:
        return self.at_least[-1]

    @property
    def num_in_broken_racks(self) -> int:
        """The wholly free nodes of racks partly in use; 0 if racks are unknown."""
        return 0 if self._racks is None else self.num_whole - self._racks.num_in_whole_racks

    @property
    def num_gpus(self) -> int:
        return self.num_nodes * self.size

    def fits(self, num_nodes: int, gpus_per_node: int, excluded: NodeSet = 0) -> bool:
        """Return whether so many nodes have so many free GPUs. ``excluded``: nodes that do not count."""
        if self.at_least[gpus_per_node] < num_nodes:
            return False
        return not excluded or sum((nodes & ~excluded).bit_count() for nodes in self.free[gpus_per_node:]) >= num_nodes

    def num_racks_of(self, nodes: NodeSet) -> int:
        """Return the number of racks of these nodes: 1 if racks are unknown."""
        return 1 if self._racks is None else sum(1 for _ in self._racks.apart(nodes))

    def take(self, num_nodes: int, gpus_per_node: int, excluded: NodeSet = 0) -> NodeSet:
        """Take the fullest nodes that have room, the first of equals; wholly free ones by rack. They must fit.

        ``excluded``: nodes that are not taken.
        """
        taken, missing = 0, num_nodes
        for has in range(gpus_per_node, self.size):
            part = self.free[has] & ~excluded
            if part:
                number = min(part.bit_count(), missing)
                part = lowest(part, number)
                self._change(part, number, has, has - gpus_per_node)
                taken |= part
                missing -= number
                if not missing:
                    return taken
        if self._racks is None:
            whole = lowest(self.free[-1] & ~excluded, missing)
        else:
            whole = self._by_rack(self._racks, missing, excluded & self.free[-1])
        self._change(whole, missing, self.size, self.size - gpus_per_node)
        return taken | whole

    def give(self, nodes: NodeSet, gpus_per_node: int) -> None:
        left = nodes
        for has in range(self.size - gpus_per_node + 1):
            part = self.free[has] & left
            if part:
                self._change(part, part.bit_count(), has, has + gpus_per_node)
                left ^= part
                if not left:
                    break
        if self._racks is not None:
            self._racks.add(nodes & self.free[-1], 1)

    def lose(self, node: int) -> None:
        """Take a wholly free node out of service until it is given back as a whole."""
        self._change(1 << node, 1, self.size, 0)
        if self._racks is not None:
            self._racks.add(1 << node, -1)

    def _change(self, nodes: NodeSet, number: int, before: int, after: int) -> None:
        """Change the free GPUs of so many nodes from ``before`` to ``after``."""
        free, at_least = self.free, self.at_least
        free[before] ^= nodes
        free[after] |= nodes
        self.num_free += number * (after - before)
        if after > before:
            for count in range(before + 1, after + 1):
                at_least[count] += number
        else:
            for count in range(after + 1, before + 1):
                at_least[count] -= number

    def _by_rack(self, racks: Racks, num_nodes: int, excluded: NodeSet) -> NodeSet:
        """Return wholly free nodes: of the rack that keeps the fewest; else of the freest racks, the last by best fit.

        ``excluded``: wholly free nodes that do not count.
        """
        racks.add(excluded, -1)
        found, missing = 0, num_nodes
        while missing:
            rack = racks.best_for(missing)
            whole = self.free[-1] & racks.nodes_of(rack) & ~(found | excluded)
            number = min(whole.bit_count(), missing)
            whole = lowest(whole, number)
            racks.add(whole, -1)
            found |= whole
            missing -= number
        racks.add(excluded, 1)
        return found
