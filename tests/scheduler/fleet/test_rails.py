"""Rails: where an operator has declared them, a gang takes the same on each host; held against a search of all sets."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.domain.gpu.rails import MOST_SLOTS, rails_of_label
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.policy.document import DEFAULT_POLICY, Policy
from scheduler.fleet.topology import FleetState
from scheduler.model import GpuView, Parts
from scheduler.planner import plan
from scheduler.solve.placement_rule import PlacementRule, Slice
from scheduler.solve.rail_sets import KeptLanes, sets_of, tightest
from scheduler.solve.solver import parts_of, place, request_of
from tests.scaled import examples
from tests.scheduler.fleets import hold, host, job, of_host

LEVELS = ("rack",)


def with_rails(rails: Sequence[int]) -> Policy:
    placement = DEFAULT_POLICY.placement.model_copy(update={"rails": tuple(rails)})
    return DEFAULT_POLICY.model_copy(update={"placement": placement})


BY_SLOT = with_rails(range(8))


def fleet(free: Mapping[str, Iterable[int]], labels: Mapping[str, str] | None = None) -> list[GpuView]:
    """Hosts of 8 GPUs by which of their slots are free; their rack is the first letter of their name."""
    gpus: list[GpuView] = []
    for name, slots in free.items():
        own = (("rails", labels[name]),) if labels and name in labels else ()
        views = [replace(view, labels=own) for view in host(name, 8, path=(name[0],))]
        gpus += hold(views, set(of_host(name)) - {f"{name}-{slot}" for slot in slots})
    return gpus


ALL = range(8)
LOW, HIGH = range(4), range(4, 8)


def slots(gpus: list[GpuView], nodes: int, width: int, policy: Policy = BY_SLOT) -> dict[str, list[int]]:
    """By host in rank order, the slots in the order of local ranks."""
    placements = plan(gpus, [job("j", nodes=nodes, gpus=width)], policy, levels=LEVELS).placements
    return slots_of(placements[0].parts) if placements else {}


def slots_of(parts: Parts) -> dict[str, list[int]]:
    return {node: [int(uuid.rpartition("-")[2]) for uuid in uuids] for node, uuids in parts}


def test_hosts_are_taken_that_have_the_same_rails_free_before_those_that_leave_less_over() -> None:
    free = {"a0": LOW, "a1": HIGH, "a2": ALL, "a3": HIGH}
    assert slots(fleet(free), 2, 4) == {"a1": [4, 5, 6, 7], "a3": [4, 5, 6, 7]}
    assert slots(fleet(free), 2, 4, DEFAULT_POLICY) == {"a0": [0, 1, 2, 3], "a1": [4, 5, 6, 7]}, "undeclared: by place"
    assert slots(fleet(free), 3, 4) == {"a1": [4, 5, 6, 7], "a2": [4, 5, 6, 7], "a3": [4, 5, 6, 7]}


def test_a_home_in_which_the_rails_are_the_same_goes_before_one_in_which_they_are_not() -> None:
    free = {"a0": LOW, "a1": HIGH, "b0": ALL, "b1": ALL, "b2": ALL}
    assert slots(fleet(free), 2, 4) == {"b0": [0, 1, 2, 3], "b1": [0, 1, 2, 3]}
    assert set(slots(fleet(free), 2, 4, DEFAULT_POLICY)) == {"a0", "a1"}


def test_rails_widen_no_gang_and_keep_none_waiting() -> None:
    free = {"a0": LOW, "a1": HIGH, "b0": LOW}
    assert slots(fleet(free), 2, 4) == {"a0": [0, 1, 2, 3], "a1": [4, 5, 6, 7]}, "one rack, though a0 and b0 are alike"
    assert slots(fleet(free), 3, 4) == {"a0": [0, 1, 2, 3], "a1": [4, 5, 6, 7], "b0": [0, 1, 2, 3]}


def test_within_slices_too() -> None:
    free = {"a0": LOW, "a1": HIGH, "a2": ALL, "b0": HIGH, "b1": HIGH}
    wanted = replace(job("j", nodes=4, gpus=4), rule=PlacementRule(slices=(Slice("rack", 2),)))
    (placed,) = plan(fleet(free), [wanted], BY_SLOT, levels=LEVELS).placements
    assert slots_of(placed.parts) == {name: [4, 5, 6, 7] for name in ("a1", "a2", "b0", "b1")}


def test_an_even_spread_goes_before_rails() -> None:
    free = {"a0": LOW, "a1": LOW, "a2": LOW, "b0": HIGH, "b1": LOW}
    wanted = replace(job("j", nodes=4, gpus=4), rule=PlacementRule(balance="rack"))
    (placed,) = plan(fleet(free), [wanted], BY_SLOT, levels=LEVELS).placements
    assert [node for node, _ in placed.parts] == ["a0", "a1", "b0", "b1"]
    assert set(slots(fleet(free), 4, 4)) == {"a0", "a1", "a2", "b1"}


def test_one_host_gives_what_leaves_aligned_blocks_of_rails_whole() -> None:
    assert slots(fleet({"a0": [0, 1, 2, 3, 6, 7]}), 1, 2) == {"a0": [6, 7]}
    assert slots(fleet({"a0": [1, 2, 3, 4, 5]}), 1, 1) == {"a0": [1]}
    assert slots(fleet({"a0": [1, 4, 5, 6, 7]}), 1, 4) == {"a0": [4, 5, 6, 7]}
    assert slots(fleet({"a0": [1, 4, 5, 6, 7]}), 1, 4, DEFAULT_POLICY) == {"a0": [1, 4, 5, 6]}


def test_local_ranks_go_by_rail_where_a_host_is_wired_otherwise() -> None:
    labels = {"a1": "7,6,5,4,3,2,1,0"}
    down = [7, 6, 5, 4, 3, 2, 1, 0]
    assert slots(fleet({"a0": ALL, "a1": ALL}, labels), 2, 8) == {"a0": list(ALL), "a1": down}
    assert slots(fleet({"a0": ALL, "a1": ALL}, labels), 2, 4) == {"a0": [0, 1, 2, 3], "a1": [7, 6, 5, 4]}


def test_hosts_may_declare_rails_by_their_labels_alone_or_have_none() -> None:
    free = {"a0": LOW, "a1": HIGH, "a2": HIGH}
    by_label = dict.fromkeys(free, "0,1,2,3,4,5,6,7")
    assert set(slots(fleet(free, by_label), 2, 4, DEFAULT_POLICY)) == {"a1", "a2"}
    assert set(slots(fleet(free, dict.fromkeys(free, "none")), 2, 4)) == {"a0", "a1"}
    assert set(slots(fleet(free, dict.fromkeys(free, "left,right")), 2, 4)) == {"a0", "a1"}, "unknown is none"


def test_two_gpus_of_one_rail_stand_for_each_other() -> None:
    shared = with_rails([0, 0, 1, 1, 2, 2, 3, 3])
    free = {"a0": [0, 2, 4, 6], "a1": [1, 3, 5, 7], "a2": [0, 1, 2, 3]}
    assert slots(fleet(free), 2, 4) == {"a0": [0, 2, 4, 6], "a1": [1, 3, 5, 7]}
    assert slots(fleet(free), 3, 2, shared) == {"a0": [0, 2], "a1": [1, 3], "a2": [0, 2]}


def test_hosts_of_one_rail_and_of_many_may_be_mixed() -> None:
    """23 lanes in all: the lanes of the many rails begin after the 16 of the one."""
    free = {"a0": ALL, "a1": [5, 6], "a2": [1, 2], "a3": [5, 6, 7], "a4": [0, 3]}
    labels = dict.fromkeys(("a1", "a2", "a3"), "0,1,2,3,4,5,6,7")
    assert slots(fleet(free, labels), 2, 2, with_rails([0] * 16)) == {"a1": [5, 6], "a3": [5, 6]}
    del free["a1"]
    assert slots(fleet(free, labels), 2, 2, with_rails([0] * 16)) == {"a0": [0, 1], "a4": [0, 3]}


def test_what_health_requests_goes_first() -> None:
    gpus = [
        replace(view, health_cost=2_000 * (view.node_id == "a0" and view.slot_index == 1))
        for view in fleet({"a0": ALL, "a1": ALL})
    ]
    assert slots(gpus, 2, 4) == {"a0": [4, 5, 6, 7], "a1": [4, 5, 6, 7]}
    assert slots(gpus, 2, 7) == {"a0": [0, 2, 3, 4, 5, 6, 7], "a1": [0, 2, 3, 4, 5, 6, 7]}


def test_where_a_host_has_too_few_sound_gpus_on_rails_each_host_gives_its_soundest() -> None:
    """Six of a0's eight are sound, and each host has to give seven."""
    gpus = [
        replace(view, health_cost=2_000 * (view.node_id == "a0" and view.slot_index in {1, 2}))
        for view in fleet({"a0": ALL, "a1": ALL})
    ]
    assert slots(gpus, 2, 7) == {"a0": [0, 1, 3, 4, 5, 6, 7], "a1": [0, 1, 2, 3, 4, 5, 6]}


