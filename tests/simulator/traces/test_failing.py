"""Nodes that fail while a trace is played: what a failure costs, where every GPU-hour goes, and that it repeats."""

import math
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.traces import course
from simulator.traces.course import MOMENT, Cause, EndlessError
from simulator.traces.failing import PUBLISHED_RATES, Checkpoints, Failures, Spent
from simulator.traces.jobs import TraceJob
from simulator.traces.losses import lost_hours, over_time
from simulator.traces.playing import Played, play
from simulator.traces.report import Report, report_of
from simulator.traces.rules import QUEUE_RULES

DAY_S = 86_400.0
HOUR_S = 3_600.0


def job(submit_s: float, nodes: int, duration_s: float, gpus_per_node: int = 8) -> TraceJob:
    return TraceJob(submit_s, duration_s, nodes * gpus_per_node, nodes, gpus_per_node)


def played(jobs: list[TraceJob], failures: Failures, *, nodes: int = 4, rule: str = "muster", seed: int = 0) -> Played:
    exact = [one.duration_s for one in jobs]
    return play(jobs, exact, QUEUE_RULES[rule], num_nodes=nodes, gpus_per_node=8, failures=failures, seed=seed)


def report(jobs: list[TraceJob], found: Played, nodes: int) -> Report:
    return report_of(jobs, found, found, num_gpus=8 * nodes)


SAVES = Checkpoints(every_s=100, stall_s=10, restart_s=20)


@pytest.mark.parametrize(
    ("busy_s", "is_again", "saves_last", "expected"),
    [
        (50, False, False, Spent(0, 0, 0, 50)),
        (110, False, False, Spent(100, 10, 0, 0)),
        (105, False, False, Spent(0, 0, 0, 105)),
        (345, True, False, Spent(200, 20, 20, 105)),
        (15, True, False, Spent(0, 0, 15, 0)),
        (345, True, True, Spent(300, 25, 20, 0)),
        (50, False, True, Spent(50, 0, 0, 0)),
    ],
)
def test_an_attempt_keeps_what_it_saved_and_does_the_rest_again(
    *, busy_s: float, is_again: bool, saves_last: bool, expected: Spent
) -> None:
    assert SAVES.spent(busy_s, is_again=is_again, saves_last=saves_last) == expected


def test_a_job_stands_for_each_checkpoint_but_at_its_end() -> None:
    assert [SAVES.run_s(work_s, is_again=False) for work_s in (0, 100, 101, 300)] == [0, 100, 111, 320]
    assert SAVES.run_s(101, is_again=True) == 131


def test_a_failure_takes_the_node_and_its_job_goes_on_from_its_checkpoint_elsewhere() -> None:
    failures = Failures(300, repair_s=DAY_S, checkpoints=Checkpoints(every_s=HOUR_S, stall_s=0, restart_s=600))
    jobs = [job(0, 3, 10 * DAY_S)]
    found = played(jobs, failures, nodes=6)
    hits = [one for one in found.interruptions if one.cause is Cause.FAILURE]
    assert len(hits) > 3, "a node in three fails within ten days"
    assert all(0 <= one.lost_s < HOUR_S for one in hits)
    lost_s = sum(one.lost_s for one in hits)
    waited_s = found.finished_s[0] - found.work.busy_s[0]
    assert found.work.busy_s[0] == pytest.approx(10 * DAY_S + lost_s + found.work.restarting_s[0])
    assert found.work.restarting_s[0] <= 600 * len(hits)
    assert waited_s < DAY_S, "others were free"


def test_a_node_is_away_until_it_is_repaired_and_then_carries_jobs_again() -> None:
    failures = Failures(2_000, repair_s=2 * DAY_S, checkpoints=Checkpoints(HOUR_S, 0, 0))
    found = played([job(0, 1, 20 * DAY_S)], failures, nodes=1)
    away = list(found.moments[MOMENT.index("away_gpus") :: len(MOMENT)])
    assert {0.0, 8.0} == set(away)
    assert found.finished_s[0] >= 20 * DAY_S + 2 * DAY_S * len(found.interruptions)


