"""Why a job waits, in one sentence that names what truly binds."""

import random
from dataclasses import replace

import pytest

from muster.domain.job.plan_texts import Tense
from muster.domain.policy.document import DEFAULT_POLICY
from scheduler.explain.clauses import moment
from scheduler.model import GpuView, Verdict, WaitingJob, Workload
from scheduler.planner import plan
from scheduler.quota.tenancy import Tenancy
from tests.scheduler.fleets import MINUTE_MS, NOW_MS, hold, host, job, of_host, racks, running, standing


def why(gpus: list[GpuView], wanted: WaitingJob) -> str:
    (waiting,) = plan(gpus, [wanted], DEFAULT_POLICY).waiting
    return waiting.why


def test_the_best_rack_and_its_number_are_named_where_the_level_binds() -> None:
    gpus = racks({"r0": [8, 8, 8, 0], "r1": [8, 8, 0, 0]})
    said = why(gpus, job("j", nodes=4, gpus=8, required="rack"))
    assert said.startswith("the largest cohort in one rack has only 3 of 4 hosts with 8 GPUs free; needs 4 × 8 GPUs")
    assert "; 40 of 64 GPUs are free to this tier" in said


def test_a_level_that_no_idle_fleet_could_satisfy_is_stated_to_be_so() -> None:
    said = why(racks({"r0": [8, 8], "r1": [8, 8]}), job("j", nodes=3, gpus=8, required="rack"))
    assert "even with every GPU idle, the largest cohort in one rack has only 2 of 3 hosts" in said


def test_cohorts_that_are_too_small_are_named() -> None:
    said = why([*host("a", 8), *host("b", 8, cohort="a100")], job("j", nodes=2, gpus=8))
    assert (
        "even with every GPU idle, the largest cohort has only 1 of 2 hosts with 8 GPUs that this tier admits" in said
    )


def test_what_no_host_could_ever_hold_is_named_first() -> None:
    said = why([*host("a", 8), *host("b", 4)], job("j", gpus=16))
    assert said.startswith("no host has 16 GPUs: the largest has 8; needs 1 × 16 GPUs of one cohort; ")


def test_crumbs_are_named_where_the_number_of_free_gpus_would_do() -> None:
    said = why(racks({"r0": [4, 4, 4]}), job("j", gpus=8))
    assert said.startswith("the largest cohort has no host with 8 GPUs free; needs 1 × 8 GPUs of one cohort; ")


def test_the_plain_lack_of_free_gpus_is_stated_plainly() -> None:
    said = why(racks({"r0": [4]}), job("j", gpus=8))
    assert said == (
        "only 4 of 8 GPUs are free to this tier (4 held by other jobs or being cleaned); needs 1 × 8 GPUs of one cohort"
    )


def test_an_unknown_level_is_named() -> None:
    assert why(racks({"r0": [8]}), job("j", required="pod")).startswith("the fleet has no level named pod; ")


def test_avoided_hosts_are_counted() -> None:
    gpus = [*host("a", 1), *hold(host("b", 1), {"b-0"})]
    wanted = replace(job("j"), avoid_nodes=frozenset({gpus[0].node_id}))
    assert "1 hosts avoided after a fault there" in why(gpus, wanted)


def test_the_attribute_in_which_other_cohorts_differ_is_named() -> None:
    gpus = [
        *host("a", 8, cohort="driver_version=580|model=H100"),
        *host("b", 8, cohort="driver_version=570|model=H100"),
        *host("c", 8, cohort="driver_version=570|model=A100"),
        *host("d", 8, cohort="driver_version=580|model=H100"),
    ]
    said = why(gpus, job("j", nodes=3, gpus=8))
    assert said.startswith(
        "even with every GPU idle, the largest cohort has only 2 of 3 hosts with 8 GPUs that this tier admits "
        "(8 GPUs differ from it in driver_version, 8 GPUs differ from it in driver_version and model); "
    )


def verdict_of(wanted: WaitingJob, workload: Workload) -> Verdict:
    gpus = hold(racks({"r0": [8, 8]}), [uuid for attempt in workload.running for uuid in attempt.gpus])
    (waiting,) = plan(gpus, [wanted], DEFAULT_POLICY, workload).waiting
    return waiting.verdict


