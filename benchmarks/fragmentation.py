"""Share of a fleet that is assigned under different placement weights, after arrivals reach 130 % of its capacity.

In the style of FGD's table (Weng et al., USENIX ATC 2023): jobs of a mix arrive one after another until they request
130 % of the GPUs, and none ends; a job that does not fit is refused. Some hosts are out of service, as in any fleet, so
racks are not alike. All place by the same solver: ours with the past arrivals as its mix, best fit, and the emptiest or
any place that fits. The figures are means of ten seeds.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import mean
from typing import Final

import numpy as np

from benchmarks.figures import Basis, Figure, Groups
from benchmarks.placement import FREE, LEVELS
from benchmarks.sizes import Sizes
from muster.domain.ids import AttemptId, GpuUuid, JobId, NodeId, TenantId
from muster.domain.policy.document import DEFAULT_POLICY
from scheduler.fleet.fragmentation import mix_of, whole_hosts
from scheduler.fleet.topology import FleetState, Ints
from scheduler.model import GpuView, RunningAttempt, Shape
from scheduler.solve.solver import Chosen, Request, place

GPUS_PER_NODE = 8
NODES_PER_RACK = 16
NODES_PER_POD = 64
OUT_OF_SERVICE = 0.06
ARRIVALS = 1.3
MARKS = (0.7, 0.95)
"""Shares of the requested capacity at which the racks open to gangs, and the part of the mix that fits, are counted."""
LEARNS_EVERY = 20
TIER = "on_demand"
MIXES: Mapping[str, Mapping[Shape, int]] = {
    "part hosts": {Shape(1, 1): 40, Shape(1, 2): 20, Shape(1, 4): 15, Shape(1, 8): 25},
    "whole hosts": {Shape(1, 1): 10, Shape(1, 2): 15, Shape(1, 4): 25, Shape(1, 8): 50},
    "gangs and part hosts": {
        Shape(1, 1): 20,
        Shape(1, 4): 15,
        Shape(1, 8): 20,
        **{Shape(nodes, 8, "rack"): number for nodes, number in ((2, 15), (4, 12), (8, 10), (16, 6))},
        Shape(32, 8, "pod"): 2,
    },
    "gangs alone": {
        **{Shape(nodes, 8, "rack"): number for nodes, number in ((2, 30), (4, 25), (8, 20), (16, 15))},
        Shape(32, 8, "pod"): 5,
    },
    "gangs of odd sizes": {
        Shape(nodes, 8, "rack"): number for nodes, number in ((2, 30), (3, 25), (5, 20), (7, 15), (12, 10))
    },
}
"""Shapes, and how often each arrives."""


@dataclass(frozen=True, slots=True)
class Filled:
    """Results in %: GPUs assigned in the end; racks with room for the mix's largest gang of a rack at the first mark.

    If the mix has no such gang, wholly free racks count. ``fits``: the part of the mix that fits at the second mark.
    """

    allocated: float
    open_racks: float
    fits: float


@dataclass(frozen=True, slots=True)
class Size:
    nodes: int
    seeds: range


SIZES: Final = Sizes(full=Size(nodes=2_304, seeds=range(10)), smallest=Size(nodes=128, seeds=range(1)))
Placer = Callable[[FleetState, Request, random.Random], Chosen | None]


def measure(size: Size) -> Groups:
    for name, mix in MIXES.items():
        by_rule = {rule: [_fill(mix, seed, rule, size.nodes) for seed in size.seeds] for rule in PLACERS}
        figures = []
        for what, told in FIGURES.items():
            values = {rule: mean(told(filled) for filled in found) for rule, found in by_rule.items()}
            ours = values.pop("ours")
            bar = values["best fit"] - NOISE if what == "GPUs given out" else None
            figures.append(Figure(f"{name}: {what}", ours, "%", bar, "higher", values, basis=Basis.COUNT))
        yield figures


def _fill(mix: Mapping[Shape, int], seed: int, rule: str, num_nodes: int) -> Filled:
    chance = random.Random(seed)  # noqa: S311  # a seeded course must repeat
    state = _fleet(chance, num_nodes)
    num_gpus = int(state.is_free.sum())
    shapes, weights = list(mix), list(mix.values())
    arrived: list[RunningAttempt] = []
    asked, told, marks = 0, list[float](), list(MARKS)
    while asked < ARRIVALS * num_gpus:
        shape = chance.choices(shapes, weights)[0]
        arrived.append(_attempt(shape))
        if rule != "ours":
            state.expect(())
        elif len(arrived) % LEARNS_EVERY == 1:
            state.expect(mix_of(DEFAULT_POLICY.placement.fragmentation, arrived))
        asked += shape.nodes * shape.gpus_per_node
        chosen = PLACERS[rule](state, _request(shape), random.Random(f"{seed} {len(arrived)}"))  # noqa: S311
        if chosen is not None:
            state.take(chosen.gpus)
        if marks and asked >= marks[0] * num_gpus:
            marks.pop(0)
            told.append(_fitting(state, mix) if told else _open_racks(state, mix))
    return Filled(100 * (1 - int(state.is_free.sum()) / num_gpus), *(100 * share for share in told))


def _fleet(rng: random.Random, num_nodes: int) -> FleetState:
    """Return one cohort; all GPUs of a host out of service are taken."""
    views = [
        GpuView(
            GpuUuid(f"gpu-{node:04}-{slot}"),
            NodeId(f"node-{node:04}"),
            slot,
            "h100",
            FREE,
            (f"pod-{node // NODES_PER_POD:02}", f"rack-{node // NODES_PER_RACK:03}"),
        )
        for node in range(num_nodes)
        for slot in range(GPUS_PER_NODE)
    ]
    state = FleetState(views, DEFAULT_POLICY, LEVELS)
    out = np.array(sorted(rng.sample(range(num_nodes), int(OUT_OF_SERVICE * num_nodes))), dtype=np.int64)
    state.take(state.layout.gpus_of_cells(out))
    return state


def _attempt(shape: Shape) -> RunningAttempt:
    return RunningAttempt(AttemptId("any"), JobId("any"), TenantId("any"), TIER, (), 0, requested=shape)


def _request(shape: Shape) -> Request:
    return Request(TIER, shape.nodes, shape.gpus_per_node, required=shape.required)


def _open_racks(state: FleetState, mix: Mapping[Shape, int]) -> float:
    largest = max((shape.nodes for shape in mix if shape.required == "rack"), default=NODES_PER_RACK)
    return float(np.mean(whole_hosts(state, TIER).numbers(len(LEVELS)) >= largest))


def _fitting(state: FleetState, mix: Mapping[Shape, int]) -> float:
    fitting = sum(number for shape, number in mix.items() if place(state, _request(shape)) is not None)
    return fitting / sum(mix.values())


def _by_the_solver(state: FleetState, request: Request, _: random.Random) -> Chosen | None:
    return place(state, request)


def _emptiest(state: FleetState, request: Request, _: random.Random) -> Chosen | None:
    """Place on the hosts with most free GPUs of the domain that has most hosts for it."""
    return _placed_in(state, request, lambda homes: int(homes.argmax()), lambda left: np.argsort(-left, kind="stable"))


def _any(state: FleetState, request: Request, rng: random.Random) -> Chosen | None:
    """Place on random hosts of a random domain."""

    def draw(homes: Ints) -> int:
        return rng.choice((homes >= request.nodes).nonzero()[0].tolist())

    return _placed_in(state, request, draw, lambda left: np.array(rng.sample(range(len(left)), len(left))))


def _placed_in(
    state: FleetState, request: Request, pick: Callable[[Ints], int], order: Callable[[Ints], Ints]
) -> Chosen | None:
    """Place in one domain of the level that the request names; for one host without a level, that is the fleet."""
    room, level = state.tally(TIER, request.gpus_per_node), state.layout.level(request.required or "") or 0
    homes = room.numbers(level)
    if homes.max() < request.nodes:
        return None
    cells = room.cells_in(level, pick(homes))
    chosen = cells[order(room.usable[cells])[: request.nodes]]
    return place(state, request, within=np.sort(chosen))


PLACERS: Mapping[str, Placer] = {
    "ours": _by_the_solver,
    "best fit": _by_the_solver,
    "emptiest": _emptiest,
    "any": _any,
}
FIGURES: Mapping[str, Callable[[Filled], float]] = {
    "GPUs given out": lambda filled: filled.allocated,
    "racks open to gangs at 70 %": lambda filled: filled.open_racks,
    "requests that fit at 95 %": lambda filled: filled.fits,
}
NOISE = 0.05
"""Points by which the means of ten seeds may be below best fit's."""
