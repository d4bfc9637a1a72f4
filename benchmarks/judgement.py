"""CPU time of judging: one sample of a healthy GPU and of a faulty one, and the whole cost of a GPU in ten seconds.

The whole includes every rule: its samples, the slow readings once a minute, its share of its host's readings, the
comparison with its peers, and the effect of findings on evidence, with repetitions.
"""

import time
from dataclasses import dataclass
from typing import Final

from benchmarks import judgement_whole as whole
from benchmarks.figures import Basis, Figure, Groups
from benchmarks.sizes import Sizes
from health.detectors.past import is_quiet, past_check_of, watched_in
from health.detectors.registry import GpuMemory, judge_sample
from muster.domain.evidence.findings import GpuSample
from muster.domain.gpu.metrics import METRICS
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.policy.document import DEFAULT_POLICY

START_MS = 1_790_000_000_000
INTERVAL_MS = 10_000


@dataclass(frozen=True, slots=True)
class Size:
    """Size of the benchmark. ``gpus`` in ``rounds`` for the samples alone; ``fleet_gpus`` for all rules."""

    gpus: int
    rounds: int
    fleet_gpus: int


SIZES: Final = Sizes(full=Size(gpus=1_000, rounds=20, fleet_gpus=800), smallest=Size(gpus=50, rounds=4, fleet_gpus=128))


def _samples(round_number: int, readings: dict[str, float], size: Size) -> list[GpuSample]:
    values = tuple(readings.get(metric.name, 0.0) for metric in METRICS)
    at_ms = START_MS + round_number * INTERVAL_MS
    return [GpuSample(GpuUuid(f"GPU-{index:08d}"), at_ms, values) for index in range(size.gpus)]


def _microseconds_per_sample(readings: dict[str, float], size: Size) -> float:
    rounds = [_samples(number, readings, size) for number in range(size.rounds)]
    memories = [GpuMemory(NodeId("node_bench"))] * size.gpus
    policy = DEFAULT_POLICY.health
    before = time.process_time_ns()
    for samples in rounds:
        for index, sample in enumerate(samples):
            memories[index], _ = judge_sample(memories[index], sample, policy, sample.at_ms)
    return (time.process_time_ns() - before) / (size.rounds * size.gpus) / 1000


def _microseconds_per_quick_check(size: Size) -> float:
    rounds = [_samples(number, {}, size) for number in range(size.rounds)]
    watched = watched_in(rounds[0][0].values)
    look = past_check_of(DEFAULT_POLICY.health)
    before = time.process_time_ns()
    quiet = sum(is_quiet(watched, sample.values, look) for samples in rounds for sample in samples)
    if quiet != size.rounds * size.gpus:
        raise AssertionError("a healthy sample is not quiet")
    return (time.process_time_ns() - before) / quiet / 1000


def measure(size: Size) -> Groups:
    healthy_us = _microseconds_per_sample({}, size)
    faulty_us = _microseconds_per_sample({"clock_event_reasons": 0x48, "remap_pending": 1.0}, size)
    beside = {"of a faulty GPU µs": faulty_us, "quick check µs": _microseconds_per_quick_check(size)}
    yield [_figure("the rules over samples alone", healthy_us, beside)]
    whole_us, parts = whole.microseconds_per_interval(size.fleet_gpus)
    yield [_figure("all rules, with events, peers, repetitions", whole_us, parts)]


def _figure(what: str, value_us: float, peers: dict[str, float]) -> Figure:
    return Figure(f"judgement per GPU-sample: {what}", value_us, "µs", 25.0, peers=peers, basis=Basis.CPU)
