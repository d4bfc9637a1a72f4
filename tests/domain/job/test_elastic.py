"""The sizes of an elastic gang: in order, or refused by name; one that is not elastic has one size."""

import pytest
from pydantic import ValidationError

from muster.domain.job.elastic import Sizes, pieces, sizes_of
from muster.domain.job.spec import Shape


def test_a_gang_that_states_no_more_has_one_size() -> None:
    shape = Shape(nodes=3)
    assert (list(shape.sizes), shape.is_elastic) == ([3], False)
    assert sizes_of(shape, None) == Sizes(3, 3, 3)


def test_what_was_requested_is_its_preference_and_the_most_it_takes() -> None:
    shape = Shape(min_nodes=1, nodes=2, max_nodes=4)
    assert (list(shape.sizes), shape.is_elastic) == ([1, 2, 3, 4], True)
    assert sizes_of(shape, None) == Sizes(1, 2, 4)
    assert sizes_of(shape, 3) == Sizes(1, 3, 3)


@pytest.mark.parametrize(
    ("sizes", "why"),
    [
        ({"min_nodes": 3}, "`min_nodes` 3 is more than `nodes`, which is 2"),
        ({"max_nodes": 1}, "`max_nodes` 1 is less than `nodes`, which is 2"),
        ({"min_nodes": 0}, "greater than or equal to 1"),
    ],
)
def test_sizes_out_of_order_are_refused_by_name(sizes: dict[str, int], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        Shape(nodes=2, **sizes)


@pytest.mark.parametrize(("num_nodes", "wanted"), [(1, 4), (2, 2), (3, 2), (4, 1), (8, 1)])
def test_on_fewer_hosts_a_batch_is_taken_in_as_many_more_pieces(num_nodes: int, wanted: int) -> None:
    assert pieces(Shape(min_nodes=1, nodes=4, max_nodes=8), num_nodes) == wanted
