"""A slice that lost a host moves whole where its own domain has no other; all other slices keep their hosts."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.domain.ids import GpuUuid, NodeId
from muster.domain.policy.document import DEFAULT_POLICY as POLICY
from scheduler.fleet.topology import FleetState
from scheduler.model import Parts, Placement, Swap, Workload
from scheduler.planner import plan
from scheduler.solve.placement_rule import PlacementRule, Preference, Slice
from scheduler.solve.recovery import replan
from scheduler.solve.solver import parts_of, request_of
from tests.scaled import examples
from tests.scheduler.fleets import NOW_MS, job, of_host, racks

LEVELS = ("pod", "rack")
PODS = {f"r{number}": f"p{number // 3}" for number in range(10)}
IN_RACKS = PlacementRule((Slice("rack", 2),))
IN_BOTH = PlacementRule((Slice("pod", 4), Slice("rack", 2)))


def kept(*names: str) -> Parts:
    return tuple((NodeId(name), tuple(map(GpuUuid, of_host(name)))) for name in names)


def placed(
    free: dict[str, list[int]], last: Parts, rule: PlacementRule = IN_RACKS, *, required: str | None = None
) -> Placement | None:
    """Return the next place of the interrupted gang, which had whole hosts; the free ones of them are good."""
    wanted = replace(job("j", nodes=len(last), gpus=8, keep=last, required=required), rule=rule, interrupted_ms=NOW_MS)
    pods = {rack: PODS[rack] for rack in free}
    decided = plan(racks(free, pods=pods), [wanted], POLICY, Workload(NOW_MS), levels=LEVELS)
    return decided.placements[0] if decided.placements else None


def nodes(placement: Placement | None) -> list[str]:
    return [] if placement is None else [node for node, _ in placement.parts]


FOUR = kept("r0h0", "r0h1", "r1h0", "r1h1")


def test_only_the_slice_moves_whose_rack_has_no_other_host_and_its_ranks_keep_their_numbers() -> None:
    found = placed({"r0": [8, 8, 8], "r1": [8, 0], "r2": [8, 8, 8], "r3": [8, 8, 8, 8]}, FOUR)
    assert nodes(found) == ["r0h0", "r0h1", "r2h0", "r2h1"], "to the nearest rack with room, not back together"
    assert found is not None
    replaced = ((NodeId("r1h0"), NodeId("r2h0")), (NodeId("r1h1"), NodeId("r2h1")))
    assert found.swap == Swap(2, 16, replaced)


def test_where_its_rack_has_another_host_that_alone_is_replaced() -> None:
    found = placed({"r0": [8, 8], "r1": [8, 0, 8], "r2": [8, 8]}, FOUR)
    assert nodes(found) == ["r0h0", "r0h1", "r1h0", "r1h2"]


def test_a_rack_with_room_for_a_part_of_a_slice_takes_none() -> None:
    found = placed({"r0": [8, 8], "r1": [8, 0], "r2": [8], "r3": [8, 8]}, FOUR)
    assert nodes(found) == ["r0h0", "r0h1", "r3h0", "r3h1"]


def test_one_slice_moves_so_that_its_host_replaces_that_of_another_in_their_rack() -> None:
    """Both lost a host, and their rack has none: one of them goes, and leaves its good host to the other."""
    last = kept("r0h0", "r0h1", "r0h2", "r0h3")
    found = placed({"r0": [0, 8, 0, 8], "r1": [8, 8]}, last)
    assert nodes(found) == ["r1h0", "r1h1", "r0h1", "r0h3"]


def test_what_moves_takes_no_host_that_replaces_another_in_its_own_rack() -> None:
    free = {"r0": [0, 8], "r1": [8, 0, 8, 8], "r2": [8, 8]}
    assert nodes(placed(free, FOUR)) == ["r2h0", "r2h1", "r1h0", "r1h2"]


def test_several_slices_move_at_once() -> None:
    free = {"r0": [0, 8], "r1": [8, 0], "r2": [8, 8], "r3": [8, 8], "r4": [8, 8]}
    last = kept("r0h0", "r0h1", "r1h0", "r1h1", "r2h0", "r2h1")
    assert nodes(placed(free, last)) == ["r3h0", "r3h1", "r4h0", "r4h1", "r2h0", "r2h1"]


def test_of_slices_in_slices_the_narrowest_moves_within_the_wider_one() -> None:
    free = {"r0": [8, 8], "r1": [8, 0], "r2": [8, 8], "r3": [8, 8], "r4": [8, 8]}
    assert nodes(placed(free, FOUR, IN_BOTH)) == ["r0h0", "r0h1", "r2h0", "r2h1"]


def test_where_the_wider_domain_has_no_room_for_it_the_wider_slice_moves() -> None:
    """And that where it has room in whole slices: a pod of racks with 2, 1 and 1 hosts holds no 4 of them."""
    last = kept("r0h0", "r0h1", "r1h0", "r1h1", "r3h0", "r3h1", "r3h2", "r3h3")
    free = {"r0": [8, 8], "r1": [8, 0], "r2": [8], "r3": [8] * 4, "r6": [8, 8], "r7": [8], "r8": [8], "r9": [8] * 4}
    found = placed(free, last, IN_BOTH)
    assert nodes(found) == ["r9h0", "r9h1", "r9h2", "r9h3", "r3h0", "r3h1", "r3h2", "r3h3"]


def test_a_slice_moves_within_the_required_domain_alone_and_else_the_gang_waits_for_a_host() -> None:
    found = placed({"r0": [8, 8], "r1": [8, 0], "r2": [8, 8]}, FOUR, required="pod")
    assert nodes(found) == ["r0h0", "r0h1", "r2h0", "r2h1"]
    assert placed({"r0": [8, 8], "r1": [8, 0], "r3": [8, 8]}, FOUR, required="pod") is None


def test_where_no_rack_has_room_for_the_slice_the_gang_is_placed_again() -> None:
    free = {"r0": [8, 8], "r1": [8, 0], "r2": [8], "r3": [8]}
    assert placed(free, FOUR) is None
    whole = {**free, "r3": [8, 8], "r0": [0, 8]}
    assert placed(whole, FOUR) is None


def test_for_what_is_only_preferred_for_no_good_host_is_left() -> None:
    wished = PlacementRule(preferred=(Preference((Slice("rack", 2),)),))
    found = placed({"r0": [8, 8], "r1": [8, 0], "r2": [8, 8]}, FOUR, wished)
    assert nodes(found)[:3] == ["r0h0", "r0h1", "r1h0"]


@settings(max_examples=examples(200))
@given(
    free=st.lists(st.lists(st.sampled_from([0, 8, 8]), min_size=2, max_size=4), min_size=6, max_size=6),
    rule=st.sampled_from([IN_RACKS, IN_BOTH]),
)
def test_whatever_is_lost_slices_stay_whole_and_one_that_lost_nothing_stays(
    free: list[list[int]], rule: PlacementRule
) -> None:
    last = kept("r0h0", "r0h1", "r1h0", "r1h1", "r3h0", "r3h1", "r4h0", "r4h1")
    before = [str(name) for name, _ in last]
    state = FleetState(racks({f"r{number}": hosts for number, hosts in enumerate(free)}, pods=PODS), POLICY, LEVELS)
    request = replace(request_of(job("j", nodes=8, gpus=8)), rule=rule)
    chosen = replan(state, request, last)
    if chosen is None:
        return
    found = [str(name) for name, _ in parts_of(state, request.tier, chosen)]
    assert len(set(found)) == len(last)
    for start in range(0, 8, 2):
        here = slice(start, start + 2)
        assert len({name[:2] for name in found[here]}) == 1
        is_whole = all(free[int(name[1])][int(name[3])] for name in before[here])
        if rule is IN_RACKS and is_whole:
            assert found[here] == before[here]
    if rule is IN_BOTH:
        assert [len({PODS[name[:2]] for name in found[start : start + 4]}) for start in (0, 4)] == [1, 1]


@pytest.mark.parametrize("lost", range(4))
def test_whichever_rank_is_lost_the_other_slice_stays(lost: int) -> None:
    names = [str(name) for name, _ in FOUR]
    free = {rack: [0 if names[lost] == f"{rack}h{number}" else 8 for number in (0, 1)] for rack in ("r0", "r1")}
    found = nodes(placed({**free, "r2": [8, 8]}, FOUR))
    moved = [index for index in range(4) if found[index] != names[index]]
    assert moved == ([0, 1] if lost < 2 else [2, 3])
