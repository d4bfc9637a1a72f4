"""Cost of all rules for one GPU in ten seconds, amortised over an hour of a fleet under load.

The fleet reports more than a quiet one, which reports nothing between the hours: each GPU reports a state and a rate
every minute, each host its state, network and ports; one GPU in a hundred has a finding every minute, one in a thousand
an XID of its program, which is checked for repetitions.
"""

import time
from collections.abc import Iterator, Mapping
from itertools import count
from random import Random
from typing import Final

import numpy as np

from health.cohort import peers
from health.detectors.registry import GpuMemory, closings_of, judge_sample, judge_signal
from health.evidence.index import EvidenceIndex
from health.evidence.merge import Place, merge
from muster.domain.evidence.findings import EventKind, GpuSample, GpuSignal, Source
from muster.domain.gpu.metrics import METRICS
from muster.domain.ids import EvidenceId, GpuUuid, NodeId
from muster.domain.policy.document import DEFAULT_POLICY

GPUS_A_NODE: Final = 8
GANG: Final = 64
NUM_MINUTES: Final = 10
SAMPLES_A_MINUTE: Final = 6
START_MS: Final = 1_790_000_000_000
MINUTE_MS: Final = 60_000
_POLICY: Final = DEFAULT_POLICY.health
_STATE: Final = {
    "inforom_valid": 1.0,
    "ecc_enabled": 1.0,
    "persistence_enabled": 1.0,
    "sram_threshold_exceeded": 0.0,
    "remap_banks_none": 0.0,
    "power_limit_w": 700.0,
    "default_power_limit_w": 700.0,
    "pcie_loaded_generation": 5.0,
    "pcie_max_generation": 5.0,
    "pcie_loaded_width": 16.0,
    "pcie_max_width": 16.0,
    "nvlink_links": 18.0,
    "nvlink_links_down": 0.0,
    "nvlink_links_to_nothing": 0.0,
    "fabric_state": 3.0,
    "temperature_max_c": 95.0,
}
_RATES: Final = {"window_s": 60.0, "pcie_replays": 2.0, "pcie_generation": 5.0, "pcie_width": 16.0}
_HOST: Final = {
    "expected_gpus": 8.0,
    "found_gpus": 8.0,
    "disk_free_fraction": 0.5,
    "clock_offset_s": 0.001,
    "cpu_pressure": 0.1,
    "memory_pressure": 0.0,
    "io_pressure": 0.0,
    "drivers": 0.0,
    "vbios_differs": 0.0,
}
_NETWORK: Final = {"window_s": 60.0, "tcp_segments": 1e6, "tcp_retransmits": 10.0}
_PORT: Final = {"window_s": 60.0, "port_xmit_discards": 3.0}


def microseconds_per_interval(num_gpus: int) -> tuple[float, dict[str, float]]:
    """Return the whole, and its parts by name. Raises AssertionError if nothing was found: nothing was judged."""
    samples_us = _timed(Samples, num_gpus)
    events_us = _timed(Events, num_gpus)
    peers_us = _timed(Peers, num_gpus)
    parts = {"samples µs": samples_us, "events and repetitions µs": events_us, "peers µs": peers_us}
    return sum(parts.values()), parts


def _timed(work: "type[Work]", num_gpus: int) -> float:
    """Return CPU µs for each GPU and ten seconds. The input is made before."""
    prepared = work(num_gpus)
    before = time.process_time_ns()
    prepared.run()
    spent_us = (time.process_time_ns() - before) / 1000
    prepared.check()
    return spent_us / (num_gpus * NUM_MINUTES * SAMPLES_A_MINUTE)


class Work:
    def __init__(self, num_gpus: int) -> None:
        self.num_gpus = num_gpus

    def run(self) -> None: ...

    def check(self) -> None: ...


def _gpu(index: int) -> GpuUuid:
    return GpuUuid(f"GPU-{index:08d}")


def _node(index: int) -> NodeId:
    return NodeId(f"node_{index // GPUS_A_NODE}")


