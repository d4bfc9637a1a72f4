"""A gang that no domain holds is divided over the fewest, and the largest domains stay whole."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.domain.policy.document import DEFAULT_POLICY
from scheduler.fleet.topology import Ints
from scheduler.planner import plan
from scheduler.solve.fewest_domains import fewest_shares
from tests.scheduler.fleets import job, racks

ROOMS = st.lists(st.integers(1, 9), min_size=1, max_size=7)


def no_rises(domains: Ints, _: int) -> Ints:
    return np.zeros(len(domains), dtype=np.int64)


def shares(rooms: list[int], nodes: int, sizes: list[int] | None = None) -> list[int]:
    return list(map(int, fewest_shares(np.array(rooms), np.array(sizes or rooms), nodes, no_rises)))


@pytest.mark.parametrize(
    ("rooms", "nodes", "expected"),
    [
        ([5, 3, 4], 7, [0, 3, 4]),
        ([5, 3, 4], 8, [5, 3, 0]),
        ([9, 5, 5, 1], 10, [0, 5, 5, 0]),
        ([8, 7, 7, 7], 14, [0, 7, 7, 0]),
        ([3, 3, 2, 1], 7, [3, 3, 0, 1]),
        ([8, 8, 8, 8], 20, [8, 8, 4, 0]),
    ],
)
def test_the_largest_domain_that_is_not_needed_stays_whole(rooms: list[int], nodes: int, expected: list[int]) -> None:
    assert shares(rooms, nodes) == expected


def test_of_domains_with_equal_room_those_with_fewer_hosts_give() -> None:
    """Hosts beyond whole slices are left over there, and least of them in the domain with fewest."""
    assert shares([4, 4, 4], 8, sizes=[5, 4, 4]) == [0, 4, 4]


@given(ROOMS, st.data())
def test_no_choice_of_as_few_domains_spares_a_larger_one(rooms: list[int], data: st.DataObject) -> None:
    """Against all sets of the fewest domains."""
    nodes = data.draw(st.integers(1, sum(rooms)))
    found = shares(rooms, nodes)
    assert sum(found) == nodes
    assert all(0 <= share <= room for share, room in zip(found, rooms, strict=True))
    given_by = sorted((room for share, room in zip(found, rooms, strict=True) if share), reverse=True)
    enough = next(
        sets
        for number in range(1, len(rooms) + 1)
        if (sets := [one for one in combinations(rooms, number) if sum(one) >= nodes])
    )
    assert given_by == min(sorted(one, reverse=True) for one in enough)


def test_two_gangs_that_are_planned_one_after_the_other_both_start() -> None:
    """A leaf of five is left for the second, which no other leaf holds."""
    gpus = racks({"r0": [8] * 5, "r1": [8] * 3, "r2": [8] * 4})
    queue = [job("seven", nodes=7, gpus=8, preferred="rack"), job("five", nodes=5, gpus=8, required="rack")]
    assert {placed.job_id for placed in plan(gpus, queue, DEFAULT_POLICY).placements} == {"seven", "five"}
