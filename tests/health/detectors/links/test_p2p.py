"""GPUs that cannot read each other's memory: few are to blame, and only where NVLinks let one expect it."""

from collections.abc import Iterable
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from health.detectors.links.p2p import blamed
from health.detectors.registry import closings_of, judge_signal
from muster.domain.evidence.findings import EventKind
from tests.health.case_factory import POLICY
from tests.health.limits.limit import reported

SLOTS = range(8)
PAIRS = st.sets(st.sampled_from(list(combinations(SLOTS, 2))))


def partners(pairs: Iterable[tuple[int, int]]) -> dict[int, frozenset[int]]:
    found: dict[int, set[int]] = {slot: set() for slot in SLOTS}
    for one, other in pairs:
        found[one].add(other)
        found[other].add(one)
    return {slot: frozenset(others) for slot, others in found.items()}


@pytest.mark.parametrize(
    ("pairs", "guilty"),
    [
        ([], {}),
        ([(3, other) for other in SLOTS if other != 3], {3: 7}),
        ([(2, 5)], {2: 1}),
        ([*((3, other) for other in (0, 1, 2)), (6, 7)], {3: 3, 6: 1}),
    ],
)
def test_one_ill_gpu_is_blamed_and_not_all_that_it_fails(pairs: list[tuple[int, int]], guilty: dict[int, int]) -> None:
    assert {slot: num for slot, num in blamed(partners(pairs)).items() if num} == guilty


@given(PAIRS)
def test_each_pair_is_laid_to_one_of_its_two(pairs: set[tuple[int, int]]) -> None:
    found = blamed(partners(pairs))
    assert sum(found.values()) == len(pairs)
    assert all(found[one] or found[other] for one, other in pairs)


def test_where_there_are_no_nvlinks_none_is_expected() -> None:
    ill = {"p2p_blamed": 1, "p2p_not_ok": 7, "p2p_peers": 7, "p2p_not_ok_bits": 0b11110111}
    assert judge_signal(reported(EventKind.GPU_STATE, ill), POLICY) == ()
    assert judge_signal(reported(EventKind.GPU_STATE, {**ill, "nvlink_links": 0}), POLICY) == ()
    (found,) = judge_signal(reported(EventKind.GPU_STATE, {**ill, "nvlink_links": 18}), POLICY)
    assert found.summary == "it cannot read the memory of 7 of 7 other GPUs, in slots 0, 1, 2, 4, 5, 6, 7"
    assert found.pending is not None


def test_pairs_that_are_ok_again_end_it() -> None:
    (over,) = [
        each
        for each in closings_of(reported(EventKind.GPU_STATE, {"nvlink_links": 18, "p2p_blamed": 0}), POLICY)
        if each.fault_key == "p2p"
    ]
    assert over.gpu_uuid is not None
