"""The reports of a fleet's agents over some weeks: faults of hardware, each with its truth, and the noise of health.

Pure: the seed decides. Faults occur by their shares of the 419 interruptions that Llama 3's training counted in 54 days
on 2,048 nodes, as far as an agent can see them (``simulator.quality.fault_classes`` gives the reasons for the others).
Noise: programs of users that crash repeatedly (``simulator.quality.user_programs``), links that train after boots,
corrected errors, power caps, and lost reports. A sample in a lost report is lost permanently, as if the agent's spool
were full. Its events are not, since a spool drops them last: they come with the next report. Agents restart: what was
sent comes again unchanged, and states that still hold are reported again as new.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from health.replay.stream import Input, Sampled
from muster.domain.evidence.findings import EventKind, GpuSample, GpuSignal, Source
from muster.domain.gpu.metrics import METRICS
from muster.domain.ids import GpuUuid, NodeId
from simulator.quality.fault_classes import FAULTS, NUM_LISTED, STATE_KINDS, Fault
from simulator.quality.user_programs import DAY_MS, GPUS, HOUR_MS, Affected, crashes_of, place, signal

INTERVAL_MS: Final = 10_000
FAULTS_PER_NODE_DAY: Final = NUM_LISTED / 54 / 2048
LOST_SHARE: Final = 0.01
RESENT_SHARE: Final = 0.05
"""Share of all messages that are stored, but whose answer is lost with the agent: its next life sends them again."""
RESENT_WITHIN_MS: Final = 600_000
AGAIN_WITHIN_MS: Final = HOUR_MS
"""Time within which the next life of an agent reports a fault that still holds."""
TRAINING_SHARE: Final = 214 / 288
"""Share of booting nodes that report links that train (NVSentinel issue 1701)."""


SAMPLES_OF_A_FAULT: Final = 12
WATCHED_BEFORE_MS: Final = (HOUR_MS, 30_000, 20_000, 10_000)


@dataclass(frozen=True, slots=True)
class Injected:
    fault: Fault
    at_ms: int
    node_id: NodeId
    gpu_uuid: GpuUuid


@dataclass(frozen=True, slots=True)
class Stream:
    """One stream. ``arrivals``: when each input reaches the server, in that order."""

    injected: tuple[Injected, ...]
    arrivals: tuple[tuple[int, Input], ...]


def stream_of(seed: int, num_nodes: int, num_days: float, start_ms: int) -> Stream:
    rng, span_ms = Random(seed), int(num_days * DAY_MS)  # noqa: S311  # a simulation
    until_ms = start_ms + span_ms
    injected = tuple(_faults(rng, num_nodes, num_days, start_ms, span_ms))
    told: list[Input] = [each for fault in injected for each in _inputs_of(rng, fault)]
    told += crashes_of(rng, num_nodes, num_days, start_ms, span_ms)
    told += _boots(
        rng, num_nodes, start_ms, span_ms, {each.node_id for each in injected if each.fault.name == "nvlink"}
    )
    told += _wear(rng, num_nodes, start_ms, span_ms)
    told += _power_caps(rng, num_nodes, start_ms, span_ms)
    arrivals = [(_arrival_ms(rng, each), at, each) for at, each in enumerate(told) if not _is_lost(rng, each)]
    arrivals += _come_again(rng, arrivals, injected)
    ordered = sorted(arrivals, key=lambda each: each[:2])
    return Stream(injected, tuple((at_ms, given) for at_ms, _, given in ordered if at_ms <= until_ms + DAY_MS))


def _arrival_ms(rng: Random, given: Input) -> int:
    """Return when the input arrives: an event soon, a sample by the interval; a lost event with the next report."""
    delay_ms = rng.randrange(500) if isinstance(given, GpuSignal) else rng.randrange(1_000)
    while isinstance(given, GpuSignal) and rng.random() < LOST_SHARE:
        delay_ms += INTERVAL_MS
    return given.at_ms + delay_ms


def _is_lost(rng: Random, given: Input) -> bool:
    """Return whether the input is lost permanently: a sample with its report."""
    return isinstance(given, Sampled) and rng.random() < LOST_SHARE


def _come_again(
    rng: Random, arrivals: Sequence[tuple[int, int, Input]], injected: Sequence[Injected]
) -> list[tuple[int, int, Input]]:
    """Return the messages of restarted agents: the same input again, and each state that still holds as an event."""
    again = [
        (at_ms + rng.randrange(1, RESENT_WITHIN_MS), number, given)
        for at_ms, number, given in arrivals
        if rng.random() < RESENT_SHARE
    ]
    number = len(arrivals)
    for fault in injected:
        if fault.fault.event is not None and fault.fault.event.kind in STATE_KINDS:
            later = replace(fault, at_ms=fault.at_ms + rng.randrange(1, AGAIN_WITHIN_MS))
            for given in _inputs_of(rng, later):
                again.append((_arrival_ms(rng, given), number, given))
                number += 1
    return again


def _faults(rng: Random, num_nodes: int, num_days: float, start_ms: int, span_ms: int) -> Iterator[Injected]:
    """Yield the faults. No GPU and no node has two, so that each finding has one truth."""
    number = max(len(FAULTS), round(FAULTS_PER_NODE_DAY * num_nodes * num_days))
    kinds = [*FAULTS, *rng.choices(FAULTS, [each.share for each in FAULTS], k=number - len(FAULTS))]
    nodes = rng.sample(range(num_nodes), min(number, num_nodes))
    for fault, node in zip(kinds, nodes, strict=False):
        at_ms = start_ms + rng.randrange(span_ms)
        yield Injected(fault, at_ms, NodeId(f"node_{node}"), GpuUuid(f"GPU-{node}-{rng.randrange(GPUS)}"))


_WELL: Final[Mapping[str, float]] = {metric.name: 0.0 for metric in METRICS}


def _sampled(at_ms: int, node_id: NodeId, gpu_uuid: GpuUuid, **readings: float) -> Sampled:
    values = tuple(readings.get(name, well) for name, well in _WELL.items())
    return Sampled(node_id, GpuSample(gpu_uuid, at_ms, values))


def _inputs_of(rng: Random, injected: Injected) -> Iterator[Input]:
    """Yield the inputs that report a fault; samples are preceded by some of the healthy GPU.

    A real GPU is sampled 360 times an hour, so that no loss of a single report hides the state before.
    """
    at_ms, node_id, gpu, fault = injected.at_ms, injected.node_id, injected.gpu_uuid, injected.fault
    if fault.event is not None:
        event, about = fault.event, None if fault.is_of_node else gpu
        told = {"code": event.code, "text": event.text, "source": event.source}
        plain = signal(rng, event.kind, at_ms, Affected(node_id, about))
        yield replace(plain, **told, values=event.values)  # type: ignore[arg-type]  # fields by name
        return
    next_ms = at_ms + rng.randrange(INTERVAL_MS)
    for before_ms in WATCHED_BEFORE_MS:
        yield _sampled(at_ms - before_ms, node_id, gpu)
    for number in range(SAMPLES_OF_A_FAULT):
        yield _sampled(next_ms + number * INTERVAL_MS, node_id, gpu, **fault.readings)


def _boots(rng: Random, num_nodes: int, start_ms: int, span_ms: int, dark: Collection[NodeId]) -> Iterator[GpuSignal]:
    """Yield one boot of each node.

    Most report links that train and a fabric that is not ready, for up to three minutes. ``dark``: nodes whose links
    are at fault. A boot there would be another fault, or the end of the first.
    """
    for node in range(num_nodes):
        if rng.random() >= TRAINING_SHARE or f"node_{node}" in dark:
            continue
        boot_ms, node_id = start_ms + rng.randrange(span_ms), NodeId(f"node_{node}")
        gpu, well_ms = GpuUuid(f"GPU-{node}-{rng.randrange(GPUS)}"), boot_ms + 60_000 + rng.randrange(120_000)
        affected = Affected(node_id, gpu)
        yield signal(
            rng,
            EventKind.XID,
            boot_ms + 20_000,
            affected,
            code=149,
            source=Source.NVML,
            values={"since_boot_s": 20.0},
        )
        down = {"nvlink_links": 18.0, "nvlink_links_down": 4.0, "fabric_state": 2.0}
        yield signal(rng, EventKind.GPU_STATE, boot_ms + 21_000, affected, source=Source.NVML, values=down)
        well = {"nvlink_links": 18.0, "nvlink_links_down": 0.0, "fabric_state": 3.0}
        yield signal(rng, EventKind.GPU_STATE, well_ms, affected, source=Source.NVML, values=well)


def _wear(rng: Random, num_nodes: int, start_ms: int, span_ms: int) -> Iterator[GpuSignal]:
    """Yield corrected errors under every limit, and states of healthy GPUs that restarted agents report again."""
    for _ in range(num_nodes // 2):
        affected = Affected(*place(rng, num_nodes))
        at_ms = start_ms + rng.randrange(span_ms)
        rise = {"window_s": 60.0, "ecc_corrected_dram": 900.0, "ecc_corrected_dram_total": float(rng.randrange(10**6))}
        yield signal(rng, EventKind.GPU_RATES, at_ms, affected, source=Source.NVML, values=rise)
        state = {"inforom_valid": 1.0, "ecc_enabled": 1.0, "fabric_state": 3.0, "sram_threshold_exceeded": 0.0}
        yield signal(rng, EventKind.GPU_STATE, at_ms + 1, affected, source=Source.NVML, values=state)


def _power_caps(rng: Random, num_nodes: int, start_ms: int, span_ms: int) -> Iterator[Sampled]:
    """Yield samples at full load: the power cap is set in sample after sample."""
    for _ in range(num_nodes // 20):
        node_id, gpu = place(rng, num_nodes)
        at_ms = start_ms + rng.randrange(span_ms)
        for number in range(12):
            yield _sampled(at_ms + number * INTERVAL_MS, node_id, gpu, clock_event_reasons=4.0, temperature_c=80.0)
