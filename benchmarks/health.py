"""The detectors: CPU of judging, events a second, and how well a fleet of 12,500 nodes is judged in 30 days.

``make bench-health``. MUSTER_HEALTH_SEEDS and MUSTER_HEALTH_NODES make the fleet smaller for a quick run; the figures
state their fleet's size.
"""

import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import count
from statistics import median
from typing import Final

from benchmarks import health_agent, judgement
from benchmarks.figures import Basis, Figure, Groups
from benchmarks.sizes import Sizes
from health.detectors.registry import judge_signal
from health.evidence.index import EvidenceIndex, that_may_weigh
from health.evidence.merge import Place, merge
from health.replay.replay import Replay
from health.standing.gpu_case import GpuCase
from health.standing.standing import decide
from muster.domain.evidence.findings import EventKind, GpuSignal, Source
from muster.domain.ids import EvidenceId, GpuUuid, NodeId
from muster.domain.policy.document import DEFAULT_POLICY
from muster.domain.states import Standing
from simulator.quality.fault_classes import NUM_INTERRUPTIONS, NUM_LISTED
from simulator.quality.health_quality import Quality, quality_of

CHATTY_MS: Final = 6_000
"""Distance of events, just above the one within which they are coalesced."""
NVSENTINEL_EVENTS_PER_S: Final = 57.0
"""NVSentinel's analyzer, PR 1789."""
REPORT_S: Final = 10.0
START_MS: Final = 1_790_000_000_000
_POLICY: Final = DEFAULT_POLICY.health


@dataclass(frozen=True, slots=True)
class Size:
    """Size of the benchmark. ``events``: of the fleet, and ``of_one_gpu``; ``nodes``, ``days``, ``seeds``: of simulated
    fleets.
    """

    judgement: judgement.Size
    agent: health_agent.Size
    events: int
    of_one_gpu: int
    nodes: int
    days: float
    seeds: int


SIZES: Final = Sizes(
    full=Size(
        judgement.SIZES.full,
        health_agent.SIZES.full,
        events=20_000,
        of_one_gpu=2_000,
        nodes=int(os.environ.get("MUSTER_HEALTH_NODES", "12500")),
        days=30.0,
        seeds=int(os.environ.get("MUSTER_HEALTH_SEEDS", "10")),
    ),
    smallest=Size(
        judgement.SIZES.smallest,
        health_agent.SIZES.smallest,
        events=200,
        of_one_gpu=20,
        nodes=400,
        days=10.0,
        seeds=1,
    ),
)


def measure(size: Size) -> Groups:
    yield from judgement.measure(size.judgement)
    yield [_events_per_s(size.events), _events_of_one_gpu_per_s(size.of_one_gpu)]
    yield from health_agent.measure(size.agent)
    yield _quality(size)


def _events_per_s(num_events: int) -> Figure:
    """Measure from event to decision (detector, evidence, repetitions, score, standing) on one core, one GPU after
    another.
    """
    events = list(map(_event, range(num_events)))
    known: dict[GpuUuid | None, EvidenceIndex] = {}
    numbers, moves = count(), 0
    before = time.process_time_ns()
    for event in events:
        mine = known.setdefault(event.gpu_uuid, EvidenceIndex())
        for finding in judge_signal(event, _POLICY):
            for _ in merge(finding, Place(mine), _POLICY, event.at_ms, lambda: EvidenceId(f"ev_{next(numbers)}")):
                pass
        if event.gpu_uuid is not None:
            case = GpuCase(event.gpu_uuid, Standing.HEALTHY, 0, that_may_weigh(mine, _POLICY))
            moves += decide(case, event.at_ms, _POLICY) is not None
    seconds = (time.process_time_ns() - before) / 1e9
    if not moves:
        raise AssertionError("no event moved a GPU: nothing was judged")
    peers = {"NVSentinel's analyzer": NVSENTINEL_EVENTS_PER_S}
    return _rate_figure("health: events judged by one core", num_events / seconds, peers)


