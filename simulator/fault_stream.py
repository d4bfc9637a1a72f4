"""What the agents of a fleet would tell in some weeks: faults of hardware, each with its truth, and health's noise.

Pure: the seed decides. Faults come by their shares of the 419 interruptions that Llama 3's training counted in 54 days
on 2,048 nodes, as far as an agent can see them (software, hung watchdogs and silent corruption are others' to find).
Noise: XIDs of users' programs, links that train after boots, corrected errors, power caps, and reports that are lost
and come with the next. Agents start anew: what was sent comes again, as it was, and what stands is told again as new.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from types import MappingProxyType
from typing import Final

from health.replay_stream import Input, Sampled
from muster.domain.evidence import EventKind, GpuSample, GpuSignal, Source
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.metrics import METRICS

DAY_MS: Final = 86_400_000
HOUR_MS: Final = 3_600_000
INTERVAL_MS: Final = 10_000
FAULTS_PER_NODE_DAY: Final = 419 / 54 / 2048
USER_XIDS_PER_JOB_HOUR: Final = 0.002
LOST_SHARE: Final = 0.01
RESENT_SHARE: Final = 0.05
"""Of all that is sent: it is stored, its answer is lost with the agent, and the agent's next life sends it again."""
RESENT_WITHIN_MS: Final = 600_000
ANEW_WITHIN_MS: Final = HOUR_MS
"""When the next life of an agent tells of a fault that stands."""
GPUS: Final = 8
TRAINING_SHARE: Final = 214 / 288
"""Of nodes that boot those that tell of links that train (NVSentinel issue 1701)."""


@dataclass(frozen=True, slots=True)
class Event:
    kind: EventKind
    source: Source = Source.NVML
    code: int | None = None
    text: str = ""
    values: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fault:
    """What an agent would tell of one, and by which evidence it is found. ``share``: of the 419.

    Told by ``event`` at once, or by ``readings`` in each of the next samples.
    """

    name: str
    share: int
    found_as: tuple[str, ...]
    event: Event | None = None
    readings: Mapping[str, float] = field(default_factory=dict)
    is_of_node: bool = False


_STATES: Final = frozenset({EventKind.GPU_STATE, EventKind.HOST_STATE, EventKind.PORT_STATE})
_PORT: Final = "mlx5_0/1"
_DOWN: Final = Event(EventKind.PORT_STATE, Source.HOST, text=_PORT, values={"state": 1.0, "was_active": 1.0})
_RISEN: Final = Event(EventKind.PORT_RATES, Source.HOST, text=_PORT, values={"link_downed": 1.0, "window_s": 60.0})
_FATAL: Final = Event(EventKind.SXID, Source.KERNEL_LOG, 12028, "Fatal, Link 32 egress non-posted PRIV error")
_FULL: Final = Event(EventKind.HOST_STATE, Source.HOST, values={"disk_free_fraction": 0.001})
_SRAM: Final = Event(EventKind.GPU_STATE, values={"sram_threshold_exceeded": 1.0})
_NARROW: Final = Event(EventKind.GPU_STATE, values={"pcie_loaded_width": 8.0, "pcie_max_width": 16.0})
_LINKS: Final = Event(EventKind.GPU_STATE, values={"nvlink_links": 18.0, "nvlink_links_down": 2.0})
FAULTS: Final = (
    Fault("off_the_bus", 74, ("xid:79",), Event(EventKind.XID, Source.KERNEL_LOG, 79)),
    Fault("uncorrected_error", 74, ("ecc_uncorrected",), readings={"ecc_uncorrected_volatile": 1.0}),
    Fault("hbm_remap_failed", 36, ("row_remap:failure",), readings={"remap_failure": 1.0}),
    Fault("hbm_remap_waits", 36, ("row_remap:pending",), readings={"remap_pending": 1.0}),
    Fault("cable", 25, ("port_down",), _DOWN, is_of_node=True),
    Fault("switch", 10, ("sxid",), _FATAL, is_of_node=True),
    Fault("sram", 19, ("sram_threshold",), _SRAM),
    Fault("gsp", 17, ("xid:119",), Event(EventKind.XID, Source.KERNEL_LOG, 119)),
    Fault("nic", 7, ("port_fatal",), _RISEN, is_of_node=True),
    Fault("thermal", 6, ("clock_events:hw_thermal",), readings={"clock_event_reasons": 0x48}),
    Fault("power_supply", 3, ("clock_events:power_brake",), readings={"clock_event_reasons": 0x88}),
    Fault("disk", 3, ("host_disk",), _FULL, is_of_node=True),
    Fault("io_board", 2, ("pcie_link",), _NARROW),
    Fault("nvlink", 10, ("nvlink_down",), _LINKS),
)
SAMPLES_OF_A_FAULT: Final = 12


