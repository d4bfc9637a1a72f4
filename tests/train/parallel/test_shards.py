"""A tensor put together from pieces is the one that was cut, whatever region of it a rank needs."""

import importlib.util
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scaled import examples
from tests.train.marks import TRAINS

pytestmark = TRAINS
if importlib.util.find_spec("torch") is not None:
    import torch

    from muster.train.parallel import shards
    from muster.train.parallel.shards import CoverageError, Piece


@st.composite
def cuts(draw: st.DrawFn) -> tuple[list[int], list[list[int]]]:
    """A shape of one to three dimensions, and where each is cut; a piece may be empty."""
    shape = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    return shape, [sorted({0, length, *draw(st.lists(st.integers(0, length), max_size=2))}) for length in shape]


def pieces_of(whole: "torch.Tensor", edges: list[list[int]]) -> "list[Piece]":
    found = []
    for spans in itertools.product(*(list(itertools.pairwise(each)) for each in edges)):
        values = whole[tuple(slice(begin, end) for begin, end in spans)].clone()
        found.append(Piece(shape=list(whole.shape), offset=[begin for begin, _ in spans], values=values))
    return found


@settings(max_examples=examples(200))
@given(cuts(), st.data())
def test_any_region_comes_out_of_any_cut(cut: tuple[list[int], list[list[int]]], data: st.DataObject) -> None:
    shape, edges = cut
    whole = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    pieces = data.draw(st.permutations(pieces_of(whole, edges)))
    spans = [sorted(data.draw(st.tuples(st.integers(0, length), st.integers(0, length)))) for length in shape]
    offset, size = [begin for begin, _ in spans], [end - begin for begin, end in spans]
    found = shards._assembled(pieces, size, offset, "weight")
    assert torch.equal(found, whole[tuple(slice(begin, end) for begin, end in spans)])


@settings(max_examples=examples(100))
@given(cuts(), st.data())
def test_a_piece_that_is_not_there_is_missed(cut: tuple[list[int], list[list[int]]], data: st.DataObject) -> None:
    shape, edges = cut
    whole = torch.zeros(shape)
    pieces = pieces_of(whole, edges)
    del pieces[data.draw(st.integers(0, len(pieces) - 1))]
    with pytest.raises(CoverageError, match=r"weight"):
        shards.like(whole, pieces, "weight")


def test_a_piece_of_another_shape_is_refused() -> None:
    with pytest.raises(CoverageError, match=r"weight was saved in shape \[2, 3\], and is \[3, 2\] here"):
        shards.like(torch.zeros(3, 2), [shards.whole(torch.zeros(2, 3))], "weight")


def test_a_scalar_is_a_piece_too() -> None:
    assert shards.like(torch.zeros(()), [shards.whole(torch.tensor(3.0))], "step") == 3.0


def test_what_is_saved_is_no_more_than_the_piece() -> None:
    view = torch.arange(1000.0)[10:12]
    assert shards._alone(view).untyped_storage().nbytes() == 8
    whole = torch.arange(3.0)
    assert shards._alone(whole) is whole