def test_a_replacement_has_the_rails_of_the_hosts_that_stay() -> None:
    free = {"a0": HIGH, "a1": [], "a2": LOW, "a3": ALL, "a4": HIGH}
    keep = tuple((NodeId(name), tuple(map(GpuUuid, of_host(name, 4, 4)))) for name in ("a0", "a1"))
    wanted = replace(job("j", nodes=2, gpus=4), keep=keep)

    def after(policy: Policy, **more: Iterable[int]) -> dict[str, list[int]]:
        (placed,) = plan(fleet({**free, **more}), [wanted], policy, levels=LEVELS).placements
        return slots_of(placed.parts)

    assert after(BY_SLOT) == {"a0": [4, 5, 6, 7], "a4": [4, 5, 6, 7]}
    assert after(BY_SLOT, a4=[]) == {"a0": [4, 5, 6, 7], "a3": [4, 5, 6, 7]}, "before a fuller one without them"
    assert after(DEFAULT_POLICY) == {"a0": [4, 5, 6, 7], "a2": [0, 1, 2, 3]}


HOSTS = st.lists(st.tuples(st.sampled_from("ab"), st.frozensets(st.integers(0, 7), max_size=8)), min_size=2, max_size=7)


@settings(max_examples=examples(150))
@given(HOSTS, st.integers(2, 4), st.integers(1, 7))
def test_a_gang_is_on_the_same_rails_exactly_where_its_level_has_hosts_for_it(
    hosts: list[tuple[str, frozenset[int]]], nodes: int, width: int
) -> None:
    """And it is placed exactly where, and no wider than, it is without rails."""
    free = {f"{rack}{number}": own for number, (rack, own) in enumerate(hosts)}
    found, plain = slots(fleet(free), nodes, width), slots(fleet(free), nodes, width, DEFAULT_POLICY)
    assert bool(found) == bool(plain)
    assert slots(fleet(free)[::-1], nodes, width) == found, "I19, whatever the order of the rows"
    if not found:
        return
    is_in_rack = len({name[0] for name in found}) == 1
    assert is_in_rack == (len({name[0] for name in plain}) == 1)
    homes = ("a", "b") if is_in_rack else ("ab",)
    can_be_same = any(
        sum(set(chosen) <= own for name, own in free.items() if name[0] in home) >= nodes
        for home in homes
        for chosen in combinations(range(8), width)
    )
    assert (len({tuple(own) for own in found.values()}) == 1) == can_be_same
    for name, own in found.items():
        assert set(own) <= free[name]
        assert own == sorted(own)
        assert len(own) == width


