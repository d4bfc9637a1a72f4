"""Numbers of GPUs of all nodes in one integer: adding an end is one sum, however many nodes it is on."""

from simulator.traces.nodes import NodeSet


class Counts:
    """The layout of the integer: each node has a field of bits.

    A field is wide enough for ``gpus_per_node`` and a bit above it, by which fields compare.
    """

    __slots__ = ("_ones", "_tops", "_width")

    def __init__(self, num_nodes: int, gpus_per_node: int) -> None:
        self._width = gpus_per_node.bit_length() + 1
        self._ones = self._spread((1 << num_nodes) - 1)
        self._tops = self._ones << (self._width - 1)

    def of(self, nodes: NodeSet, gpus: int) -> int:
        """Return so many GPUs for each of these nodes, 0 for the others."""
        if nodes & (nodes - 1) == 0:
            return gpus << ((nodes.bit_length() - 1) * self._width) if nodes else 0
        return self._spread(nodes) * gpus

    def compared(self, counts: int, gpus: int) -> tuple[int, int]:
        """Return a sum to which counts may still be added, and a mask.

        As many bits of the mask are set in the sum as there are nodes with so many GPUs or more.
        """
        return counts + self._tops - self._ones * gpus, self._tops

    def nodes(self, bits: int) -> NodeSet:
        """Return the nodes of the bits of such a mask."""
        if bits & (bits - 1) == 0:
            return 1 << ((bits.bit_length() - 1) // self._width) if bits else 0
        return int(f"{bits >> (self._width - 1):b}"[::-1][:: self._width][::-1], 2)

    def _spread(self, nodes: NodeSet) -> int:
        zeros = "0" * (self._width - 1)
        return int(f"{nodes:b}".replace("0", "0" + zeros).replace("1", zeros + "1"), 2)