RANDOM = st.lists(
    st.tuples(
        st.integers(0, 50_000),
        st.sampled_from([(1, 1), (1, 3), (1, 8), (2, 8), (4, 8), (3, 2)]),
        st.integers(0, 40_000),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=25,
)


@given(RANDOM, st.sampled_from(sorted(QUEUE_RULES)), st.sampled_from([0.0, 500.0, 5_000.0]), st.integers(0, 5))
def test_every_gpu_hour_counts_or_is_lost_by_one_cause(
    reported: list[tuple[int, tuple[int, int], int, int]], rule: str, rate: float, seed: int
) -> None:
    jobs = sorted(
        (
            TraceJob(at, took, max(nodes * each - less, nodes), nodes, each)
            for at, (nodes, each), took, less in reported
        ),
        key=lambda one: one.submit_s,
    )
    found = played(jobs, Failures(rate, 7_200, Checkpoints(1_800, 60, 120)), nodes=6, rule=rule, seed=seed)
    lost = lost_hours(jobs, found)
    causes = list(asdict(lost).values())
    assert min(causes) >= -1e-6
    worked = sum(one.gpus * one.duration_s for one in jobs) / HOUR_S
    fleet = 48 * (found.end_s - jobs[0].submit_s) / HOUR_S
    assert worked + sum(causes) == pytest.approx(fleet)
    spans = over_time(found, 48)
    if spans:
        assert all(0 <= span.utilisation <= 1 and 0 <= span.scattered <= 1 for span in spans)
        free = sum(1 - span.utilisation - span.away for span in spans) / len(spans) * fleet
        assert free == pytest.approx(lost.idle_scattered + lost.idle_whole_nodes + lost.no_demand, abs=1e-6 * fleet)
    assert all(not math.isnan(end_s) for end_s in found.finished_s)


def test_the_same_seed_fails_the_same_nodes_under_every_rule_and_another_seed_others() -> None:
    jobs = [job(at, 2, 5 * DAY_S) for at in (0, 10, 20)]
    failures = Failures(200)
    first, again, other = (played(jobs, failures, seed=seed) for seed in (1, 1, 2))
    assert first.interruptions == again.interruptions != other.interruptions
    moments = failures.moments(4, from_s=0, seed=1)
    told = [next(moments) for _ in range(5)]
    assert told == [next(again_) for again_ in [failures.moments(4, from_s=0, seed=1)] for _ in range(5)]


def test_failures_come_at_the_rate_that_is_queried() -> None:
    moments = Failures(PUBLISHED_RATES["rsc-1"]).moments(1_000, from_s=0, seed=3)
    within = sum(at_s < 300 * DAY_S for at_s, _ in (next(moments) for _ in range(4_000)))
    assert within == pytest.approx(6.5 * 300, rel=0.1)


@pytest.mark.parametrize("nodes", [16, 128])
def test_a_long_gang_trains_as_much_of_its_time_as_the_published_formula_expects(nodes: int) -> None:
    """Kokolis et al. (2025): (1 - N r (u + t/2)) / (1 + w/t), which they find within 5 % of a Monte Carlo."""
    saves = Checkpoints(every_s=1_800, stall_s=60, restart_s=300)
    jobs = [job(0, nodes, 200 * DAY_S)]
    found = played(jobs, Failures(6.5, checkpoints=saves), nodes=2 * nodes)
    per_s = nodes * 6.5 / 1000 / DAY_S
    expected = (1 - per_s * (300 + 1_800 / 2)) / (1 + 60 / 1_800)
    assert len(found.interruptions) > 10
    assert report(jobs, found, 2 * nodes).ettr == pytest.approx(expected, rel=0.02)


def test_without_failures_everything_that_ran_counted() -> None:
    jobs = [job(0, 2, 100), job(5, 4, 50)]
    found = play(jobs, [100, 50], QUEUE_RULES["muster"], num_nodes=4, gpus_per_node=8)
    told = report(jobs, found, 4)
    assert (told.ettr, told.failures, told.interruptions, told.reclaims) == (1, 0, 0, ())
    assert told.goodput == told.utilisation
    lost = told.lost_gpu_hours
    assert lost.work_done_again == lost.restarts == lost.checkpoints == lost.repairs == 0


def test_jobs_that_lose_as_much_as_they_do_are_reported_and_not_played_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(course, "MOST_FAILURES", 200)
    hopeless = replace(Failures(50_000), checkpoints=Checkpoints(every_s=DAY_S))
    with pytest.raises(EndlessError, match="1 jobs have not ended after 200 failures"):
        played([job(0, 4, 5 * DAY_S)], hopeless)


def test_failures_of_nodes_that_are_away_come_to_an_end_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a moment that is kept, whether there is anything to break or not."""
    monkeypatch.setattr(course, "MOST_FAILURES", 200)
    hopeless = replace(Failures(50_000), repair_s=365 * DAY_S)
    with pytest.raises(EndlessError, match="1 jobs have not ended after 200 failures"):
        played([job(0, 4, 5 * DAY_S)], hopeless)
