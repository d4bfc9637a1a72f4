"""Not every trace lets a rule wait no longer than the least of the others and, for large gangs, than EASY.

Why ``benchmarks/queue_breadth.py`` counts how many traces hold: on this one none could, whatever it knew beforehand.
"""

from collections.abc import Sequence
from itertools import permutations

from simulator.traces.jobs import TraceJob
from simulator.traces.playing import play
from simulator.traces.rules import QUEUE_RULES

GPUS = 2
SINGLES = [TraceJob(float(at_s), 2.0, 1, 1, 1) for at_s in range(7)]
GANG = TraceJob(1.5, 10.0, GPUS, 1, GPUS)
JOBS = sorted([*SINGLES, GANG], key=lambda job: job.submit_s)
"""A stream of single GPUs that keeps the node full, and one gang that needs it whole."""


def waits_by(rule: str) -> tuple[float, float]:
    """In seconds: of all together, and of the gang."""
    exact_s = [job.duration_s for job in JOBS]
    return _waits(play(JOBS, exact_s, QUEUE_RULES[rule], num_nodes=1, gpus_per_node=GPUS).started_s)


def _waits(started_s: Sequence[float]) -> tuple[float, float]:
    waits_s = [at_s - job.submit_s for job, at_s in zip(JOBS, started_s, strict=True)]
    return sum(waits_s), waits_s[JOBS.index(GANG)]


def each_as_soon_as_it_fits(turns: Sequence[int]) -> list[float]:
    """When each job starts if they are laid into the time in these turns.

    Over all turns these are the active schedules: any other has one of them in which no job starts later (Giffler and
    Thompson, 1960), so none of its waits is less.
    """
    laid: dict[int, float] = {}
    for number in turns:
        job = JOBS[number]
        ends_s = (laid[other] + JOBS[other].duration_s for other in laid)
        moments_s = sorted({job.submit_s, *(end_s for end_s in ends_s if end_s > job.submit_s)})
        laid[number] = next(at_s for at_s in moments_s if _fits(job, at_s, laid))
    return [laid[number] for number in range(len(JOBS))]


def _fits(job: TraceJob, at_s: float, laid: dict[int, float]) -> bool:
    """Whether its GPUs are free from then until it ends: at its start, and whenever another starts meanwhile."""
    starts_s = [at_s, *(start_s for start_s in laid.values() if at_s < start_s < at_s + job.duration_s)]
    return all(
        job.gpus + sum(JOBS[n].gpus for n, start_s in laid.items() if start_s <= when_s < start_s + JOBS[n].duration_s)
        <= GPUS
        for when_s in starts_s
    )


def test_a_gang_in_a_stream_of_single_gpus_waits_or_they_do() -> None:
    least_s = min(waits_by(rule)[0] for rule in ("fifo", "skip", "easy"))
    easys_gang_s = waits_by("easy")[1]
    found = [_waits(each_as_soon_as_it_fits(turns)) for turns in permutations(range(len(JOBS)))]
    assert min(of_all_s for of_all_s, _ in found) <= least_s, "the one bar alone can be met"
    assert min(gang_s for _, gang_s in found) <= easys_gang_s, "so can the other"
    assert min(of_all_s for of_all_s, gang_s in found if gang_s <= easys_gang_s) > 3 * least_s