@given(st.integers(1, (1 << 8) - 1), st.data())
def test_the_tightest_lanes_break_no_larger_aligned_block_than_they_have_to(free: int, data: st.DataObject) -> None:
    num = data.draw(st.integers(1, free.bit_count()))
    lanes = [lane for lane in range(8) if free >> lane & 1]
    taken = tightest(free, num)
    assert (taken & ~free, taken.bit_count()) == (0, num)
    least = min(max(block_of(free, lane) for lane in chosen) for chosen in combinations(lanes, num))
    assert max(block_of(free, lane) for lane in lanes if taken >> lane & 1) == least


def block_of(free: int, lane: int) -> int:
    """Return the size of the largest aligned block of free lanes that contains it."""
    blocks = [(size, ((1 << size) - 1) << lane // size * size) for size in (8, 4, 2, 1)]
    return next(size for size, block in blocks if free & block == block)


@pytest.mark.parametrize("num_lanes", [4, 8, 16, 50])
def test_sets_are_of_their_size_each_once_and_aligned_blocks_come_first(num_lanes: int) -> None:
    for num in (1, 2, 3, 4):
        sets = [int(one) for one in sets_of(num, num_lanes)]
        assert {one.bit_count() for one in sets} == {num}
        assert len(set(sets)) == len(sets) <= 128
        assert sets[0] == (1 << num) - 1
        assert max(sets) < 1 << num_lanes


@settings(max_examples=examples(60))
@given(HOSTS, st.lists(st.integers(0, 55), max_size=2))
def test_lanes_that_are_kept_are_what_a_count_again_finds(
    hosts: list[tuple[str, frozenset[int]]], touched: list[int]
) -> None:
    gpus = fleet({f"{rack}{number}": own for number, (rack, own) in enumerate(hosts)})
    state = FleetState(gpus, with_rails([0, 0, 1, 1, 2, 2, 3, 3]), LEVELS)
    rails = state.rails
    kept = state.kept("lanes", lambda: KeptLanes(state, "on_demand", rails))
    for number in touched:
        gpu = np.array([number % len(gpus)])
        (state.take if state.is_free[gpu].all() else state.give)(gpu)
    again = state.kept("lanes", lambda: KeptLanes(state, "on_demand", rails))
    assert again is kept
    assert (again.lanes == KeptLanes(state, "on_demand", rails).lanes).all()


def test_the_names_of_whole_hosts_come_in_the_order_of_their_rails() -> None:
    state = FleetState(fleet({"a0": ALL}, {"a0": "1,0,3,2,5,4,7,6"}), DEFAULT_POLICY, LEVELS)
    chosen = place(state, request_of(job("j", gpus=8)))
    assert chosen is not None
    assert slots_of(parts_of(state, "on_demand", chosen)) == {"a0": [1, 0, 3, 2, 5, 4, 7, 6]}


@pytest.mark.parametrize("text", ["", "0,2", "1,2", "0,0,1", "0;1", "-1,0", "0,1,", "٠,١", ",".join(["0"] * 17)])
def test_what_are_no_rails_is_refused_with_what_is_accepted(text: str) -> None:
    with pytest.raises(ValueError, match="such as 0,1,2,3"):
        rails_of_label(text)


def test_rails_of_a_label() -> None:
    assert rails_of_label("none") == ()
    assert rails_of_label("1,0,3,2") == (1, 0, 3, 2)
    assert len(rails_of_label(",".join(map(str, range(MOST_SLOTS))))) == MOST_SLOTS
    with pytest.raises(ValueError, match="numbered from 0 without a gap"):
        Policy.model_validate({**DEFAULT_POLICY.model_dump(mode="json"), "placement": {"rails": [0, 2]}}, strict=False)