def _rate_figure(name: str, events_per_s: float, peers: dict[str, float]) -> Figure:
    return Figure(name, events_per_s, "events/s", 5_000.0, "higher", peers, basis=Basis.CPU)


_EVENTS: Final[tuple[tuple[EventKind, int | None, dict[str, float]], ...]] = (
    (EventKind.XID, 79, {}),
    (EventKind.XID, 31, {}),
    (EventKind.XID, 95, {}),
    (EventKind.GPU_STATE, None, {"nvlink_links_down": 1.0, "inforom_valid": 1.0, "fabric_state": 3.0}),
    (EventKind.GPU_RATES, None, {"pcie_replays": 40.0, "pcie_generation": 5.0, "pcie_width": 16.0, "window_s": 60.0}),
)


def _events_of_one_gpu_per_s(num_events: int) -> Figure:
    """Measure a replay of one GPU's XIDs, as of a tenant's job that keeps crashing, from event to score and
    standing.
    """
    gpu, node = GpuUuid("GPU-0"), NodeId("node_0")
    events = [
        GpuSignal(f"{number}", EventKind.XID, Source.KERNEL_LOG, START_MS + number * CHATTY_MS, node, gpu, code=31)
        for number in range(num_events)
    ]
    world = Replay(_POLICY)
    before = time.process_time_ns()
    for event in events:
        for _ in world.take(event):
            pass
    seconds = (time.process_time_ns() - before) / 1e9
    kept = world.gpus()[gpu].evidence
    if not kept:
        raise AssertionError("no event left evidence: nothing was judged")
    peers = {"kept as evidence": float(len(kept))}
    return _rate_figure("health: events of one GPU judged", num_events / seconds, peers)


def _event(number: int) -> GpuSignal:
    kind, code, values = _EVENTS[number % len(_EVENTS)]
    node, at_ms = number // 8, START_MS + number * 10
    gpu = GpuUuid(f"GPU-{number % 5_000}")
    source = Source.KERNEL_LOG
    return GpuSignal(f"{number}", kind, source, at_ms, NodeId(f"node_{node}"), gpu, code=code, values=values)


def _judged(seed: int, nodes: int, days: float) -> Quality:
    return quality_of(seed, nodes, days, _POLICY)


def _quality(size: Size) -> list[Figure]:
    with ProcessPoolExecutor(max_workers=min(2, os.cpu_count() or 1)) as pool:
        judged = partial(_judged, nodes=size.nodes, days=size.days)
        found = list(pool.map(judged, range(1, size.seeds + 1)))
    injected = sum(len(each.found_s) + len(each.missed) for each in found)
    made_of = {
        "nodes": float(size.nodes),
        "days": size.days,
        "seeds": float(size.seeds),
        "faults": float(injected),
        "inputs": float(sum(each.num_inputs for each in found)),
        f"of {NUM_INTERRUPTIONS} interruptions of a class that agents see": float(NUM_LISTED),
    }
    seconds = sorted(value for each in found for value in each.found_s)
    missed = sum(len(each.missed) for each in found)
    latency = {"p99 s": seconds[int(0.99 * len(seconds))]}
    suspect = {"made SUSPECT": float(sum(len(each.wrongly_suspect) for each in found))}
    twice = sum(len(each.counted_twice) for each in found)
    wrongly_out = sum(len(each.wrongly_out) for each in found)
    return [
        _count("health: faults of the simulated fleet missed", missed, "faults", 0.0, made_of),
        _count("health: faults counted twice after a restart of their agents", twice, "faults", 0.0, {}),
        _count("health: median from fault to evidence", median(seconds), "s", REPORT_S, latency),
        _count("health: healthy GPUs quarantined", wrongly_out, "GPUs", 0.0, suspect),
    ]


def _count(name: str, value: float, unit: str, bar: float, peers: dict[str, float]) -> Figure:
    """Return a figure of the simulated fleets, in their own time: it is the same on every machine."""
    return Figure(name, value, unit, bar, peers=peers, basis=Basis.COUNT)
