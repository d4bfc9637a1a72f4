"""The planner: whole gangs, one cohort, admitted and free GPUs alone, and a reason for each pending job."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from health.standing.admission import AdmissionFacts, refusal_of
from muster.domain.ids import GpuUuid, JobId, NodeId
from muster.domain.policy.document import DEFAULT_POLICY
from muster.domain.states import Contact, Standing
from scheduler import planner
from scheduler.planner import GpuView, WaitingJob, Workload, plan
from tests.scaled import examples
from tests.scheduler import fleets
from tests.scheduler.fleets import FACTS, MINUTE_MS, NOW_MS

FIT = AdmissionFacts(standing=Standing.HEALTHY, contact=Contact.LIVE)


def host(name: str, count: int, *, cohort: str = "h100", facts: AdmissionFacts = FIT) -> list[GpuView]:
    return [GpuView(GpuUuid(f"{name}-{slot}"), NodeId(name), slot, cohort, facts) for slot in range(count)]


def job(name: str, *, nodes: int = 1, gpus: int = 1, tier: str = "on_demand", at: int = 0) -> WaitingJob:
    return WaitingJob(JobId(name), 1, tier, at, nodes, gpus)


def test_the_example_that_opens_the_planner() -> None:
    attempts = (
        fleets.running("a", fleets.of_host("r1h0"), tier="on_demand", ends_minutes=60),
        fleets.running("b", fleets.of_host("r0h1"), tier="spot"),
    )
    queue = [
        replace(job("urgent", nodes=2, gpus=8, tier="reserved"), required_level="rack"),
        replace(job("gang", nodes=2, gpus=8), expected_s=3_600.0),
        replace(job("short", gpus=8, tier="spot"), expected_s=50 * 60.0),
        replace(job("long", gpus=8, tier="spot"), expected_s=70 * 60.0),
    ]
    decided = plan(fleets.racks({"r0": [8, 0], "r1": [0, 8]}), queue, DEFAULT_POLICY, Workload(NOW_MS, attempts))
    (reclaim,) = decided.reclaims
    assert (reclaim.victim, reclaim.beneficiary, reclaim.notice_s) == ("b", "urgent", 120.0)
    assert {uuid[:4] for uuid in reclaim.hold} == {"r0h0", "r0h1"}
    (held,) = decided.holds
    assert (held.job_id, held.until_ms) == ("gang", NOW_MS + 60 * MINUTE_MS)
    assert {uuid[:4] for uuid in held.gpus} == {"r1h0", "r1h1"}
    placed = {one.job_id: [node for node, _ in one.parts] for one in decided.placements}
    assert placed == {"short": ["r1h1"]}
    assert [one.job_id for one in decided.waiting] == ["urgent", "gang", "long"]
    for line in (
        "b gets notice (spot, 120 s); r0h0, r0h1 are held for it",
        "r1h0, r1h1 are held for it from minute 60",
    ):
        assert line in (planner.__doc__ or "")


def test_a_gang_is_placed_whole_on_one_cohort() -> None:
    gpus = [*host("a", 4, cohort="h100"), *host("b", 4, cohort="a100"), *host("c", 4, cohort="a100")]
    (placement,) = plan(gpus, [job("j", nodes=2, gpus=3)], DEFAULT_POLICY).placements
    assert [node for node, _ in placement.parts] == ["b", "c"]
    assert all(len(uuids) == 3 for _, uuids in placement.parts)


def test_a_gang_that_does_not_fit_takes_nothing_and_states_why() -> None:
    decided = plan(host("a", 4), [job("j", nodes=2, gpus=3)], DEFAULT_POLICY)
    assert decided.placements == ()
    why = "even with every GPU idle, the largest cohort has only 1 of 2 hosts with 3 GPUs that this tier admits; "
    why += "needs 2 × 3 GPUs of one cohort; 4 of 4 GPUs are free to this tier"
    assert decided.waiting[0].why == why


def test_the_sentence_counts_what_stands_in_the_way() -> None:
    gpus = [
        *host("a", 2, facts=replace(FIT, is_assigned=True)),
        *host("b", 1, facts=replace(FIT, contact=Contact.LOST)),
        *host("c", 1),
    ]
    (waiting,) = plan(gpus, [job("j", gpus=2)], DEFAULT_POLICY).waiting
    assert "1 of 4 GPUs are free" in waiting.why
    assert "2 held by other jobs" in waiting.why
    assert "1 on hosts that are silent or lost" in waiting.why


def test_no_host_at_all_is_stated() -> None:
    assert "no host is enrolled" in plan([], [job("j")], DEFAULT_POLICY).waiting[0].why


def test_tiers_go_by_priority_and_then_by_age() -> None:
    queue = [
        job("spot", tier="spot", at=1),
        job("late", at=3),
        job("early", at=2),
        job("reserved", tier="reserved", at=9),
    ]
    decided = plan(host("a", 2), queue, DEFAULT_POLICY)
    assert [placement.job_id for placement in decided.placements] == ["reserved", "early"]


def test_a_small_job_passes_a_large_one_that_cannot_be_placed() -> None:
    decided = plan(host("a", 2), [job("large", gpus=4, at=1), job("small", at=2)], DEFAULT_POLICY)
    assert [placement.job_id for placement in decided.placements] == ["small"]


def test_the_fullest_host_that_fits_is_taken() -> None:
    gpus = [*host("wide", 8), *host("narrow", 2)]
    (placement,) = plan(gpus, [job("j", gpus=2)], DEFAULT_POLICY).placements
    assert placement.parts[0][0] == "narrow"


def test_hosts_at_fault_are_avoided() -> None:
    gpus = [*host("a", 1), *host("b", 2)]
    wanted = replace(job("j"), avoid_nodes=frozenset({NodeId("a")}))
    assert plan(gpus, [wanted], DEFAULT_POLICY).placements[0].parts[0][0] == "b"


def test_a_tier_that_the_policy_dropped_waits_with_that_reason() -> None:
    assert "no longer defines" in plan(host("a", 1), [job("j", tier="gone")], DEFAULT_POLICY).waiting[0].why


FLEETS = st.lists(st.tuples(st.integers(1, 8), st.sampled_from(["h100", "a100"]), FACTS), max_size=6)
JOBS = st.lists(
    st.tuples(
        st.integers(1, 3), st.integers(1, 8), st.sampled_from(["reserved", "on_demand", "spot"]), st.integers(0, 99)
    ),
    max_size=12,
)


@settings(max_examples=examples(300))
@given(FLEETS, JOBS)
def test_every_plan_keeps_the_invariants(
    fleet: list[tuple[int, str, AdmissionFacts]], jobs: list[tuple[int, int, str, int]]
) -> None:
    gpus = [
        view
        for number, (count, cohort, facts) in enumerate(fleet)
        for view in host(f"n{number}", count, cohort=cohort, facts=facts)
    ]
    queue = [job(f"j{number}", nodes=n, gpus=g, tier=tier, at=at) for number, (n, g, tier, at) in enumerate(jobs)]
    decided = plan(gpus, queue, DEFAULT_POLICY)
    by_uuid = {view.uuid: view for view in gpus}
    by_job = {waiting.job_id: waiting for waiting in queue}
    taken = [uuid for placement in decided.placements for _, uuids in placement.parts for uuid in uuids]
    assert len(taken) == len(set(taken)), "I1"
    answered = [item.job_id for item in decided.placements] + [item.job_id for item in decided.waiting]
    assert sorted(answered) == sorted(by_job), "everybody is answered once"
    for placement in decided.placements:
        wanted = by_job[placement.job_id]
        assert [len(uuids) for _, uuids in placement.parts] == [wanted.gpus_per_node] * wanted.nodes, "I5"
        views = [by_uuid[uuid] for _, uuids in placement.parts for uuid in uuids]
        assert len({view.cohort_key for view in views}) == 1, "I4"
        assert all(refusal_of(view.facts, DEFAULT_POLICY.tier(wanted.tier)) is None for view in views), "I3"
    assert plan(gpus, list(reversed(queue)), DEFAULT_POLICY) == decided, "I19: the order of the rows decides nothing"