class Samples(Work):
    def __init__(self, num_gpus: int) -> None:
        super().__init__(num_gpus)
        values = tuple(50.0 if metric.name == "temperature_c" else 0.0 for metric in METRICS)
        rounds = range(NUM_MINUTES * SAMPLES_A_MINUTE)
        self.rounds = [
            [GpuSample(_gpu(index), START_MS + at * 10_000, values) for index in range(self.num_gpus)] for at in rounds
        ]
        self.memories = [GpuMemory(_node(index), model="NVIDIA H100 80GB HBM3") for index in range(self.num_gpus)]

    def run(self) -> None:
        for samples in self.rounds:
            for index, sample in enumerate(samples):
                self.memories[index], _ = judge_sample(self.memories[index], sample, _POLICY, sample.at_ms)


class Events(Work):
    def __init__(self, num_gpus: int) -> None:
        super().__init__(num_gpus)
        self.rng = Random(1)  # noqa: S311  # a benchmark that repeats
        self.events = [
            event for minute in range(NUM_MINUTES) for event in self._of_a_minute(START_MS + minute * MINUTE_MS)
        ]
        self.known: dict[str, EvidenceIndex] = {}
        self.num_merged = 0

    def _of_a_minute(self, at_ms: int) -> Iterator[GpuSignal]:
        for index in range(self.num_gpus):
            rates = {**_RATES, "replays": 3.0} if self.rng.random() < 0.01 else _RATES
            yield self._event(EventKind.GPU_STATE, at_ms, index, _STATE)
            yield self._event(EventKind.GPU_RATES, at_ms, index, rates)
            if self.rng.random() < 0.001:
                yield self._event(EventKind.XID, at_ms, index, {}, code=31)
            if index % GPUS_A_NODE == 0:
                yield self._event(EventKind.HOST_STATE, at_ms, index, _HOST, is_of_node=True)
                yield self._event(EventKind.HOST_RATES, at_ms, index, _NETWORK, is_of_node=True)
            yield self._event(EventKind.PORT_RATES, at_ms, index, _PORT, is_of_node=True, text=f"mlx5_{index % 8}/1")

    def _event(
        self,
        kind: EventKind,
        at_ms: int,
        index: int,
        values: Mapping[str, float],
        *,
        is_of_node: bool = False,
        code: int | None = None,
        text: str = "",
    ) -> GpuSignal:
        name = f"{kind}:{at_ms}:{index}:{text}"
        gpu = None if is_of_node else _gpu(index)
        return GpuSignal(name, kind, Source.NVML, at_ms, _node(index), gpu, code=code, text=text, values=values)

    def run(self) -> None:
        numbers = count()
        for event in self.events:
            closings_of(event, _POLICY)
            place = self.known.setdefault(event.gpu_uuid or event.node_id, EvidenceIndex())
            for finding in judge_signal(event, _POLICY):
                for _ in merge(finding, Place(place), _POLICY, event.at_ms, lambda: EvidenceId(f"ev_{next(numbers)}")):
                    self.num_merged += 1

    def check(self) -> None:
        if not self.num_merged:
            raise AssertionError("no event was found to be anything: nothing was judged")


class Peers(Work):
    """Gangs of 64 under load, one GPU of which clocks lower than its peers."""

    def __init__(self, num_gpus: int) -> None:
        super().__init__(num_gpus)
        chance = np.random.default_rng(1)
        base = np.array([650.0, 1900.0, 62.0, 97.0])
        spread = np.array([5.0, 8.0, 1.5, 0.5])
        gpus, nodes = [_gpu(index) for index in range(self.num_gpus)], [_node(index) for index in range(self.num_gpus)]
        gangs = np.arange(self.num_gpus) // GANG
        self.rounds = []
        for minute in range(NUM_MINUTES):
            values = base + chance.normal(size=(num_gpus, 4)) * spread
            values[0, 1] = 1200.0
            self.rounds.append(peers.Round(START_MS + minute * MINUTE_MS, gpus, nodes, gangs, values))
        self.num_found = 0

    def run(self) -> None:
        memory = peers.Memory()
        for seen in self.rounds:
            memory, found = peers.judge_round(memory, seen, _POLICY)
            self.num_found += len(found)

    def check(self) -> None:
        if not self.num_found:
            raise AssertionError("the slow GPU was not found")
