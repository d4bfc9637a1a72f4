"""Rules of a queue on a few nodes, on random traces, and against figures that others found for a published one."""

import csv
import gzip
import math
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.traces.jobs import TraceJob, jobs_of
from simulator.traces.playing import Played, estimates_of, play
from simulator.traces.report import Report, report_of
from simulator.traces.rules import QUEUE_RULES

TRACES = Path(__file__).parents[3] / "benchmarks" / "traces"
DAY_S = 86_400


def job(submit_s: float, nodes: int, duration_s: float, gpus_per_node: int = 8) -> TraceJob:
    return TraceJob(submit_s, duration_s, nodes * gpus_per_node, nodes, gpus_per_node)


def starts(rule: str, jobs: list[TraceJob], num_nodes: int) -> list[float]:
    exact = estimates_of(jobs, error=1, seed=0)
    return list(play(jobs, exact, QUEUE_RULES[rule], num_nodes=num_nodes, gpus_per_node=8).started_s)


BLOCKED = [job(0, 3, 100), job(1, 4, 50), job(2, 1, 90), job(3, 1, 200)]
"""On 4 nodes: the second is blocked until 100; the third would be over by then, the fourth would not."""


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("fifo", [0, 100, 150, 150]),
        ("skip", [0, 292, 2, 92]),
        ("easy", [0, 100, 2, 150]),
        ("muster", [0, 100, 2, 150]),
    ],
)
def test_a_caller_that_may_pass_a_head_that_does_not_fit(rule: str, expected: list[float]) -> None:
    assert starts(rule, BLOCKED, 4) == expected


def test_what_takes_only_what_the_head_leaves_may_outlast_its_guarantee() -> None:
    jobs = [job(0, 3, 100), job(1, 3, 50), job(2, 1, 500), job(3, 1, 500)]
    assert starts("easy", jobs, 4) == [0, 100, 2, 150]


def test_small_jobs_share_the_fullest_node_that_has_room() -> None:
    jobs = [job(0, 1, 100, gpus_per_node=6), job(1, 1, 100, gpus_per_node=2), job(2, 1, 100)]
    assert starts("fifo", jobs, 2) == [0, 1, 2]


RANDOM = st.lists(
    st.tuples(
        st.integers(0, 500), st.sampled_from([(1, 1), (1, 3), (1, 8), (2, 8), (4, 8), (3, 2)]), st.integers(0, 300)
    ),
    min_size=1,
    max_size=40,
)


@given(RANDOM, st.sampled_from(sorted(QUEUE_RULES)), st.sampled_from([1.0, 2.0, 10.0]))
def test_every_job_runs_once_and_no_moment_has_more_than_the_fleet(
    reported: list[tuple[int, tuple[int, int], int]], rule: str, error: float
) -> None:
    jobs = sorted((job(at, nodes, took, each) for at, (nodes, each), took in reported), key=lambda one: one.submit_s)
    played = play(jobs, estimates_of(jobs, error=error, seed=3), QUEUE_RULES[rule], num_nodes=4, gpus_per_node=8)
    changes: Counter[tuple[float, int]] = Counter()
    for one, start_s in zip(jobs, played.started_s, strict=True):
        assert start_s >= one.submit_s
        changes[start_s + one.duration_s, 0] -= one.gpus
        changes[start_s, 1] += one.gpus
    held = 0
    for at in sorted(changes):
        held += changes[at]
        assert held <= 32
    if rule == "fifo":
        assert sorted(played.started_s) == list(played.started_s)


def test_estimates_stay_within_their_error_on_both_sides_and_repeat_by_seed() -> None:
    jobs = [job(0, 1, 100.0)] * 400
    found = estimates_of(jobs, error=2, seed=7)
    assert found == estimates_of(jobs, error=2, seed=7) != estimates_of(jobs, error=2, seed=8)
    assert 50 <= min(found) < 60
    assert 180 < max(found) <= 200
    assert math.exp(sum(map(math.log, found)) / 400) == pytest.approx(100, rel=0.1)


def test_among_those_that_wait_the_short_go_first_until_the_long_have_waited_long_enough() -> None:
    short = [job(10 + 100 * n, 1, 100) for n in range(400)]
    found = starts("muster", [job(0, 1, 105), job(1, 1, 3_000), *short], 1)
    assert found[2] < found[1], "the short one that came later"
    assert found[1] < found[-1], "but not each of them"