def test_a_plan_that_is_only_requested_reclaims_nothing_and_reports_it() -> None:
    workload = Workload(NOW_MS, (running("v", of_host("r0h0"), saved_minutes=1),))
    verdict = verdict_of(job("gang", nodes=2, gpus=8, tier="reserved"), workload)
    assert verdict.in_tense(Tense.DONE).startswith("GPUs are being reclaimed for it, due by")
    assert verdict.in_tense(Tense.CONDITIONAL).startswith("GPUs would be reclaimed for it, due by")


def test_a_reclaim_whose_notice_was_given_is_reported_as_it_is_to_whoever_requests() -> None:
    attempts = (running("v", of_host("r0h0")),)
    stands = standing("v", "gang", [*of_host("r0h0"), *of_host("r0h1")], in_s=60)
    verdict = verdict_of(job("gang", nodes=2, gpus=8, tier="reserved"), Workload(NOW_MS, attempts, reclaims=(stands,)))
    assert verdict.in_tense(Tense.CONDITIONAL).startswith("GPUs are being reclaimed for it, due by")


def test_a_place_would_be_kept_for_one_that_is_only_requested() -> None:
    ending = running("v", of_host("r0h0"), tier="on_demand", ends_minutes=60)
    verdict = verdict_of(job("gang", nodes=2, gpus=8, tier="on_demand"), Workload(NOW_MS, (ending,)))
    by = (
        f"by {moment(NOW_MS + 61 * MINUTE_MS)} at the latest: its start is firm, and no later job of its tier delays it"
    )
    words = f"8 of the 16 that it will start on are idle and held for it; it starts {by}; needs"
    assert words in verdict.in_tense(Tense.DONE)
    words = f"8 of the 16 that it would start on are idle and would be held for it; it would start {by}; needs"
    assert words in verdict.in_tense(Tense.CONDITIONAL)


def test_the_start_on_a_place_that_is_due_late_is_not_firm() -> None:
    ending = running("v", of_host("r0h0"), tier="on_demand", ends_minutes=122)
    verdict = verdict_of(job("gang", nodes=2, gpus=8, tier="on_demand"), Workload(NOW_MS, (ending,)))
    assert "; that start is expected and not firm: a more urgent job may go before it" in verdict.why


def test_what_states_how_the_fleet_is_is_so_in_either_tense() -> None:
    (waiting,) = plan(racks({"r0": [4]}), [job("j", gpus=8)], DEFAULT_POLICY).waiting
    assert waiting.verdict.in_tense(Tense.CONDITIONAL) == waiting.verdict.in_tense(Tense.DONE) == waiting.why


@pytest.mark.parametrize("seed", range(40))
def test_the_cause_comes_first_in_every_sentence_and_what_the_job_needs_after_it(seed: int) -> None:
    """Random fleets and queues: whatever a job waits for, its need alone explains nothing."""
    chance = random.Random(seed)  # noqa: S311  # no secret
    gpus = racks({f"r{number}": [chance.choice([0, 2, 4, 8]) for _ in range(3)] for number in range(2)})
    taken = [gpu.uuid for gpu in gpus if gpu.facts.is_assigned]
    others = tuple(
        running(f"v{number}", taken[number * 4 : number * 4 + 4], tier=chance.choice(["spot", "on_demand"]))
        for number in range(len(taken) // 4)
    )
    queue = [
        job(
            f"j{number}",
            nodes=chance.randint(1, 4),
            gpus=chance.choice([1, 3, 8, 16]),
            tier=chance.choice(["spot", "on_demand", "reserved"]),
            required=chance.choice([None, None, "rack", "pod"]),
            at=number,
        )
        for number in range(6)
    ]
    quotas = Tenancy.of_ceilings({(queue[0].tenant_id, "reserved"): 8})
    waiting = plan(gpus, queue, DEFAULT_POLICY, Workload(NOW_MS, others, tenancy=quotas)).waiting
    assert waiting
    sentences = [one.verdict.in_tense(tense) for one in waiting for tense in Tense]
    assert [said for said in sentences if said.startswith(("needs ", "it waits"))] == []