@dataclass(frozen=True, slots=True)
class Injected:
    fault: Fault
    at_ms: int
    node_id: NodeId
    gpu_uuid: GpuUuid


@dataclass(frozen=True, slots=True)
class Stream:
    """``arrivals``: when each input reaches the server, in that order."""

    injected: tuple[Injected, ...]
    arrivals: tuple[tuple[int, Input], ...]


def stream_of(seed: int, num_nodes: int, num_days: float, start_ms: int) -> Stream:
    rng, span_ms = Random(seed), int(num_days * DAY_MS)  # noqa: S311  # a simulation
    until_ms = start_ms + span_ms
    injected = tuple(_faults(rng, num_nodes, num_days, start_ms, span_ms))
    told: list[Input] = [each for fault in injected for each in _told_of(rng, fault)]
    told += _user_programs(rng, num_nodes, num_days, start_ms, span_ms)
    told += _boots(
        rng, num_nodes, start_ms, span_ms, {each.node_id for each in injected if each.fault.name == "nvlink"}
    )
    told += _wear(rng, num_nodes, start_ms, span_ms)
    told += _power_caps(rng, num_nodes, start_ms, span_ms)
    arrivals = [(_arrival_ms(rng, each), at, each) for at, each in enumerate(told)]
    arrivals += _come_again(rng, arrivals, injected)
    ordered = sorted(arrivals, key=lambda each: each[:2])
    return Stream(injected, tuple((at_ms, given) for at_ms, _, given in ordered if at_ms <= until_ms + DAY_MS))


def _arrival_ms(rng: Random, given: Input) -> int:
    """An event wakes the uplink, a sample goes with the interval; what is lost comes with the next report."""
    delay_ms = rng.randrange(500) if isinstance(given, GpuSignal) else rng.randrange(1_000)
    while rng.random() < LOST_SHARE:
        delay_ms += INTERVAL_MS
    return given.at_ms + delay_ms


def _come_again(
    rng: Random, arrivals: Sequence[tuple[int, int, Input]], injected: Sequence[Injected]
) -> list[tuple[int, int, Input]]:
    """Of agents that began anew: the same input once more, and each state that stands, as an event of its own."""
    again = [
        (at_ms + rng.randrange(1, RESENT_WITHIN_MS), number, given)
        for at_ms, number, given in arrivals
        if rng.random() < RESENT_SHARE
    ]
    number = len(arrivals)
    for fault in injected:
        if fault.fault.event is not None and fault.fault.event.kind in _STATES:
            later = replace(fault, at_ms=fault.at_ms + rng.randrange(1, ANEW_WITHIN_MS))
            for given in _told_of(rng, later):
                again.append((_arrival_ms(rng, given), number, given))
                number += 1
    return again


def _place(rng: Random, num_nodes: int) -> tuple[NodeId, GpuUuid]:
    node = rng.randrange(num_nodes)
    return NodeId(f"node_{node}"), GpuUuid(f"GPU-{node}-{rng.randrange(GPUS)}")


def _faults(rng: Random, num_nodes: int, num_days: float, start_ms: int, span_ms: int) -> Iterator[Injected]:
    """No GPU and no node has two: what is found would not say which."""
    number = max(len(FAULTS), round(FAULTS_PER_NODE_DAY * num_nodes * num_days))
    kinds = [*FAULTS, *rng.choices(FAULTS, [each.share for each in FAULTS], k=number - len(FAULTS))]
    nodes = rng.sample(range(num_nodes), min(number, num_nodes))
    for fault, node in zip(kinds, nodes, strict=False):
        at_ms = start_ms + rng.randrange(span_ms)
        yield Injected(fault, at_ms, NodeId(f"node_{node}"), GpuUuid(f"GPU-{node}-{rng.randrange(GPUS)}"))


def _signal(
    rng: Random,
    kind: EventKind,
    at_ms: int,
    node_id: NodeId,
    gpu_uuid: GpuUuid | None = None,
    *,
    code: int | None = None,
    text: str = "",
    source: Source = Source.KERNEL_LOG,
    values: Mapping[str, float] = MappingProxyType({}),
) -> GpuSignal:
    name = f"{at_ms}:{node_id}:{gpu_uuid}:{kind}:{code}:{rng.getrandbits(48):x}"
    return GpuSignal(name, kind, source, at_ms, node_id, gpu_uuid=gpu_uuid, code=code, text=text, values=values)


_WELL: Final[Mapping[str, float]] = {metric.name: 0.0 for metric in METRICS}


def _sampled(at_ms: int, node_id: NodeId, gpu_uuid: GpuUuid, **readings: float) -> Sampled:
    values = tuple(readings.get(name, well) for name, well in _WELL.items())
    return Sampled(node_id, GpuSample(gpu_uuid, at_ms, values))


