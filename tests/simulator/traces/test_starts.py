"""A trace played by the planner: most pending jobs start within their forecast range."""

from random import Random
from statistics import median

from muster.domain.policy.document import DEFAULT_POLICY
from scheduler.forecast.history import predicted_s
from scheduler.model import StartRange
from simulator.traces.generated import LAWS, generated
from simulator.traces.jobs import TraceJob
from simulator.traces.starts import Start, starts_reported


def test_a_start_outside_its_range_or_that_none_knew_is_not_covered() -> None:
    said = StartRange(100, 200)
    assert [Start(said, at_ms).is_covered for at_ms in (99, 100, 200, 201)] == [False, True, True, False]
    assert Start(StartRange(100, None), 10_000).is_covered
    assert not Start(None, 100).is_covered


def test_what_starts_at_once_is_reported_nothing_and_a_pending_job_is_reported_once() -> None:
    jobs = [TraceJob(0, 100, 8, 1, 8), TraceJob(10, 100, 8, 1, 8), TraceJob(20, 100, 8, 1, 8)]
    told = starts_reported(jobs, [120.0, 120.0, 120.0], num_nodes=1, gpus_per_node=8)
    assert [one.started_ms for one in told] == [100_000, 200_000]
    assert all(one.expected is not None and one.expected.earliest_ms >= 10_000 for one in told)


def test_four_in_five_are_meant_and_seven_in_ten_at_least_start_in_their_range() -> None:
    jobs = generated(LAWS["bursts"], num_jobs=120, num_nodes=24, gpus_per_node=8, load=1.0, seed=1)
    chance = Random(5)  # noqa: S311  # a simulation
    walls = [max(job.duration_s, 60) * chance.uniform(1, 3) if chance.random() < 0.5 else None for job in jobs]
    told = starts_reported(jobs, walls, num_nodes=24, gpus_per_node=8)
    assert len(told) >= 20
    assert all(one.expected is not None and one.expected.latest_ms is not None for one in told), (
        "no range without an end"
    )
    assert sum(one.is_covered for one in told) / len(told) >= 0.7


def test_where_the_past_of_jobs_is_known_ranges_are_a_quarter_narrower_and_hold() -> None:
    jobs = generated(LAWS["bursts"], num_jobs=120, num_nodes=24, gpus_per_node=8, load=1.0, seed=1)
    chance = Random(5)  # noqa: S311  # a simulation
    typical_s = [job.duration_s / chance.lognormvariate(0, 0.5) for job in jobs]
    past_s = [[one_s * chance.lognormvariate(0, 0.5) for _ in range(15)] for one_s in typical_s]
    known, unknown = (
        starts_reported(jobs, [None] * len(jobs), predicted, num_nodes=24, gpus_per_node=8)
        for predicted in ([predicted_s(runs_s, DEFAULT_POLICY) for runs_s in past_s], None)
    )
    assert median(map(width_ms, known)) < 0.75 * median(map(width_ms, unknown))
    assert sum(one.is_covered for one in known) / len(known) >= 0.7


def width_ms(reported: Start) -> int:
    assert reported.expected is not None
    assert reported.expected.latest_ms is not None
    return reported.expected.latest_ms - reported.expected.earliest_ms