def report(name: str, rule: str, *, num_nodes: int, arrivals: float = 1.0, error: float = 1.0) -> Report:
    with gzip.open(TRACES / name, "rt") as text:
        jobs = jobs_of(csv.DictReader(text), num_nodes=num_nodes, gpus_per_node=8, arrivals=arrivals)

    def played(by: str) -> Played:
        return play(
            jobs, estimates_of(jobs, error=error, seed=1), QUEUE_RULES[by], num_nodes=num_nodes, gpus_per_node=8
        )

    return report_of(jobs, played(rule), played("fifo"), num_gpus=8 * num_nodes)


@pytest.mark.parametrize(
    ("rule", "mean_wait_s", "p95_wait_s", "mean_jct_s", "makespan_days", "big_wait_s"),
    [
        ("fifo", 143_525, 576_890, 158_946, 22.11, 236_722),
        ("skip", 99_309, 595_038, 114_730, 22.19, 266_880),
        ("easy", 91_285, 573_865, 106_707, 22.07, 234_207),
    ],
)
def test_kalos_five_times_denser_on_160_nodes_is_as_another_simulator_found_it(
    rule: str, mean_wait_s: float, p95_wait_s: float, mean_jct_s: float, makespan_days: float, big_wait_s: float
) -> None:
    found = report("acme_kalos_completed_training_319.csv.gz", rule, num_nodes=160, arrivals=0.2)
    big = [size for size in found.wait_by_gpus if size.min_gpus >= 512]
    num_big = sum(size.jobs for size in big)
    assert (
        found.mean_wait_s,
        found.p95_wait_s,
        found.mean_jct_s,
        found.makespan_s / DAY_S,
        sum(size.mean_wait_s * size.jobs for size in big) / num_big,
    ) == pytest.approx((mean_wait_s, p95_wait_s, mean_jct_s, makespan_days, big_wait_s), rel=0.001)


def test_philly_in_strict_order_on_60_nodes_is_within_five_per_cent_of_another_simulator() -> None:
    found = report("philly_gpu_jobs.csv.gz", "fifo", num_nodes=60)
    assert (found.mean_wait_s, found.p95_wait_s, found.makespan_s / DAY_S) == pytest.approx(
        (1_049_467, 1_721_198, 115.6), rel=0.05
    )
    assert found.starved == 0


def test_what_starts_a_week_later_than_in_strict_order_has_starved() -> None:
    found = report("acme_kalos_completed_training_319.csv.gz", "skip", num_nodes=160, arrivals=0.2)
    assert found.starved == 7, "gangs that smaller ones passed again and again"


def big_wait_s(found: Report, least_gpus: int) -> float:
    big = [size for size in found.wait_by_gpus if size.min_gpus >= least_gpus]
    return sum(size.mean_wait_s * size.jobs for size in big) / sum(size.jobs for size in big)


def test_ours_waits_less_than_each_other_rule_with_estimates_off_by_two() -> None:
    """Philly is played by ``make bench-scheduler``."""
    name = "acme_kalos_completed_training_319.csv.gz"
    rules = {rule: report(name, rule, num_nodes=160, arrivals=0.2, error=2.0) for rule in QUEUE_RULES}
    ours = rules.pop("muster")
    assert ours.mean_wait_s <= min(other.mean_wait_s for other in rules.values())
    assert big_wait_s(ours, 512) <= big_wait_s(rules["easy"], 512)
    by_size = {size.min_gpus: size.mean_wait_s for size in rules["fifo"].wait_by_gpus}
    assert all(size.mean_wait_s <= by_size[size.min_gpus] for size in ours.wait_by_gpus), "no size class starves"
    assert ours.starved == 0


