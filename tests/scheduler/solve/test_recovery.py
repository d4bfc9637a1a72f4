"""Recovery: the good GPUs of the last attempt stay on their ranks, the bad ones are replaced nearby."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.domain.ids import GpuUuid, JobId, NodeId
from muster.domain.job.wait_reasons import WaitReason
from muster.domain.policy.document import DEFAULT_POLICY
from scheduler.fleet.topology import FleetState
from scheduler.model import GpuView, Parts, Reason, Resized, ResumeHold, Swap, WaitingJob, Workload
from scheduler.planner import plan
from scheduler.solve.recovery import swap_of
from scheduler.solve.solver import Request
from tests.scaled import examples
from tests.scheduler.fleets import NOW_MS, hold, host, job, of_host, racks
from tests.scheduler.solve.recovered import Recovery, recover


def parts(*nodes: tuple[str, list[str]]) -> Parts:
    return tuple((NodeId(name), tuple(GpuUuid(uuid) for uuid in uuids)) for name, uuids in nodes)


def recovered(
    gpus: list[GpuView], last: Parts, bad: Sequence[str], *, required: str | None = None, avoid: str | None = None
) -> Recovery | None:
    held = hold(gpus, [uuid for _, uuids in last for uuid in uuids])
    state = FleetState(held, DEFAULT_POLICY)
    avoided = frozenset() if avoid is None else frozenset({NodeId(avoid)})
    request = Request("on_demand", len(last), len(last[0][1]), required=required, avoid_nodes=avoided)
    before = state.is_free.copy()
    answer = recover(state, request, last, {GpuUuid(uuid) for uuid in bad})
    assert (state.is_free == before).all(), "a proposal changes nothing"
    return answer


def test_a_spare_on_the_same_host_takes_the_bad_gpus_rank() -> None:
    answer = recovered(host("a", 4), parts(("a", ["a-0", "a-1"])), ["a-0"])
    assert answer is not None
    assert answer.parts == parts(("a", ["a-2", "a-1"]))
    assert answer.kept == {"a-1"}


def test_only_the_bad_host_is_replaced_and_by_one_of_its_rack() -> None:
    gpus = racks({"r0": [8, 8, 8], "r1": [8, 8]})
    last = parts(*((name, of_host(name)) for name in ("r0h0", "r0h1", "r1h0")))
    answer = recovered(gpus, last, ["r0h1-3"])
    assert answer is not None
    assert [node for node, _ in answer.parts] == ["r0h0", "r0h2", "r1h0"]


def test_of_two_hosts_as_near_the_sound_one_takes_the_place_of_one_that_was_lost() -> None:
    def weak(name: str) -> list[GpuView]:
        return host(name, 8, path=("r0",), health_cost=2_000)

    fleet = [*host("a", 8, path=("r0",)), *host("b", 8, path=("r0",)), *weak("c"), *host("d", 8, path=("r0",))]
    last = parts(("a", of_host("a")), ("b", of_host("b")))
    answer = recovered(fleet, last, [], avoid="b")
    assert answer is not None
    assert [node for node, _ in answer.parts] == ["a", "d"]
    elsewhere = [*fleet[:24], *host("d", 8, path=("r1",))]
    answer = recovered(elsewhere, last, [], avoid="b")
    assert answer is not None
    assert [node for node, _ in answer.parts] == ["a", "c"], "a sound one further away is no better"


def test_a_replacement_gives_its_soundest_gpus() -> None:
    spare = [
        *host("c", 4, health_cost=2_000),
        *(replace(each, slot_index=4 + n) for n, each in enumerate(host("c", 8)[4:])),
    ]
    last = parts(("a", of_host("a", 4)), ("b", of_host("b", 4)))
    answer = recovered([*host("a", 4), *host("b", 4), *spare], last, [], avoid="b")
    assert answer is not None
    assert answer.parts[1] == (NodeId("c"), tuple(GpuUuid(f"c-{slot}") for slot in range(4, 8)))


def test_without_a_spare_in_the_rack_another_rack_gives_unless_the_rack_is_required() -> None:
    gpus = racks({"r0": [8, 8], "r1": [8]})
    last = parts(("r0h0", of_host("r0h0")), ("r0h1", of_host("r0h1")))
    answer = recovered(gpus, last, ["r0h1-0"])
    assert answer is not None
    assert [node for node, _ in answer.parts] == ["r0h0", "r1h0"]
    assert recovered(gpus, last, ["r0h1-0"], required="rack") is None


def test_a_lost_host_is_replaced_whole() -> None:
    gpus = racks({"r0": [8, 8, 8]})
    last = parts(("r0h0", of_host("r0h0")), ("r0h1", of_host("r0h1")))
    answer = recovered(gpus, last, [], avoid="r0h0")
    assert answer is not None
    assert [node for node, _ in answer.parts] == ["r0h2", "r0h1"]


def test_the_replacement_is_of_the_same_cohort() -> None:
    gpus = [*host("a", 2), *host("b", 2), *host("c", 2, cohort="a100")]
    assert recovered(gpus, parts(("a", of_host("a", 2)), ("b", of_host("b", 2))), ["b-0"]) is None


def test_a_job_of_another_shape_is_placed_again() -> None:
    state = FleetState(host("a", 4), DEFAULT_POLICY)
    assert recover(state, Request("on_demand", 1, 4), parts(("a", ["a-0"]))) is None


def test_the_planner_puts_a_job_back_where_it_was() -> None:
    gpus = [*host("a", 8), *host("b", 1), *host("c", 8)]
    kept = parts(("c", ["c-4"]))
    assert plan(gpus, [job("j", keep=kept)], DEFAULT_POLICY).placements[0].parts == kept
    assert plan(gpus, [job("j", keep=parts(("gone", ["gone-0"])))], DEFAULT_POLICY).placements[0].parts[0][0] == "b"


@settings(max_examples=examples(200))
@given(
    num_nodes=st.integers(1, 3),
    width=st.integers(1, 4),
    spares=st.lists(st.integers(0, 2), min_size=3, max_size=3),
    bad=st.sets(st.integers(0, 11)),
)
def test_recovery_keeps_every_good_gpu_of_a_host_that_can_still_give_its_part(
    num_nodes: int, width: int, spares: list[int], bad: set[int]
) -> None:
    gpus = [gpu for index in range(num_nodes) for gpu in host(f"n{index}", width + spares[index])]
    gpus += [gpu for index in range(num_nodes) for gpu in host(f"spare{index}", width)]
    last = parts(*((f"n{index}", of_host(f"n{index}", width)) for index in range(num_nodes)))
    used = [uuid for _, uuids in last for uuid in uuids]
    faulty = [uuid for index, uuid in enumerate(used) if index in bad]
    able = {
        index
        for index in range(num_nodes)
        if sum(f"n{index}-{slot}" in faulty for slot in range(width)) <= spares[index]
    }
    has_any_good = len(faulty) < len(used)
    answer = recovered(gpus, last, faulty)
    good = {uuid for index in able for uuid in of_host(f"n{index}", width) if uuid not in faulty}
    if good:
        assert answer is not None
        assert answer.kept == good
    if answer is not None:
        placed = [uuid for _, uuids in answer.parts for uuid in uuids]
        assert has_any_good
        assert not set(placed) & set(faulty)
        assert len(set(placed)) == num_nodes * width


WAITS = DEFAULT_POLICY.recovery.wait_for_replacement_s
LOST_A_HOST = racks({"r0": [8, 0, 8], "r1": [8, 8, 8]})
LAST = parts(*((name, of_host(name)) for name in ("r0h0", "r0h1", "r0h2")))


def interrupted(seconds_ago: float, *, required: str | None = "rack") -> WaitingJob:
    one = job("j", nodes=3, gpus=8, required=required, keep=LAST)
    return replace(one, interrupted_ms=NOW_MS - int(seconds_ago * 1000))


def test_a_gang_keeps_its_good_hosts_while_its_rack_has_no_replacement() -> None:
    decided = plan(
        LOST_A_HOST, [interrupted(1), job("other", nodes=2, gpus=8)], DEFAULT_POLICY, Workload(now_ms=NOW_MS)
    )
    assert [(one.job_id, [node for node, _ in one.parts]) for one in decided.placements] == [
        ("other", ["r1h0", "r1h1"])
    ]
    (held,) = decided.holds
    assert set(held.gpus) == {*of_host("r0h0"), *of_host("r0h2")}
    assert held.until_ms == NOW_MS + int((WAITS - 1) * 1000)
    (waiting,) = decided.waiting
    assert waiting.verdict.reasons[-1] == Reason(WaitReason.REPLACEMENT, 16, 2)
    assert "2 of its 3 hosts are good and kept for it" in waiting.why


def test_it_waits_for_none_where_its_rack_has_no_other_host_to_hope_for() -> None:
    """The host at fault is avoided, and the rack has no fourth one: until the wait was over nothing could come."""
    avoiding = replace(interrupted(1), avoid_nodes=frozenset({NodeId("r0h1")}))
    decided = plan(LOST_A_HOST, [avoiding], DEFAULT_POLICY, Workload(now_ms=NOW_MS))
    assert [node for node, _ in decided.placements[0].parts] == ["r1h0", "r1h1", "r1h2"]
    with_a_fourth = racks({"r0": [8, 0, 8, 0], "r1": [8, 8, 8]})
    (held,) = plan(with_a_fourth, [avoiding], DEFAULT_POLICY, Workload(now_ms=NOW_MS)).holds
    assert set(held.gpus) == {*of_host("r0h0"), *of_host("r0h2")}


@pytest.mark.parametrize(("seconds_ago", "required"), [(WAITS, "rack"), (1, None)])
def test_after_the_wait_or_without_a_required_level_it_waits_no_more(seconds_ago: float, required: str | None) -> None:
    (placed,) = plan(
        LOST_A_HOST, [interrupted(seconds_ago, required=required)], DEFAULT_POLICY, Workload(now_ms=NOW_MS)
    ).placements
    nodes = [node for node, _ in placed.parts]
    if required is None:
        assert nodes == ["r0h0", "r1h0", "r0h2"]
        assert placed.swap == Swap(2, 16, ((NodeId("r0h1"), NodeId("r1h0")),))
    else:
        assert nodes == ["r1h0", "r1h1", "r1h2"]
        assert placed.swap is not None
        assert placed.swap.kept_nodes == 0


def test_what_is_on_hold_for_it_since_its_end_none_takes_whoever_comes_first() -> None:
    """A GPU of the lost host is broken: the seven others are held as well, and refused to others at the commit."""
    gpus = racks({"r0": [8, 7, 8], "r1": [1]})
    own = ResumeHold(JobId("j"), tuple(GpuUuid(uuid) for name in ("r0h0", "r0h1", "r0h2") for uuid in of_host(name)))
    others = [job("first", nodes=2, gpus=8, tier="reserved"), job("small", gpus=4), job("least", gpus=1)]
    decided = plan(gpus, [interrupted(1), *others], DEFAULT_POLICY, Workload(now_ms=NOW_MS, holds=(own,)))
    assert [(one.job_id, [node for node, _ in one.parts]) for one in decided.placements] == [("least", ["r1h0"])]
    assert decided.lapses == (), "while it waits for a replacement"
    (held,) = decided.holds
    assert set(held.gpus) == {*of_host("r0h0"), *of_host("r0h2")}


def test_what_is_on_hold_for_one_that_waits_no_more_for_a_replacement_lapses() -> None:
    own = ResumeHold(JobId("j"), tuple(GpuUuid(uuid) for name in ("r0h0", "r0h2") for uuid in of_host(name)))
    gpus = racks({"r0": [8, 0, 8]})
    decided = plan(gpus, [interrupted(WAITS)], DEFAULT_POLICY, Workload(now_ms=NOW_MS, holds=(own,)))
    assert [lapsed.beneficiary for lapsed in decided.lapses] == ["j"]


def test_a_host_of_higher_rank_in_the_queue_may_take_what_it_keeps_where_nothing_is_on_hold_for_it() -> None:
    first = job("first", nodes=2, gpus=8, tier="reserved", required="rack")
    decided = plan(racks({"r0": [8, 0, 8]}), [interrupted(1), first], DEFAULT_POLICY, Workload(now_ms=NOW_MS))
    assert [one.job_id for one in decided.placements] == ["first"]
    assert not any(one.job_id == "j" for one in decided.holds)


def test_an_elastic_gang_that_goes_on_with_fewer_hosts_swaps_none() -> None:
    last = parts(*((f"r0h{number}", of_host(f"r0h{number}")) for number in range(4)))
    shrunk = swap_of(last, (last[0], last[2], last[3]))
    assert shrunk == Swap(3, 24, resized=Resized(4, 3, (NodeId("r0h1"),), ()))


def test_one_that_grows_back_has_its_own_hosts_and_new_ones() -> None:
    last = parts(*((f"r0h{number}", of_host(f"r0h{number}")) for number in range(3)))
    new = parts(*((f"r0h{number}", of_host(f"r0h{number}")) for number in (0, 2, 3, 4)))
    names = tuple(NodeId(f"r0h{number}") for number in range(5))
    assert swap_of(last, new) == Swap(2, 16, resized=Resized(3, 4, (names[1],), (names[3], names[4])))


def test_several_lost_hosts_are_replaced_in_one_plan_and_ranks_stay() -> None:
    gpus = racks({"r0": [8, 0, 0, 8, 8]})
    last = parts(*((f"r0h{number}", of_host(f"r0h{number}")) for number in (0, 1, 2)))
    one = replace(job("j", nodes=3, gpus=8, required="rack", keep=last), interrupted_ms=NOW_MS)
    (placed,) = plan(gpus, [one], DEFAULT_POLICY, Workload(now_ms=NOW_MS)).placements
    assert [node for node, _ in placed.parts] == ["r0h0", "r0h3", "r0h4"]
    assert placed.swap == Swap(1, 8, ((NodeId("r0h1"), NodeId("r0h3")), (NodeId("r0h2"), NodeId("r0h4"))))
