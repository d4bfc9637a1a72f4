"""A tier states in what the GPUs of its gangs must be alike; GPUs that one tier takes are not free for others."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from health.cohort.cohorts import part_of_key
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.job.wait_reasons import WaitReason
from muster.domain.policy.document import DEFAULT_POLICY, Policy
from scheduler.fleet.topology import FleetState
from scheduler.model import ElasticGang, GpuView, Parts, Plan, RunningAttempt, WaitingJob, Workload
from scheduler.planner import plan
from scheduler.reclaim.victims import dispensable
from scheduler.solve.solver import Request
from tests.scaled import examples
from tests.scheduler.fleets import NOW_MS, hold, host, job, running
from tests.scheduler.solve.recovered import recover

OLD, NEW = "driver_version=570|model=H100|vbios_version=1", "driver_version=570|model=H100|vbios_version=2"
OTHER_DRIVER = "driver_version=580|model=H100|vbios_version=1"
REQUESTED = ["driver_version", "model"]
POLICY = Policy.model_validate(
    {
        "tiers": {
            "on_demand": {"priority": 200},
            "spot": {"priority": 100, "notice_s": 120.0, "homogeneity": REQUESTED},
        },
        "health": {"cohort": {"attributes": ["driver_version", "model", "vbios_version"]}},
    },
)


def swapped(name: str) -> list[GpuView]:
    """A host of eight, one of which has another VBIOS."""
    gpus = host(name, 8, cohort=OLD)
    return [*gpus[:3], replace(gpus[3], cohort_key=NEW), *gpus[4:]]


def sizes(decided: Plan) -> dict[str, list[int]]:
    return {placed.job_id: [len(uuids) for _, uuids in placed.parts] for placed in decided.placements}


def test_a_swapped_board_splits_its_host_only_for_a_tier_that_requests_its_vbios() -> None:
    queue = [job("strict", gpus=8), job("loose", gpus=8, tier="spot")]
    decided = plan(swapped("a"), queue, POLICY)
    assert sizes(decided) == {"loose": [8]}
    (waits,) = decided.waiting
    assert waits.verdict.binding is WaitReason.CAPACITY
    assert plan(swapped("a"), [job("strict", gpus=7)], POLICY).placements


def test_no_tier_mixes_what_it_requests() -> None:
    gpus = [*host("a", 4, cohort=OLD), *host("b", 4, cohort=NEW), *host("c", 4, cohort=OTHER_DRIVER)]
    assert sizes(plan(gpus, [job("two", nodes=2, gpus=4, tier="spot")], POLICY)) == {"two": [4, 4]}
    decided = plan(gpus, [job("three", nodes=3, gpus=4, tier="spot")], POLICY)
    assert decided.waiting[0].verdict.binding is WaitReason.COHORT
    assert "4 GPUs differ from it in driver_version" in decided.waiting[0].why
    assert not plan(gpus, [job("strict", nodes=2, gpus=4)], POLICY).placements


def test_what_a_tier_takes_is_gone_for_the_others() -> None:
    queue = [job("strict", gpus=4), job("loose", gpus=4, tier="spot"), job("late", gpus=4, tier="spot", at=1)]
    decided = plan(swapped("a"), queue, POLICY)
    taken = [uuid for placed in decided.placements for _, uuids in placed.parts for uuid in uuids]
    assert len(taken) == len(set(taken)) == 8
    assert [waits.job_id for waits in decided.waiting] == ["late"]


def test_a_gang_that_goes_on_takes_a_spare_of_another_vbios_where_its_tier_lets_it() -> None:
    gpus = swapped("a")
    last = ((gpus[0].node_id, tuple(gpu.uuid for gpu in gpus[:3])),)
    bad = [gpus[0].uuid]
    busy = [replace(gpu, facts=replace(gpu.facts, is_assigned=True)) if gpu.slot_index > 3 else gpu for gpu in gpus]
    found = recover(FleetState(busy, POLICY), Request("spot", 1, 3), last, bad)
    assert found is not None
    assert found.parts[0][1] == (GpuUuid("a-3"), GpuUuid("a-1"), GpuUuid("a-2"))
    assert recover(FleetState(busy, POLICY), Request("on_demand", 1, 3), last, bad) is None


def test_a_strict_gang_reclaims_a_loose_one_that_lies_on_two_vbioses() -> None:
    gpus = swapped("a")
    held = [replace(gpu, facts=replace(gpu.facts, is_assigned=True)) for gpu in gpus]
    loose = running("loose", [gpu.uuid for gpu in gpus], tier="spot")
    decided = plan(held, [job("strict", gpus=7)], POLICY, Workload(NOW_MS, (loose,), peak_gpus={loose.tenant_id: 99}))
    (reclaim,) = decided.reclaims
    assert reclaim.victim == loose.attempt_id
    assert "a-3" not in reclaim.hold


def test_a_loose_gang_reclaims_strict_ones_of_two_vbioses_on_one_host() -> None:
    loose = {"on_demand": {"priority": 200, "homogeneity": REQUESTED}, "spot": {"priority": 100, "notice_s": 120.0}}
    policy = Policy.model_validate({**POLICY.model_dump(mode="json"), "tiers": loose}, strict=False)
    gpus = [*host("z", 8, cohort=OTHER_DRIVER), *swapped("a")]
    held = [replace(gpu, facts=replace(gpu.facts, is_assigned=True)) for gpu in gpus]
    alike = [gpu.uuid for gpu in gpus if gpu.cohort_key == OLD]
    tenants = [
        running("seven", alike),
        running("one", ["a-3"]),
        running("z", [f"z-{slot}" for slot in range(8)], minutes=9),
    ]
    peaks = {tenants[0].tenant_id: 99}
    decided = plan(held, [job("loose", gpus=8)], policy, Workload(NOW_MS, tuple(tenants), peak_gpus=peaks))
    assert {reclaim.victim for reclaim in decided.reclaims} == {"seven", "one"}
    assert set(decided.reclaims[0].hold) == {f"a-{slot}" for slot in range(8)}


def test_no_victim_is_let_off_which_a_loose_gang_needs() -> None:
    state = FleetState([*swapped("a"), *swapped("b")], POLICY)
    seven = state.layout.gpu_indices(gpu.uuid for gpu in swapped("b") if gpu.cohort_key == OLD)
    one = state.layout.gpu_indices([GpuUuid("b-3")])
    state.take(state.layout.gpu_indices(gpu.uuid for gpu in swapped("a")))
    assert dispensable(state, Request("spot", 1, 8), {0: seven, 1: one}) == set()
    assert dispensable(state, Request("spot", 1, 7), {0: seven, 1: one}) == {1}


@st.composite
def fleets(draw: st.DrawFn) -> list[GpuView]:
    gpus: list[GpuView] = []
    for number in range(draw(st.integers(1, 5))):
        path = (f"r{draw(st.integers(0, 1))}",)
        cohorts = draw(st.lists(st.sampled_from([OLD, NEW, OTHER_DRIVER]), min_size=1, max_size=4))
        views = host(f"n{number}", len(cohorts), path=path)
        is_held = draw(st.lists(st.booleans(), min_size=len(cohorts), max_size=len(cohorts)))
        gpus += [
            replace(gpu, cohort_key=key, facts=replace(gpu.facts, is_assigned=held))
            for gpu, key, held in zip(views, cohorts, is_held, strict=True)
        ]
    return gpus


JOBS = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=5)


@given(fleets(), JOBS)
def test_a_tiers_rule_is_as_if_all_gpus_were_distinguished_by_it(
    gpus: list[GpuView], shapes: list[tuple[int, int]]
) -> None:
    queue = [job(f"j{at}", nodes=nodes, gpus=size, tier="spot", at=at) for at, (nodes, size) in enumerate(shapes)]
    alike = [replace(gpu, cohort_key=part_of_key(gpu.cohort_key, REQUESTED)) for gpu in gpus]
    by_rule, by_key = plan(gpus, queue, POLICY), plan(alike, queue, DEFAULT_POLICY)
    assert by_rule.placements == by_key.placements
    assert [(one.job_id, one.verdict.reasons) for one in by_rule.waiting] == [
        (one.job_id, one.verdict.reasons) for one in by_key.waiting
    ]


@given(fleets(), JOBS, st.lists(st.sampled_from(["on_demand", "spot"]), min_size=5, max_size=5))
def test_counts_that_are_kept_are_those_counted_again(
    gpus: list[GpuView], shapes: list[tuple[int, int]], tiers: list[str]
) -> None:
    state = FleetState(gpus, POLICY)
    queue: list[WaitingJob] = [
        job(f"j{at}", nodes=nodes, gpus=size, tier=tier, at=at)
        for at, ((nodes, size), tier) in enumerate(zip(shapes, tiers, strict=False))
    ]
    decided = plan(gpus, queue, POLICY)
    taken = [uuid for placed in decided.placements for _, uuids in placed.parts for uuid in uuids]
    assert len(taken) == len(set(taken))
    state.tier("spot"), state.tier("on_demand")
    state.for_tier("spot").take(state.layout.gpu_indices(taken))
    for tier in ("spot", "on_demand"):
        assert state.tier(tier).counts.tolist() == state.recount(tier).tolist()


@pytest.mark.parametrize("requested", [["gsp_firmware_version"], ["nonsense"], []])
def test_a_tier_requests_nothing_that_cohorts_do_not_distinguish(requested: list[str]) -> None:
    tiers = {"spot": {"priority": 1, "homogeneity": requested}}
    with pytest.raises(ValueError, match="homogeneity"):
        Policy.model_validate({"tiers": tiers})


EASIER = Policy.model_validate(
    {
        "tiers": {
            "reserved": {"priority": 200, "homogeneity": REQUESTED},
            "spot": {"priority": 100, "notice_s": 120.0, "homogeneity": REQUESTED},
        },
        "reclaim": {"cap_fraction": 1.0},
        "queue": {"holds_per_cohort": 16},
    }
)
BY_ALL = EASIER.model_copy(
    update={"tiers": {name: tier.model_copy(update={"homogeneity": None}) for name, tier in EASIER.tiers.items()}}
)


@st.composite
def busy_fleets(draw: st.DrawFn) -> tuple[list[GpuView], list[RunningAttempt], list[Parts]]:
    """Hosts of four of which one board or more may be another's, attempts there, and parts of ended attempts."""
    gpus: list[GpuView] = []
    attempts: list[RunningAttempt] = []
    last: list[Parts] = []
    for number in range(draw(st.integers(1, 3))):
        parts = []
        for half in range(2):
            name = f"n{number}{half}"
            cohorts = draw(st.lists(st.sampled_from([OLD, OLD, NEW, OTHER_DRIVER]), min_size=4, max_size=4))
            views = host(name, 4, path=(f"r{number % 2}",))
            gpus += [replace(gpu, cohort_key=key) for gpu, key in zip(views, cohorts, strict=True)]
            parts.append((views[0].node_id, tuple(gpu.uuid for gpu in views[: draw(st.sampled_from([2, 4]))])))
        if draw(st.booleans()):
            last.append(tuple(parts))
            continue
        one = running(f"v{number}", [uuid for _, uuids in parts for uuid in uuids], saved_minutes=number)
        if len({len(uuids) for _, uuids in parts}) == 1 and draw(st.booleans()):
            most = draw(st.integers(2, 3))
            one = replace(one, elastic=ElasticGang(tuple(parts), 1, most, len(parts[0][1]), None))
        attempts.append(one)
    return hold(gpus, [uuid for one in attempts for uuid in one.gpus]), attempts, last


