"""Which nodes are taken: the fullest first, and whole ones where a rack keeps the fewest."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.traces.nodes import Nodes


def racked() -> Nodes:
    nodes = Nodes(16, 8, nodes_per_rack=4)
    nodes.take(16, 8)
    for first, left in ((0, 3), (4, 1), (8, 2), (12, 4)):
        nodes.give(list(range(first, first + left)), 8)
    return nodes


@pytest.mark.parametrize(
    ("num_nodes", "expected"),
    [
        (1, [4]),
        (2, [8, 9]),
        (3, [0, 1, 2]),
        (4, [12, 13, 14, 15]),
        (5, [12, 13, 14, 15, 4]),
        (7, [12, 13, 14, 15, 0, 1, 2]),
        (9, [12, 13, 14, 15, 0, 1, 2, 8, 9]),
    ],
)
def test_a_gang_takes_the_rack_that_keeps_the_fewest_else_the_freest_and_the_last_by_best_fit(
    num_nodes: int, expected: list[int]
) -> None:
    nodes = racked()
    taken = nodes.take(num_nodes, 8)
    assert taken == expected
    assert nodes.num_racks_of(taken) == len({node // 4 for node in expected})


def test_a_part_of_a_node_opens_a_whole_one_where_the_fewest_are_left() -> None:
    nodes = racked()
    assert nodes.take(1, 3) == [4]
    assert nodes.take(1, 5) == [4], "and then shares it"
    assert nodes.take(2, 4) == [8, 9]


STEPS = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 4), st.booleans()), max_size=60)


@given(STEPS, st.sampled_from([None, 1, 3, 4, 20]))
def test_what_is_free_is_what_was_not_taken_whatever_the_racks(
    steps: list[tuple[int, int, bool]], nodes_per_rack: int | None
) -> None:
    nodes, held = Nodes(10, 4, nodes_per_rack), list[tuple[list[int], int]]()
    for number, each, gives_back in steps:
        if gives_back and held:
            taken, had = held.pop(0)
            nodes.give(taken, had)
        elif nodes.fits(number, each):
            taken = nodes.take(number, each)
            assert len(set(taken)) == number
            held.append((taken, each))
        used = [sum(each for taken, each in held if node in taken) for node in range(10)]
        assert nodes.free == [4 - one for one in used]
        assert min(nodes.free) >= 0
        assert nodes.num_free == sum(nodes.free)
        assert nodes.num_with == [nodes.free.count(free) for free in range(5)]
        assert nodes.num_with_at_least() == [sum(one >= free for one in nodes.free) for free in range(5)]