def _told_of(rng: Random, injected: Injected) -> Iterator[Input]:
    """What tells of it; where samples do, after one of an hour before, when the GPU was well and watched."""
    at_ms, node_id, gpu, fault = injected.at_ms, injected.node_id, injected.gpu_uuid, injected.fault
    if fault.event is not None:
        event, about = fault.event, None if fault.is_of_node else gpu
        told = {"code": event.code, "text": event.text, "source": event.source}
        signal = _signal(rng, event.kind, at_ms, node_id, about)
        yield replace(signal, **told, values=event.values)  # type: ignore[arg-type]  # fields by name
        return
    next_ms = at_ms + rng.randrange(INTERVAL_MS)
    yield _sampled(at_ms - HOUR_MS, node_id, gpu)
    for number in range(SAMPLES_OF_A_FAULT):
        yield _sampled(next_ms + number * INTERVAL_MS, node_id, gpu, **fault.readings)


def _user_programs(rng: Random, num_nodes: int, num_days: float, start_ms: int, span_ms: int) -> Iterator[GpuSignal]:
    """One job a node; what a program breaks by itself: XID 13, 31, 43, 45. One in four hits all GPUs of its node."""
    for _ in range(round(USER_XIDS_PER_JOB_HOUR * 24 * num_days * num_nodes)):
        at_ms, code = start_ms + rng.randrange(span_ms), rng.choice((13, 31, 43, 45))
        node_id, gpu = _place(rng, num_nodes)
        text = f"Graphics SM Warp Exception on (GPC {rng.randrange(8)}, TPC {rng.randrange(9)}, SM 0)" * (code == 13)
        yield _signal(rng, EventKind.XID, at_ms, node_id, gpu, code=code, text=text)
        if rng.random() < 0.25:
            node = node_id.removeprefix("node_")
            for index in range(GPUS):
                yield _signal(rng, EventKind.XID, at_ms + 1, node_id, GpuUuid(f"GPU-{node}-{index}"), code=code)


def _boots(rng: Random, num_nodes: int, start_ms: int, span_ms: int, dark: Collection[NodeId]) -> Iterator[GpuSignal]:
    """Each node boots once; most tell of links that train and a fabric that is not ready, for up to three minutes.

    ``dark``: nodes whose links are at fault. What a boot tells of those would be another fault of theirs, or its end.
    """
    for node in range(num_nodes):
        if rng.random() >= TRAINING_SHARE or f"node_{node}" in dark:
            continue
        boot_ms, node_id = start_ms + rng.randrange(span_ms), NodeId(f"node_{node}")
        gpu, well_ms = GpuUuid(f"GPU-{node}-{rng.randrange(GPUS)}"), boot_ms + 60_000 + rng.randrange(120_000)
        yield _signal(
            rng,
            EventKind.XID,
            boot_ms + 20_000,
            node_id,
            gpu,
            code=149,
            source=Source.NVML,
            values={"since_boot_s": 20.0},
        )
        down = {"nvlink_links": 18.0, "nvlink_links_down": 4.0, "fabric_state": 2.0}
        yield _signal(rng, EventKind.GPU_STATE, boot_ms + 21_000, node_id, gpu, source=Source.NVML, values=down)
        well = {"nvlink_links": 18.0, "nvlink_links_down": 0.0, "fabric_state": 3.0}
        yield _signal(rng, EventKind.GPU_STATE, well_ms, node_id, gpu, source=Source.NVML, values=well)


def _wear(rng: Random, num_nodes: int, start_ms: int, span_ms: int) -> Iterator[GpuSignal]:
    """Corrected errors under every limit, and states of well GPUs told again by agents that started anew."""
    for _ in range(num_nodes // 2):
        node_id, gpu = _place(rng, num_nodes)
        at_ms = start_ms + rng.randrange(span_ms)
        rise = {"window_s": 60.0, "ecc_corrected_dram": 900.0, "ecc_corrected_dram_total": float(rng.randrange(10**6))}
        yield _signal(rng, EventKind.GPU_RATES, at_ms, node_id, gpu, source=Source.NVML, values=rise)
        state = {"inforom_valid": 1.0, "ecc_enabled": 1.0, "fabric_state": 3.0, "sram_threshold_exceeded": 0.0}
        yield _signal(rng, EventKind.GPU_STATE, at_ms + 1, node_id, gpu, source=Source.NVML, values=state)


def _power_caps(rng: Random, num_nodes: int, start_ms: int, span_ms: int) -> Iterator[Sampled]:
    """Full load: the power cap is set in sample after sample."""
    for _ in range(num_nodes // 20):
        node_id, gpu = _place(rng, num_nodes)
        at_ms = start_ms + rng.randrange(span_ms)
        for number in range(12):
            yield _sampled(at_ms + number * INTERVAL_MS, node_id, gpu, clock_event_reasons=4.0, temperature_c=80.0)
