"""Waits under our rule of the queue, and under FIFO, skip-ahead and EASY backfill, on two public traces and three
others; and under shortest job first and conservative backfill where these end in minutes.

The three are made up by other laws. They are played, not run: `simulator/traces` states what of a fleet it knows. The
expected time of each job is off by up to a factor of two, either way, by the same seed for every rule; every rule has
the same information about a job that outlasts it. Shortest job first bounds no wait, so it is a peer and sets no bar.
"""

import csv
import gzip
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.figures import Basis, Figure, Groups
from benchmarks.sizes import Sizes
from simulator.traces.generated import LAWS, generated
from simulator.traces.jobs import TraceJob, jobs_of
from simulator.traces.playing import Played, estimates_of, play
from simulator.traces.report import STARVED_AFTER_S
from simulator.traces.rules import QUEUE_RULES

TRACES = Path(__file__).parent / "traces"
PHILLY = "philly_gpu_jobs.csv.gz"
ESTIMATE_ERROR = 2.0
SEED = 1
NUM_GENERATED, GENERATED_LOAD, GENERATED_SEED = 4_000, 0.9, 3
GPUS_PER_NODE = 8
OURS, OTHERS, UNBOUNDED = "muster", ("fifo", "skip", "easy"), "sjf"
ALSO: Final = "conservative"
"""Not in Philly on 60 nodes: its queue is months long, and each of 160,000 events computes every place again."""


@dataclass(frozen=True, slots=True)
class Case:
    """Case of a trace. ``file``: or a law of ``simulator.traces.generated``. ``big_gpus``: least GPUs of a big gang."""

    name: str
    file: str
    num_nodes: int
    arrivals: float
    big_gpus: int

    num_generated: int = NUM_GENERATED

    @property
    def jobs(self) -> list[TraceJob]:
        if self.file in LAWS:
            return generated(
                LAWS[self.file],
                num_jobs=self.num_generated,
                num_nodes=self.num_nodes,
                gpus_per_node=GPUS_PER_NODE,
                load=GENERATED_LOAD,
                seed=GENERATED_SEED,
            )
        rows = rows_of(self.file)
        return jobs_of(rows, num_nodes=self.num_nodes, gpus_per_node=GPUS_PER_NODE, arrivals=self.arrivals)


def rows_of(file: str) -> list[dict[str, str]]:
    with gzip.open(TRACES / file, "rt") as text:
        return list(csv.DictReader(text))


KALOS: Final = Case("Kalos, 5 × denser, 160 nodes", "acme_kalos_completed_training_319.csv.gz", 160, 0.2, 512)
CASES: Final = (
    KALOS,
    Case("Philly, 60 nodes", PHILLY, 60, 1.0, 8),
    *(Case(f"Generated: {law}, 40 nodes", law, 40, 1.0, 64) for law in LAWS),
)


@dataclass(frozen=True, slots=True)
class Size:
    cases: tuple[Case, ...]


SIZES: Final = Sizes(
    full=Size(CASES), smallest=Size((KALOS, Case("Generated: steady, 40 nodes", "steady", 40, 1.0, 64, 200)))
)


def measure(size: Size) -> Groups:
    for case in size.cases:
        yield _figures(case)


def _figures(case: Case) -> list[Figure]:
    jobs = case.jobs
    estimates = estimates_of(jobs, error=ESTIMATE_ERROR, seed=SEED)
    played: dict[str, Played] = {}
    took_s: dict[str, float] = {}
    others = OTHERS if case.file == PHILLY else (*OTHERS, ALSO)
    for rule in (OURS, *others, UNBOUNDED):
        started = time.process_time()
        played[rule] = play(jobs, estimates, QUEUE_RULES[rule], num_nodes=case.num_nodes, gpus_per_node=GPUS_PER_NODE)
        took_s[rule] = time.process_time() - started
    mean = {rule: _mean_wait_s(jobs, result, 1) for rule, result in played.items()}
    big = {rule: _mean_wait_s(jobs, result, case.big_gpus) for rule, result in played.items()}
    events_per_min = played[OURS].num_events / took_s[OURS] * 60
    fifo = played["fifo"].started_s
    unbounded = [start - other for start, other in zip(played[UNBOUNDED].started_s, fifo, strict=True)]
    late = [start - other for start, other in zip(played[OURS].started_s, fifo, strict=True)]
    num_late = float(sum(one > STARVED_AFTER_S for one in late))
    latest = {
        "of jobs": float(len(jobs)),
        "latest, days": max(late) / 86_400,
        "sjf jobs": float(sum(one > STARVED_AFTER_S for one in unbounded)),
        "sjf latest, days": max(unbounded) / 86_400,
    }
    name = f"{case.name}: wait ≥ {case.big_gpus} GPUs"
    return [
        _wait_figure(f"{case.name}: mean wait", mean, min(mean[rule] for rule in others)),
        _wait_figure(name, big, big["easy"]),
        Figure(f"{case.name}: a week later than FIFO", num_late, "jobs", 0.0, peers=latest, basis=Basis.COUNT),
        Figure(f"{case.name}: events a CPU minute", events_per_min, "", 3_000_000, "higher", basis=Basis.CPU),
    ]


def _wait_figure(name: str, waits_s: dict[str, float], bar_s: float) -> Figure:
    """Return a figure in seconds of the trace's own time, which are the same on every machine."""
    return Figure(name, waits_s[OURS], "s", bar_s, peers=_of(waits_s), basis=Basis.COUNT)


def _of(values: dict[str, float]) -> dict[str, float]:
    return {f"{rule} s": value for rule, value in values.items() if rule != OURS}


def _mean_wait_s(jobs: list[TraceJob], played: Played, least_gpus: int) -> float:
    waits = [start - job.submit_s for job, start in zip(jobs, played.started_s, strict=True) if job.gpus >= least_gpus]
    return sum(waits) / max(1, len(waits))
