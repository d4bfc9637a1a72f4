"""Tiers in a trace: their order, victims with notice for higher tiers, and the cap on losses."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.domain.policy.document import DEFAULT_POLICY
from simulator.traces.course import Cause
from simulator.traces.jobs import TraceJob
from simulator.traces.playing import Played, play
from simulator.traces.report import Reclaims, report_of
from simulator.traces.rules import QUEUE_RULES

SPOT = DEFAULT_POLICY.tiers["spot"]
NOTICE_S, MIN_RUN_S = SPOT.notice_s or 0.0, SPOT.min_run_s
LATER_S = MIN_RUN_S + 100
"""By then jobs that started at 0 may be reclaimed."""


def job(submit_s: float, nodes: int, duration_s: float, tier: str, tenant: str = "a") -> TraceJob:
    return TraceJob(submit_s, duration_s, nodes * 8, nodes, 8, tenant, tier)


def played(jobs: list[TraceJob], rule: str = "muster", nodes: int = 4) -> Played:
    return play(jobs, [one.duration_s for one in jobs], QUEUE_RULES[rule], num_nodes=nodes, gpus_per_node=8)


def test_spot_gives_way_after_its_notice_saves_its_work_and_goes_on_afterwards() -> None:
    jobs = [job(0, 4, 10_000, "spot"), job(LATER_S, 4, 500, "reserved", "b")]
    found = played(jobs)
    stops_s = LATER_S + NOTICE_S
    assert list(found.started_s) == [0, stops_s]
    assert [(one.number, one.at_s, one.cause, one.lost_s) for one in found.interruptions] == [
        (0, stops_s, Cause.RECLAIM, 0)
    ]
    assert found.finished_s[0] == pytest.approx(10_000 + 500 + 300), "the other's time, and a restart"
    told = report_of(jobs, found, found, num_gpus=32)
    assert told.reclaims == (Reclaims("a", "spot", 1, 0.0),)
    assert told.lost_gpu_hours.restarts == pytest.approx(32 * 300 / 3600)


@pytest.mark.parametrize("tier", ["reserved", "on_demand", "", "gold"])
def test_what_is_in_no_reclaimable_tier_runs_to_its_end(tier: str) -> None:
    jobs = [job(0, 4, 10_000, tier), job(LATER_S, 4, 500, "reserved", "b"), job(LATER_S, 1, 10, "spot")]
    found = played(jobs)
    assert (found.started_s[1], found.interruptions) == (10_000, [])


def test_spot_takes_nothing_from_spot_and_the_other_rules_take_from_none() -> None:
    spots = [job(0, 4, 10_000, "spot"), job(LATER_S, 4, 500, "spot", "b"), job(LATER_S + 1, 4, 10, "reserved", "c")]
    found = played(spots)
    assert [one.number for one in found.interruptions] == [0], "for the reserved one"
    for rule in ("fifo", "skip", "easy"):
        assert played(spots, rule).interruptions == []


def test_none_is_taken_before_its_least_run_is_over() -> None:
    jobs = [job(0, 4, 10_000, "spot"), job(60, 4, 500, "reserved"), job(MIN_RUN_S + 5, 1, 10, "spot")]
    (one,) = played(jobs).interruptions
    assert one.at_s == MIN_RUN_S + 5 + NOTICE_S, "the next moment at which anything happens"


def test_no_more_are_taken_than_are_wanted() -> None:
    spots = [job(0, 1, 50_000, "spot", tenant) for tenant in "abcd"]
    found = played([*spots, job(LATER_S, 2, 500, "on_demand", "z")])
    assert len(found.interruptions) == 2
    assert found.started_s[4] == LATER_S + NOTICE_S


def test_where_all_that_may_be_taken_is_too_little_none_is() -> None:
    jobs = [job(0, 2, 10_000, "spot"), job(0, 2, 9_990, "reserved"), job(LATER_S, 4, 500, "reserved")]
    assert played(jobs).interruptions == []


def test_one_tenant_loses_no_more_than_its_share_in_an_hour() -> None:
    spots = [job(0, 1, 50_000, "spot") for _ in range(8)]
    wants = [job(LATER_S + n, 1, 40_000, "on_demand", "z") for n in range(4)]
    found = played([*spots, *wants], nodes=8)
    within = [one for one in found.interruptions if one.at_s <= LATER_S + 3_600]
    assert len(within) == DEFAULT_POLICY.reclaim.cap_fraction * 8
    assert len(found.interruptions) > len(within), "the next hour is another"


TIERED = st.lists(
    st.tuples(
        st.integers(0, 20_000),
        st.integers(1, 4),
        st.integers(0, 20_000),
        st.sampled_from(["spot", "on_demand", "reserved", ""]),
        st.sampled_from("abc"),
    ),
    min_size=1,
    max_size=30,
)


@given(TIERED)
def test_every_job_ends_once_and_only_reclaimable_ones_are_interrupted(
    reported: list[tuple[int, int, int, str, str]],
) -> None:
    jobs = [job(*one) for one in sorted(reported)]
    found = played(jobs)
    assert {jobs[one.number].tier for one in found.interruptions} <= {"spot"}
    assert all(one.lost_s == 0 for one in found.interruptions), "each had its notice in time to save"
    for number, one in enumerate(jobs):
        assert found.finished_s[number] >= found.started_s[number] + one.duration_s - 1e-6
        assert one.submit_s <= found.started_s[number]


@given(TIERED)
def test_a_trace_of_one_tier_is_played_as_one_without(reported: list[tuple[int, int, int, str, str]]) -> None:
    jobs = [replace(job(*one), tier="spot") for one in sorted(reported)]
    assert played(jobs).started_s == played([replace(one, tier="") for one in jobs]).started_s
