"""A number for each node in one integer: as a list of them would have it."""

from hypothesis import given
from hypothesis import strategies as st

from simulator.traces.counts import Counts

GPUS_PER_NODE = 8
PARTS = st.lists(st.tuples(st.integers(0, GPUS_PER_NODE), st.integers(0, GPUS_PER_NODE)), min_size=1, max_size=70)


@given(PARTS, st.integers(1, GPUS_PER_NODE))
def test_sums_compare_node_by_node(parts: list[tuple[int, int]], gpus: int) -> None:
    counts = Counts(len(parts), GPUS_PER_NODE)
    idle = sum(counts.of(1 << node, first) for node, (first, _) in enumerate(parts))
    comes = sum(counts.of(1 << node, min(second, GPUS_PER_NODE - first)) for node, (first, second) in enumerate(parts))
    free, mask = counts.compared(idle, gpus)
    for has, found in ((0, free), (1, free + comes)):
        expected = [
            node
            for node, (first, second) in enumerate(parts)
            if first + has * min(second, GPUS_PER_NODE - first) >= gpus
        ]
        assert (found & mask).bit_count() == len(expected)
        assert counts.nodes(found & mask) == sum(1 << node for node in expected)


@given(st.integers(0, 2**70 - 1), st.integers(0, GPUS_PER_NODE))
def test_a_set_of_nodes_counts_as_each_of_them_does(nodes: int, gpus: int) -> None:
    counts = Counts(70, GPUS_PER_NODE)
    assert counts.of(nodes, gpus) == sum(counts.of(1 << node, gpus) for node in range(70) if nodes >> node & 1)
