"""CPU time of judging: one sample of a healthy GPU, beside one that is ill; and all that a GPU costs in an interval of
ten seconds, with every rule: its samples, what the slow look tells once a minute, its share of what its host tells, the
comparison with its peers, and what findings do to evidence, repetitions among it.
"""

import time

from benchmarks import judgement_whole as whole
from benchmarks.figures import Figure
from health.detectors.past import is_quiet, look_of, watched_in
from health.detectors.registry import GpuMemory, judge_sample
from muster.domain.evidence import GpuSample
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.metrics import METRICS
from muster.domain.policy import DEFAULT_POLICY

NUM_GPUS = 1_000
NUM_ROUNDS = 20
START_MS = 1_790_000_000_000
INTERVAL_MS = 10_000


def _samples(round_number: int, readings: dict[str, float]) -> list[GpuSample]:
    values = tuple(readings.get(metric.name, 0.0) for metric in METRICS)
    at_ms = START_MS + round_number * INTERVAL_MS
    return [GpuSample(GpuUuid(f"GPU-{index:08d}"), at_ms, values) for index in range(NUM_GPUS)]


def _microseconds_per_sample(readings: dict[str, float]) -> float:
    rounds = [_samples(number, readings) for number in range(NUM_ROUNDS)]
    memories = [GpuMemory(NodeId("node_bench"))] * NUM_GPUS
    policy = DEFAULT_POLICY.health
    before = time.process_time_ns()
    for samples in rounds:
        for index, sample in enumerate(samples):
            memories[index], _ = judge_sample(memories[index], sample, policy, sample.at_ms)
    return (time.process_time_ns() - before) / (NUM_ROUNDS * NUM_GPUS) / 1000


def _microseconds_per_quick_look() -> float:
    rounds = [_samples(number, {}) for number in range(NUM_ROUNDS)]
    watched = watched_in(rounds[0][0].values)
    look = look_of(DEFAULT_POLICY.health)
    before = time.process_time_ns()
    quiet = sum(is_quiet(watched, sample.values, look) for samples in rounds for sample in samples)
    if quiet != NUM_ROUNDS * NUM_GPUS:
        raise AssertionError("a healthy sample is not quiet")
    return (time.process_time_ns() - before) / quiet / 1000


def measure() -> list[Figure]:
    healthy_us = _microseconds_per_sample({})
    ill_us = _microseconds_per_sample({"clock_event_reasons": 0x48, "remap_pending": 1.0})
    beside = {"of an ill GPU µs": ill_us, "quick look µs": _microseconds_per_quick_look()}
    whole_us, parts = whole.microseconds_per_interval()
    return [
        Figure("judgement per GPU-sample: the rules over samples alone", healthy_us, "µs", 25, "lower", beside),
        Figure(
            "judgement per GPU-sample: all rules, with events, peers, repetitions", whole_us, "µs", 25, "lower", parts
        ),
    ]