@settings(max_examples=examples(300))
@given(busy_fleets(), JOBS, st.sampled_from([None, "rack"]))
def test_a_tiers_rule_is_as_if_for_reclaim_swaps_growth_and_holds_too(
    fleet: tuple[list[GpuView], list[RunningAttempt], list[Parts]],
    shapes: list[tuple[int, int]],
    required: str | None,
) -> None:
    gpus, attempts, last = fleet
    queue = [job(f"j{at}", nodes=nodes, gpus=size, tier="reserved", at=at) for at, (nodes, size) in enumerate(shapes)]
    queue += [
        replace(
            job(f"k{at}", nodes=len(parts), gpus=len(parts[0][1]), tier="spot", keep=parts, required=required),
            interrupted_ms=NOW_MS - 1,
        )
        for at, parts in enumerate(last)
    ]
    workload = Workload(NOW_MS, tuple(attempts), peak_gpus={one.tenant_id: 999 for one in attempts})
    alike = [replace(gpu, cohort_key=part_of_key(gpu.cohort_key, REQUESTED)) for gpu in gpus]
    by_rule, by_key = plan(gpus, queue, EASIER, workload), plan(alike, queue, BY_ALL, workload)
    assert replace(by_rule, waiting=()) == replace(by_key, waiting=())
    assert [(one.job_id, one.verdict.reasons) for one in by_rule.waiting] == [
        (one.job_id, one.verdict.reasons) for one in by_key.waiting
    ]


