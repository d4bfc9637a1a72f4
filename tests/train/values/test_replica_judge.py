"""Which rank has the false copy, and which differences are no fault: by digests alone."""

import pytest

pytest.importorskip("torch")

from muster.train.values.replica_judge import History, culprits, unlike  # its package imports torch


def agreed(*digests: int) -> History:
    history = History()
    for digest in digests:
        history.note_agreed(digest)
    return history


@pytest.mark.parametrize(
    ("digests", "named"),
    [
        ({0: 5, 1: 5, 2: 6}, (2,)),
        ({0: 5, 1: 7, 2: 5, 3: 5, 4: 6}, (1, 4)),
        ({4: 5, 9: 6, 14: 6}, (4,)),
        ({0: 5, 1: 6}, ()),
        ({0: 5, 1: 5, 2: 6, 3: 6}, ()),
        ({0: 5, 1: 6, 2: 7, 3: 8}, ()),
    ],
)
def test_only_more_than_half_name_the_others(digests: dict[int, int], named: tuple[int, ...]) -> None:
    assert culprits(digests, agreed(1, 2, 3)) == named


def test_a_copy_that_never_changes_names_its_rank_among_two() -> None:
    assert culprits({0: 5, 1: 9}, agreed(5, 5, 5)) == (1,)
    assert culprits({0: 5, 1: 9}, agreed(5, 5)) == (), "it may yet be one that changes"
    assert culprits({0: 8, 1: 9}, agreed(5, 5, 5)) == (), "both have changed it"
    assert culprits({0: 5, 1: 9}, agreed(4, 5, 5)) == (), "it changes"


def test_a_difference_is_a_fault_only_of_what_has_agreed_before() -> None:
    sure, other, buffer = ({"is_sure": x, "is_buffer": y} for x, y in ((True, False), (False, False), (False, True)))
    assert [History().is_known(**each) for each in (sure, other, buffer)] == [False] * 3
    assert [agreed(5).is_known(**each) for each in (sure, other, buffer)] == [True, False, False]
    assert [agreed(5, 6).is_known(**each) for each in (sure, other, buffer)] == [True, True, False]
    assert [agreed(5, 5).is_known(**each) for each in (sure, other, buffer)] == [True, False, False]
    assert [agreed(5, 5, 5).is_known(**each) for each in (sure, other, buffer)] == [True] * 3


def test_a_tensor_is_compared_among_the_ranks_of_its_own_group_alone() -> None:
    tables = [{7: 1, 8: 1}, {7: 1, 8: 2}, {7: 2}, {7: 2, 8: 2}]
    assert unlike(tables, {7: (0, 1), 8: (1, 3)}) == []
    assert unlike(tables, {7: (1, 2)}) == [(7, {1: 1, 2: 2})]
    assert unlike(tables, {8: (1, 2)}) == [(8, {1: 2, 2: -1})], "a rank without the tensor differs"
