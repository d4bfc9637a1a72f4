"""Which nodes are taken: the fullest first, and whole ones where a rack keeps the fewest."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.traces.nodes import Nodes, NodeSet, give_back, lowest


def members(nodes: NodeSet) -> list[int]:
    return [node for node in range(nodes.bit_length()) if nodes >> node & 1]


def node_set(nodes: Iterable[int]) -> NodeSet:
    return sum(1 << node for node in nodes)


def racked() -> Nodes:
    nodes = Nodes(16, 8, nodes_per_rack=4)
    nodes.take(16, 8)
    for first, left in ((0, 3), (4, 1), (8, 2), (12, 4)):
        nodes.give(node_set(range(first, first + left)), 8)
    return nodes


@pytest.mark.parametrize(
    ("num_nodes", "expected"),
    [
        (1, [4]),
        (2, [8, 9]),
        (3, [0, 1, 2]),
        (4, [12, 13, 14, 15]),
        (5, [4, 12, 13, 14, 15]),
        (7, [0, 1, 2, 12, 13, 14, 15]),
        (9, [0, 1, 2, 8, 9, 12, 13, 14, 15]),
    ],
)
def test_a_gang_takes_the_rack_that_keeps_the_fewest_else_the_freest_and_the_last_by_best_fit(
    num_nodes: int, expected: list[int]
) -> None:
    nodes = racked()
    taken = nodes.take(num_nodes, 8)
    assert members(taken) == expected
    assert nodes.num_racks_of(taken) == len({node // 4 for node in expected})


def test_a_part_of_a_node_opens_a_whole_one_where_the_fewest_are_left() -> None:
    nodes = racked()
    assert members(nodes.take(1, 3)) == [4]
    assert members(nodes.take(1, 5)) == [4], "and then shares it"
    assert members(nodes.take(2, 4)) == [8, 9]


def test_next_to_what_is_on_hold_goes_whoever_fits_there_and_racks_count_without_it() -> None:
    nodes = racked()
    held = node_set([4, 12, 13])
    assert not nodes.fits(8, 8, held)
    assert members(nodes.take(1, 3, held)) == [8], "12 and 13 aside, its rack keeps as few, and stands behind it"
    assert members(nodes.take(3, 8, held)) == [0, 1, 2]
    assert members(nodes.take(2, 4, held)) == [8, 9]
    assert nodes.fits(2, 8, held)
    assert not nodes.fits(3, 8, held)
    assert members(nodes.take(4, 8)) == [12, 13, 14, 15], "what was held is counted again"


STEPS = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 4), st.booleans()), max_size=60)


@given(STEPS, st.sampled_from([None, 1, 3, 4, 20]))
def test_what_is_free_is_what_was_not_taken_whatever_the_racks(
    steps: list[tuple[int, int, bool]], nodes_per_rack: int | None
) -> None:
    nodes, held = Nodes(10, 4, nodes_per_rack), list[tuple[NodeSet, int]]()
    for number, each, gives_back in steps:
        if gives_back and held:
            taken, had = held.pop(0)
            what_if = nodes.free.copy()
            give_back(what_if, taken, had)
            nodes.give(taken, had)
            assert nodes.free == what_if
        elif nodes.fits(number, each):
            taken = nodes.take(number, each)
            assert taken.bit_count() == number
            held.append((taken, each))
        free = [4 - sum(each for taken, each in held if taken >> node & 1) for node in range(10)]
        assert min(free) >= 0
        assert nodes.num_free == sum(free)
        assert [members(having) for having in nodes.free] == [
            [node for node in range(10) if free[node] == number] for number in range(5)
        ]
        assert nodes.at_least == [sum(one >= number for one in free) for number in range(5)]


@given(st.sets(st.integers(0, 300), min_size=1), st.data())
def test_the_first_of_a_set_are_those_of_the_lowest_numbers(nodes: set[int], data: st.DataObject) -> None:
    number = data.draw(st.integers(1, len(nodes)))
    assert members(lowest(node_set(nodes), number)) == sorted(nodes)[:number]
