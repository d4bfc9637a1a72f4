"""Traces that are made up by laws of arrival, size and duration: for rules that were tuned to others."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Final

from simulator.traces.jobs import TraceJob, jobs_of

_DAY_S: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Law:
    """``gap_s``: until the next submission, before all are stretched to the wanted load, given the time of day as a
    part of one; ``gpus``: how many with which weight; ``duration_s``: of a job of so many GPUs.
    """

    gap_s: Callable[[Random, float], float]
    gpus: Mapping[int, float]
    duration_s: Callable[[Random, int], float]


def generated(law: Law, *, num_jobs: int, num_nodes: int, gpus_per_node: int, load: float, seed: int) -> list[TraceJob]:
    """``load``: GPU-seconds that are asked for until the last submission, of what the fleet has by then."""
    chance = Random(f"trace {seed}")  # noqa: S311  # a simulation
    rows, at_s, gpu_s = [], 0.0, 0.0
    for number in range(num_jobs):
        gpus = chance.choices(list(law.gpus), list(law.gpus.values()))[0]
        duration_s = round(law.duration_s(chance, gpus))
        rows.append({"submit_s": at_s, "gpus": gpus, "duration_s": duration_s, "tenant": f"t{number % 5}"})
        at_s += law.gap_s(chance, at_s % _DAY_S / _DAY_S)
        gpu_s += gpus * duration_s
    stretch = gpu_s / (at_s * num_nodes * gpus_per_node * load)
    return jobs_of(rows, num_nodes=num_nodes, gpus_per_node=gpus_per_node, arrivals=stretch)


def arrivals_in_bursts(chance: Random, _: float) -> float:
    """Nine in ten follow within a minute, the others after hours."""
    return chance.expovariate(1 / 30) if chance.random() < 0.9 else chance.expovariate(1 / 7_200)


def arrivals_by_day(chance: Random, part: float) -> float:
    """Ten times as many at noon as at midnight."""
    return chance.expovariate(1) * 300 / (1 - 0.82 * math.cos(2 * math.pi * part))


LAWS: Final[Mapping[str, Law]] = {
    "steady": Law(
        lambda chance, _: chance.expovariate(1 / 300),
        {1: 40, 2: 15, 4: 12, 8: 15, 16: 8, 32: 5, 64: 3, 128: 2},
        lambda chance, _: chance.lognormvariate(math.log(3_600), 1.5),
    ),
    "bursts": Law(
        arrivals_in_bursts, {1: 60, 8: 10, 24: 10, 96: 12, 192: 8}, lambda chance, _: chance.weibullvariate(7_200, 0.6)
    ),
    "days": Law(
        arrivals_by_day,
        {gpus: 1 / gpus for gpus in range(1, 9)} | {8 * nodes: 1 / (8 * nodes) for nodes in range(2, 25)},
        lambda chance, gpus: min(600 * chance.paretovariate(1.1) * math.sqrt(gpus), 10 * _DAY_S),
    ),
}
"""Poisson arrivals, powers of two, log-normal durations; bursts, two kinds of jobs, stretched exponential; arrivals by
day, every size, Pareto durations that grow with the size."""