def test_a_gang_that_goes_on_keeps_its_hosts_under_an_easier_rule_too() -> None:
    gpus = [*swapped("a"), *swapped("b"), *host("c", 8, cohort=OLD)]
    keep: Parts = tuple((NodeId(name), tuple(GpuUuid(f"{name}-{slot}") for slot in range(8))) for name in ("b", "c"))
    went_on = replace(job("k", nodes=2, gpus=8, tier="spot", keep=keep), interrupted_ms=NOW_MS - 1)
    (placed,) = plan(gpus, [went_on], EASIER, Workload(NOW_MS)).placements
    assert placed.parts == keep


@pytest.mark.parametrize("is_elastic", [False, True])
def test_a_tier_of_an_easier_rule_reclaims_across_vbioses(*, is_elastic: bool) -> None:
    gpus = [*swapped("a"), *swapped("b")]
    parts: Parts = tuple((NodeId(name), tuple(GpuUuid(f"{name}-{slot}") for slot in range(8))) for name in ("a", "b"))
    victim = running("v", [gpu.uuid for gpu in gpus], saved_minutes=1)
    victim = replace(victim, elastic=ElasticGang(parts, 1, 2, 8)) if is_elastic else victim
    held = hold(gpus, victim.gpus)
    (reclaim,) = plan(held, [job("gang", gpus=8, tier="reserved")], EASIER, Workload(NOW_MS, (victim,))).reclaims
    assert {uuid[0] for uuid in reclaim.hold} == {"b"} if is_elastic else {"a"}
    assert len(reclaim.keeps) == (8 if is_elastic else 0)
