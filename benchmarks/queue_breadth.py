"""Number of generated traces on which our rule of the queue meets its requirements: one row for each group of them.

A trace holds if our mean wait is no more than the least of FIFO's, skip-ahead's and EASY's, gangs of 64 GPUs and more
wait no longer than under EASY, and no job starts more than a week later than under FIFO; estimates are off by up to a
factor of two. The bar of a row is all its traces, though no rule can hold on every possible trace
(``tests/simulator/traces/test_no_rule_has_both.py``).

``LAWS_OF_OTHERS`` differ from ``simulator.traces.generated.LAWS`` in most of a queue: single GPUs, gangs, two kinds of
jobs, very long tails. The rule was chosen by the first two groups; the laws of ``LAWS_KEPT_BACK`` and the seeds of the
third were first played after the choice. The last group is weeks of Philly on fleets from light to overloaded, with
gangs of 8 GPUs and more as the big ones.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from benchmarks.figures import Basis, Figure, Groups
from benchmarks.queue_rules import ESTIMATE_ERROR, GPUS_PER_NODE, NUM_GENERATED, OTHERS, OURS, PHILLY, SEED, rows_of
from benchmarks.sizes import Sizes
from simulator.traces.generated import LAWS, Law, arrivals_by_day, arrivals_in_bursts, generated
from simulator.traces.jobs import TraceJob, jobs_of
from simulator.traces.playing import estimates_of, play
from simulator.traces.report import STARVED_AFTER_S
from simulator.traces.rules import QUEUE_RULES

BIG_GPUS: Final = 64
DAY_S: Final = 86_400
_LONGEST_S: Final = 864_000.0


def _steady(rng: Random, _: float) -> float:
    return rng.expovariate(1 / 300)


LAWS_OF_OTHERS: Final[Mapping[str, Law]] = {
    "ones": Law(
        _steady,
        {1: 85, 2: 5, 4: 4, 8: 4, 32: 1, 128: 1},
        lambda chance, _: chance.lognormvariate(math.log(3_600), 1.5),
    ),
    "gangs": Law(
        _steady,
        {1: 10, 8: 10, 16: 20, 32: 20, 64: 20, 128: 12, 256: 8},
        lambda chance, _: chance.lognormvariate(math.log(3_600), 1.2),
    ),
    "bimodal": Law(
        _steady,
        {1: 70, 4: 10, 64: 15, 160: 5},
        lambda chance, _: chance.expovariate(1 / 300) if chance.random() < 0.7 else chance.expovariate(1 / 40_000),
    ),
    "heavy": Law(
        arrivals_in_bursts,
        {1: 40, 2: 15, 4: 12, 8: 15, 16: 8, 32: 5, 64: 3, 128: 2},
        lambda chance, _: min(300 * chance.paretovariate(0.9), _LONGEST_S),
    ),
}
LAWS_KEPT_BACK: Final[Mapping[str, Law]] = {
    "odd": Law(
        arrivals_by_day,
        {1: 30, 3: 15, 5: 10, 6: 10, 8: 10, 24: 10, 40: 8, 72: 5, 104: 2},
        lambda chance, _: chance.weibullvariate(5_000, 0.5),
    ),
    "equal": Law(
        _steady,
        {1: 30, 4: 20, 8: 20, 16: 10, 64: 10, 128: 10},
        lambda chance, _: chance.uniform(600, 7_200),
    ),
    "anti": Law(
        arrivals_in_bursts,
        {1: 40, 2: 20, 8: 20, 32: 10, 96: 10},
        lambda chance, gpus: chance.lognormvariate(math.log(20_000 / math.sqrt(gpus)), 1.3),
    ),
    "mixed": Law(
        arrivals_by_day,
        {1: 50, 2: 10, 4: 10, 8: 10, 16: 10, 64: 5, 200: 5},
        lambda chance, _: chance.lognormvariate(math.log(900), 2.2),
    ),
}


@dataclass(frozen=True, slots=True)
class Trace:
    law: Law
    num_nodes: int
    load: float
    seed: int
    num_jobs: int = NUM_GENERATED

    @property
    def jobs(self) -> list[TraceJob]:
        return generated(
            self.law,
            num_jobs=self.num_jobs,
            num_nodes=self.num_nodes,
            gpus_per_node=GPUS_PER_NODE,
            load=self.load,
            seed=self.seed,
        )


@dataclass(frozen=True, slots=True)
class Load:
    """Result on a trace. ``mean`` and ``big``: our wait ÷ the bar's, 1 if both are none. ``late``: jobs a week after
    FIFO's.
    """

    mean: float
    big: float
    late: int

    @property
    def holds(self) -> bool:
        return self.mean <= 1 and self.big <= 1 and not self.late


def _sized(law: Law, fleets: tuple[tuple[int, float], ...], seeds: range) -> Iterator[Trace]:
    """Yield traces of a law. ``fleets``: numbers of nodes, each with a load."""
    for num_nodes, load in fleets:
        for seed in seeds:
            yield Trace(law, num_nodes, load, seed)


def _other_fleets() -> Iterator[Trace]:
    for law in LAWS_OF_OTHERS.values():
        yield from _sized(law, tuple((nodes, load) for nodes in (40, 100) for load in (0.7, 0.9, 1.2)), range(11, 13))
        yield from _sized(law, ((40, 0.7), (40, 0.9), (40, 1.2)), range(13, 16))
    for name in ("gangs", "bimodal"):
        yield from _sized(LAWS_OF_OTHERS[name], ((60, 1.0),), range(13, 16))
    for name in ("ones", "heavy"):
        yield from _sized(LAWS_OF_OTHERS[name], ((24, 0.9),), range(13, 16))
    for law in LAWS.values():
        yield from _sized(law, ((40, 0.7), (40, 1.2), (24, 0.9), (100, 0.9)), range(11, 13))


def _kept_back() -> Iterator[Trace]:
    for law in LAWS_KEPT_BACK.values():
        yield from _sized(law, ((40, 0.9), (40, 1.1), (80, 0.8)), range(101, 103))
    for law in (*LAWS.values(), *LAWS_OF_OTHERS.values()):
        yield from _sized(law, ((40, 0.9),), range(201, 204))


GROUPS: Final[Mapping[str, tuple[Trace, ...]]] = {
    "40 nodes, load 0.9": tuple(trace for law in LAWS.values() for trace in _sized(law, ((40, 0.9),), range(1, 10))),
    "other laws, fleets and loads": tuple(_other_fleets()),
    "kept back until the rule stood": tuple(_kept_back()),
}


@dataclass(frozen=True, slots=True)
class Weeks:
    """Philly's jobs of some days, on a fleet of so many nodes."""

    from_day: int
    until_day: int
    num_nodes: int

    @property
    def jobs(self) -> list[TraceJob]:
        days = range(self.from_day, self.until_day)
        rows = [row for row in rows_of(PHILLY) if int(row["submit_s"]) // DAY_S in days]
        return jobs_of(rows, num_nodes=self.num_nodes, gpus_per_node=GPUS_PER_NODE, arrivals=1.0)


PARTS_OF_PHILLY: Final = tuple(
    Weeks(*days, nodes) for days in ((0, 30), (20, 35), (30, 60), (60, 90), (80, 110)) for nodes in (50, 60, 75)
)


@dataclass(frozen=True, slots=True)
class Size:
    groups: Mapping[str, tuple[Trace, ...]]
    parts_of_philly: tuple[Weeks, ...]


SIZES: Final = Sizes(
    full=Size(GROUPS, PARTS_OF_PHILLY),
    smallest=Size({name: (replace(traces[0], num_jobs=100),) for name, traces in GROUPS.items()}, (Weeks(0, 2, 50),)),
)


def measure(size: Size) -> Groups:
    for name, traces in size.groups.items():
        yield [_figure(f"Generated, {name}", [load(trace, BIG_GPUS) for trace in traces])]
    yield [_figure("Parts of Philly", [load(part, GPUS_PER_NODE) for part in size.parts_of_philly])]


def _figure(name: str, found: list[Load]) -> Figure:
    return Figure(
        f"{name}: traces that hold",
        float(sum(one.holds for one in found)),
        "traces",
        float(len(found)),
        better="higher",
        peers={
            "mean wait holds": float(sum(one.mean <= 1 for one in found)),
            "big gangs' holds": float(sum(one.big <= 1 for one in found)),
            "jobs a week later": float(sum(one.late for one in found)),
            "mean wait ÷ best, geometric mean": _geometric_mean([one.mean for one in found]),
            "worst": max(one.mean for one in found),
            "big gangs' ÷ EASY's, geometric mean": _geometric_mean([one.big for one in found]),
            "worst of these": max(one.big for one in found),
        },
        basis=Basis.COUNT,
    )


def load(trace: Trace | Weeks, big_gpus: int) -> Load:
    jobs = trace.jobs
    estimates = estimates_of(jobs, error=ESTIMATE_ERROR, seed=SEED)
    started = {
        rule: play(jobs, estimates, QUEUE_RULES[rule], num_nodes=trace.num_nodes, gpus_per_node=GPUS_PER_NODE).started_s
        for rule in (OURS, *OTHERS)
    }
    waits = {rule: [at - job.submit_s for job, at in zip(jobs, own, strict=True)] for rule, own in started.items()}
    big = {
        rule: sum(wait for job, wait in zip(jobs, own, strict=True) if job.gpus >= big_gpus)
        for rule, own in waits.items()
    }
    return Load(
        mean=_ratio(sum(waits[OURS]), min(sum(waits[rule]) for rule in OTHERS)),
        big=_ratio(big[OURS], big["easy"]),
        late=sum(ours - fifo > STARVED_AFTER_S for ours, fifo in zip(started[OURS], started["fifo"], strict=True)),
    )


def _ratio(value: float, bar: float) -> float:
    if not bar:
        return math.inf if value else 1.0
    return value / bar


def _geometric_mean(ratios: list[float]) -> float:
    return math.exp(sum(math.log(max(ratio, 1e-3)) for ratio in ratios) / len(ratios))
