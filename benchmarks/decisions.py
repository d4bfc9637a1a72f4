"""CPU time of the planner's core for one decision each, over 100,000 GPUs: rack and block, reasons, plan, fill.

It is process time. A second fleet of 1,000 GPUs shows how a decision grows with the fleet. The same is measured on a
fleet as in production: every twentieth host with a weak GPU, some hosts with planned maintenance, labels on all.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from benchmarks.figures import Basis, Figure, Groups
from benchmarks.placement import FREE, GPUS_PER_NODE, LEVELS, NOW_MS, fleet_views
from benchmarks.sizes import Sizes
from muster.domain.ids import GpuUuid, JobId, NodeId
from muster.domain.policy.document import DEFAULT_POLICY
from scheduler.explain import explain
from scheduler.explain.exclusions import funnel
from scheduler.explain.free_room import free_room
from scheduler.fleet.topology import Flags, FleetState
from scheduler.holds.outcomes import Refused
from scheduler.model import GpuView, WaitingJob
from scheduler.planner import plan_on
from scheduler.solve.placement_rule import LabelRule, PlacementRule, Slice
from scheduler.solve.solver import Request, parts_of, place

SMALL_NODES = 125
FILL_MIX = ((100, 1), (30, 2), (20, 4), (10, 8), (5, 16), (2, 32))
"""Gangs and their hosts: twice in each 1,024 hosts, 26 times in 12,500."""
SLURM_FILL_S = 118.5
ONE_JOB = "a whole cycle of one job over its placement alone"
"""A cycle also prepares reclaim, holds and quota, even where nothing runs."""
AVOIDED = frozenset(NodeId(f"node-{number:05}") for number in (5, 600, 6_000))
IN_RACK = Request("on_demand", 8, 8, required="rack", avoid_nodes=AVOIDED)
IN_BLOCK = Request("on_demand", 64, 8, required="pod", preferred="rack", avoid_nodes=AVOIDED)
TOO_LARGE = Request("on_demand", 240, 8, required="pod", avoid_nodes=AVOIDED)
DAY_S = 86_400.0
WEAK_COST = 2_000
"""Failures in 1,000,000 hours beyond a sound GPU's: a day of eight such hosts is more than the policy tolerates."""
WEAK_SLOT = 3
NUM_CLOSING, OF_NODES = 200, 12_500
CLOSES_MS, WOULD_RUN_TO_MS = NOW_MS + 3_600_000, NOW_MS + 86_400_000
IN_ZONE_A = LabelRule(required=(("zone", frozenset({"a"})),))
SLICED = PlacementRule(slices=(Slice("rack", 4),), labels=IN_ZONE_A)
EVEN = PlacementRule(balance="rack", labels=IN_ZONE_A)
CONSTRAINED: dict[str, Callable[[Request], Request]] = {
    "weak hosts": (lambda request: replace(request, expected_s=DAY_S)),
    "weak hosts and a label": (
        lambda request: replace(request, expected_s=DAY_S, rule=PlacementRule(labels=IN_ZONE_A))
    ),
    "weak hosts, a label, slices and closings": (
        lambda request: replace(request, expected_s=DAY_S, rule=SLICED, maintenance_start_ms=WOULD_RUN_TO_MS)
    ),
}
"""Further constraints of a request, by their name in the figures."""


@dataclass(frozen=True, slots=True)
class Size:
    """Size of the benchmark. ``decisions``: times that each is made; ``fill_units``: how often ``FILL_MIX`` is
    repeated.
    """

    nodes: int
    decisions: int
    fill_units: int

    @property
    def fleet(self) -> str:
        return f"{self.nodes * GPUS_PER_NODE:,}"


SIZES: Final = Sizes(
    full=Size(nodes=12_500, decisions=400, fill_units=26), smallest=Size(nodes=1_024, decisions=4, fill_units=2)
)


@dataclass(frozen=True, slots=True)
class Spread:
    """Spread of process time, in ms."""

    p50: float
    p99: float