def test_gangs_that_fit_a_rack_are_counted_where_they_are_split_and_what_is_idle_where_any_waits() -> None:
    jobs = [job(0, 3, 100), job(0, 3, 100), job(1, 2, 50), job(2, 8, 10)]
    exact = estimates_of(jobs, error=1, seed=0)
    played = play(jobs, exact, QUEUE_RULES["fifo"], num_nodes=8, gpus_per_node=8, nodes_per_rack=4)
    assert list(played.num_racks) == [1, 1, 2, 2]
    found = report_of(jobs, played, played, num_gpus=64, nodes_per_rack=4).fragmentation
    assert (found.rack_sized_gangs, found.split_gangs) == (3, 1)
    assert found.idle_while_waiting * 64 * played.end_s == pytest.approx(2 * 8 * 49), (
        "from 51, when the third ends, to 100, when the last starts"
    )
    assert found.scattered == 0
    assert [(one.level, one.of_idle) for one in found.by_level] == [("node", 0), ("rack", 1)], "no rack is wholly free"


def test_what_is_idle_is_reported_by_the_level_that_it_is_a_fragment_of() -> None:
    jobs = [TraceJob(0, 100, 4, 1, 4, "one")]
    played = play(jobs, [100], QUEUE_RULES["fifo"], num_nodes=8, gpus_per_node=8, nodes_per_rack=4)
    found = report_of(jobs, played, played, num_gpus=64, nodes_per_rack=4)
    assert [(one.level, one.of_idle) for one in found.fragmentation.by_level] == [("node", 4 / 60), ("rack", 24 / 60)]
    assert [span.scattered for span in found.over_time] == pytest.approx([4 / 64] * 120)
    assert [span.broken_racks for span in found.over_time] == pytest.approx([24 / 64] * 120)
    no_racks = play(jobs, [100], QUEUE_RULES["fifo"], num_nodes=8, gpus_per_node=8)
    told = report_of(jobs, no_racks, no_racks, num_gpus=64).fragmentation.by_level
    assert [(one.level, one.of_idle) for one in told] == [("node", 4 / 60)]


def test_tenants_that_are_slowed_down_alike_are_treated_fairly() -> None:
    alone = [TraceJob(0, 100, 8, 1, 8, "a"), TraceJob(0, 100, 8, 1, 8, "b")]
    exact = estimates_of(alone, error=1, seed=0)
    two, one = (play(alone, exact, QUEUE_RULES["fifo"], num_nodes=number, gpus_per_node=8) for number in (2, 1))
    assert report_of(alone, two, two, num_gpus=16).fairness == 1
    found = report_of(alone, one, one, num_gpus=8)
    assert [(own.tenant, own.mean_wait_s, own.mean_slowdown) for own in found.by_tenant] == [("a", 0, 1), ("b", 100, 2)]
    assert found.fairness == pytest.approx(9 / 10)
    assert found.p95_jct_s == 200


def test_backfill_knows_of_an_overrun_what_our_rule_knows() -> None:
    """Node 0 is expected back after 100 s and is not: until its new end, 150 s, a job of 40 s may use node 1."""
    jobs = [job(0, 1, 1_000), job(1, 2, 10), job(105, 1, 40)]
    for rule in ("easy", "conservative", "muster"):
        played = play(jobs, [100.0, 10.0, 40.0], QUEUE_RULES[rule], num_nodes=2, gpus_per_node=8)
        assert list(played.started_s) == [0, 1_000, 105], rule


def test_the_shortest_goes_first_whatever_waits_longer() -> None:
    jobs = [job(0, 1, 100), job(1, 1, 50), job(2, 1, 10), job(3, 2, 5)]
    assert starts("sjf", jobs, 1 + 1) == [0, 1, 51, 100]


def test_conservative_backfill_delays_no_place_of_an_earlier_job() -> None:
    """On 2 nodes: job 1 has both from 100 s on, job 2 both after it. Job 3 would end before either, job 4 would not."""
    jobs = [job(0, 1, 100), job(1, 2, 50), job(2, 2, 50), job(3, 1, 90), job(4, 1, 120)]
    assert starts("conservative", jobs, 2) == [0, 100, 150, 3, 200]


def test_conservative_backfill_moves_no_gang_behind_the_first_where_easy_does() -> None:
    """Job 4 ends after job 1 starts, on the node that job 1 leaves. By EASY job 2, the second gang, waits for it."""
    jobs = [job(0, 2, 100), job(1, 2, 10), job(2, 3, 10), job(3, 1, 500)]
    by_conservative, by_easy = starts("conservative", jobs, 3), starts("easy", jobs, 3)
    assert (by_conservative[1:], by_easy[1:]) == ([100, 110, 120], [100, 503, 3])