def measure(size: Size) -> Groups:
    views = fleet_views(random.Random(1), size.nodes)  # noqa: S311  # a seeded fleet must repeat
    state = FleetState(views, DEFAULT_POLICY, LEVELS)
    small = FleetState(views[: SMALL_NODES * 8], DEFAULT_POLICY, LEVELS)
    nobody = np.zeros(len(views), dtype=np.bool_)
    times = size.decisions
    rack = spread_of(partial(decide, state, IN_RACK), times)
    block = spread_of(partial(decide, state, IN_BLOCK), times)
    refused = spread_of(partial(_refuse, state, TOO_LARGE, nobody), times // 4)
    in_small = spread_of(partial(decide, small, IN_RACK), times)
    planned = spread_of(partial(_plan_alone, state, _one_waiting()), times)
    placed = spread_of(partial(decide, state, _of(_one_waiting())), times)
    over = planned.p50 / placed.p50
    yield [
        *_decision_figures(f"in a rack of {size.fleet} GPUs", rack),
        *_decision_figures(f"in a block of {size.fleet} GPUs", block),
        _growth_figure(f"decision: {size.fleet} over 1,000 GPUs", rack, in_small),
        _cpu_figure("explain: no place, with all reasons, p50", refused.p50, 2.0, {"p99": refused.p99}),
        Figure(ONE_JOB, over, "×", 5.0, peers={"cycle ms": planned.p50}, basis=Basis.RATIO),
    ]
    yield [_fill_figure(size)]
    yield from _constrained_figures(views, size)
    yield [_fill_figure(size, with_weak=True)]


def _cpu_figure(name: str, value_ms: float, bar_ms: float, peers: dict[str, float] | None = None) -> Figure:
    return Figure(name, value_ms, "ms", bar_ms, peers=peers or {}, basis=Basis.CPU)


def _growth_figure(name: str, large: Spread, small: Spread) -> Figure:
    peers = {"1,000 GPUs p50 ms": small.p50}
    return Figure(name, large.p50 / small.p50, "×", 4.0, peers=peers, basis=Basis.RATIO)


def decide(state: FleetState, request: Request) -> None:
    """Decide from arrays to the GPUs of every rank, take them and give them back."""
    chosen = place(state, request)
    if chosen is None:
        message = f"the fleet of the benchmark has no place for {request}"
        raise AssertionError(message)
    parts_of(state, request.tier, chosen)
    state.take(chosen.gpus)
    state.give(chosen.gpus)


def _refuse(state: FleetState, request: Request, none: Flags) -> None:
    if place(state, request) is not None:
        message = f"the fleet of the benchmark has a place for {request}"
        raise AssertionError(message)
    explain.no_room(free_room(state, request), request, Refused(), DEFAULT_POLICY, funnel(state, request, none))


def _one_waiting() -> WaitingJob:
    return WaitingJob(JobId("asked"), 1, "on_demand", NOW_MS, 8, 8, required_level="rack")


def _of(job: WaitingJob) -> Request:
    return Request(job.tier, job.nodes, job.gpus_per_node, required=job.required_level)


def _plan_alone(state: FleetState, job: WaitingJob) -> None:
    """Plan one job on an existing state, and restore the state."""
    decided = plan_on(state, [job], DEFAULT_POLICY)
    uuids: list[GpuUuid] = [uuid for _, part in decided.placements[0].parts for uuid in part]
    state.give(state.layout.gpu_indices(uuids))


def spread_of(decision: Callable[[], None], times: int) -> Spread:
    decision()
    taken_ms = []
    for _ in range(times):
        started = time.process_time_ns()
        decision()
        taken_ms.append((time.process_time_ns() - started) / 1e6)
    taken_ms.sort()
    return Spread(taken_ms[times // 2], taken_ms[int(times * 0.99)])


def constrained_views(views: list[GpuView]) -> list[GpuView]:
    """Return the same GPUs: one of every twentieth host is weak, and every seventh host is in zone b."""
    num_nodes = len(views) // GPUS_PER_NODE
    weak = set(random.Random(5).sample(range(num_nodes), num_nodes // 20))  # noqa: S311  # must repeat
    numbers = [int(view.node_id.removeprefix("node-")) for view in views]
    return [
        replace(
            view,
            health_cost=WEAK_COST if number in weak and view.slot_index == WEAK_SLOT else 0,
            labels=(("zone", "a" if number % 7 else "b"),),
        )
        for view, number in zip(views, numbers, strict=True)
    ]


def _constrained_state(views: list[GpuView]) -> FleetState:
    state = FleetState(views, DEFAULT_POLICY, LEVELS)
    nodes = sorted({view.node_id for view in views})
    closing = random.Random(6).sample(nodes, len(nodes) * NUM_CLOSING // OF_NODES)  # noqa: S311  # must repeat
    state.close(dict.fromkeys(closing, CLOSES_MS))
    return state


def _constrained_figures(views: list[GpuView], size: Size) -> Groups:
    """Measure the decisions on a fleet with weak hosts, with one more constraint after another; and a balanced one."""
    views = constrained_views(views)
    state, small = _constrained_state(views), _constrained_state(views[: SMALL_NODES * 8])
    times = size.decisions
    for name, asking in CONSTRAINED.items():
        rack, block = (spread_of(partial(decide, state, asking(request)), times) for request in (IN_RACK, IN_BLOCK))
        in_small = spread_of(partial(decide, small, asking(IN_RACK)), times)
        yield [
            *_decision_figures(f"in a rack, {name}", rack),
            *_decision_figures(f"in a block, {name}", block),
            _growth_figure(f"decision, {name}: {size.fleet} over 1,000 GPUs", rack, in_small),
        ]
    even = replace(IN_BLOCK, preferred=None, rule=EVEN, expected_s=DAY_S, maintenance_start_ms=WOULD_RUN_TO_MS)
    spread = spread_of(partial(decide, state, even), times)
    yield _decision_figures("in a block, weak hosts, a label, balance and closings", spread)


def _decision_figures(name: str, spread: Spread) -> list[Figure]:
    return [
        _cpu_figure(f"decision {name}, p50", spread.p50, 0.1, {"p99": spread.p99}),
        _cpu_figure(f"decision {name}, p99", spread.p99, 1.0),
    ]


def _fill_figure(size: Size, *, with_weak: bool = False) -> Figure:
    """Measure one plan that fills an empty fleet of one cohort; Slurm 22.05 took 118.5 s for the same mix and racks."""
    fleet = fleet_views(random.Random(1), size.nodes)  # noqa: S311  # a seeded fleet must repeat
    views = [replace(view, facts=FREE, cohort_key="h100") for view in fleet]
    views = constrained_views(views) if with_weak else views
    sizes = [nodes for _ in range(size.fill_units) for gangs, nodes in FILL_MIX for _ in range(gangs)]
    queue = [
        WaitingJob(JobId(f"job-{number:05}"), 1, "on_demand", number, nodes, 8) for number, nodes in enumerate(sizes)
    ]
    state = FleetState(views, DEFAULT_POLICY, LEVELS)
    started = time.process_time()
    decided = plan_on(state, queue, DEFAULT_POLICY)
    took_s = time.process_time() - started
    if len(decided.placements) != len(queue):
        message = f"{len(decided.placements)} of {len(queue)} gangs were placed on an empty fleet"
        raise AssertionError(message)
    peers = {"ms a gang": took_s * 1000 / len(queue), "Slurm 22.05 s": SLURM_FILL_S}
    name = f"fill: {len(queue):,} gangs on {size.fleet} GPUs"
    return Figure(f"{name}, weak hosts" if with_weak else name, took_s, "s", 1.0, peers=peers, basis=Basis.CPU)
