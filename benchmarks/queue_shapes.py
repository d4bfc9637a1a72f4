"""CPU time of a planner's cycle over a queue in which each job has another shape: no honest queue starves the loop.

All that a refusal counts depends on a job's family of requests, without its number of hosts
(``scheduler.explain.kept_reasons``, ``scheduler.reclaim.reclaim_room``). The shapes are each number of hosts by 1 to 8
GPUs a host: on a full fleet of spot and on-demand gangs, on one that is two thirds idle, and with levels and slices.
Jobs that each avoid hosts of their own, or have a label rule of their own, are each a family: a cycle examines a part
of them (``scheduler.queue.examination``), as the scheduler's loop does; the peer ``examined`` counts the examined jobs.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from benchmarks.figures import Basis, Figure, Groups
from benchmarks.placement import GPUS_PER_NODE, HELD, LEVELS, NOW_MS, fleet_views, running_gangs
from benchmarks.sizes import Sizes
from muster.domain.ids import GpuUuid, JobId, NodeId, TenantId
from muster.domain.job.wait_reasons import WaitReason
from muster.domain.policy.document import DEFAULT_POLICY
from scheduler.fleet.topology import FleetState
from scheduler.model import GpuView, RunningAttempt, WaitingJob, Workload
from scheduler.planner import plan_on
from scheduler.solve.placement_rule import LabelRule, PlacementRule, Slice

NUM_AVOIDED: Final = 3
NUM_LABELS: Final = 3_000
MOST_SLICE: Final = 16
LONGEST_S: Final = 90_000


@dataclass(frozen=True, slots=True)
class Size:
    """Numbers of hosts of the fleets, and of jobs that wait, each of its own shape."""

    fleets: tuple[int, ...]
    waiting: int


SIZES: Final = Sizes(full=Size((1_250, 12_500), 10_000), smallest=Size((160,), 160))


def _by_size(number: int) -> WaitingJob:
    chance = random.Random(number)  # noqa: S311  # a seeded queue must repeat
    return WaitingJob(
        JobId(f"job-{number:05}"),
        1,
        "on_demand",
        NOW_MS - chance.randrange(10_000_000),
        1 + number // GPUS_PER_NODE,
        1 + number % GPUS_PER_NODE,
        tenant_id=TenantId(f"ten-{number % 50}"),
    )


def _with_wall_times(number: int) -> WaitingJob:
    chance = random.Random(-number)  # noqa: S311  # a seeded queue must repeat
    return replace(_by_size(number), expected_s=float(chance.randrange(600, LONGEST_S)))


def _with_levels(number: int) -> WaitingJob:
    slices, times = 1 + number % MOST_SLICE, 1 + number // (MOST_SLICE * GPUS_PER_NODE)
    return replace(
        _by_size(number),
        nodes=slices * times,
        gpus_per_node=1 + number // MOST_SLICE % GPUS_PER_NODE,
        required_level=(None, "pod")[number % 2],
        rule=PlacementRule(slices=(Slice("rack", slices),)),
    )


def _avoiding(number: int) -> WaitingJob:
    chance = random.Random(number)  # noqa: S311  # a seeded queue must repeat
    avoided = (NodeId(f"node-{chance.randrange(1_250):05}") for _ in range(NUM_AVOIDED))
    return replace(_by_size(number), avoid_nodes=frozenset(avoided))


def _by_label(number: int) -> WaitingJob:
    values = frozenset({_label(number), f"other-{number}"})
    return replace(_by_size(number), rule=PlacementRule(labels=LabelRule(required=(("kind", values),))))


def _label(number: int) -> str:
    return f"kind-{number % NUM_LABELS}"


QUEUES: Final = {
    "by hosts and GPUs, full fleet": (_by_size, True),
    "with wall times, idle GPUs": (_with_wall_times, False),
    "with levels and slices, full fleet": (_with_levels, True),
    "that avoid hosts, full fleet": (_avoiding, True),
    "that avoid hosts, idle GPUs": (_avoiding, False),
    "with label rules, full fleet": (_by_label, True),
    "with label rules, idle GPUs": (_by_label, False),
}
"""The job of a number, and whether the fleet is full."""


def measure(size: Size) -> Groups:
    for nodes in size.fleets:
        views = _labelled(fleet_views(random.Random(1), nodes))  # noqa: S311  # a seeded fleet must repeat
        yield [_figure(name, make, views, size.waiting, is_full=full) for name, (make, full) in QUEUES.items()]


def _labelled(views: Sequence[GpuView]) -> list[GpuView]:
    numbers = {node_id: number for number, node_id in enumerate(dict.fromkeys(view.node_id for view in views))}
    labels = {node_id: (("kind", _label(number)),) for node_id, number in numbers.items()}
    return [replace(view, labels=labels[view.node_id]) for view in views]


def _figure(
    name: str, make: Callable[[int], WaitingJob], views: Sequence[GpuView], num_jobs: int, *, is_full: bool
) -> Figure:
    workload = running_gangs(list(views))
    if is_full:
        views = [replace(view, facts=HELD) for view in views]
    else:
        workload = Workload(NOW_MS, _with_ends(workload, {view.uuid for view in views if view.facts is HELD}))
    state = FleetState(views, DEFAULT_POLICY, LEVELS)
    queue = [make(number) for number in range(num_jobs)]
    started = time.process_time()
    decided = plan_on(state, queue, DEFAULT_POLICY, workload, examined_from=0)
    took_s = time.process_time() - started
    examined = [one for one in decided.waiting if one.verdict.binding is not WaitReason.EXAMINED_LATER]
    if len(decided.waiting) + len(decided.placements) != num_jobs or not examined:
        message = f"{num_jobs} jobs of different shapes are not all tried"
        raise AssertionError(message)
    peers = {
        "starts": float(len(decided.placements)),
        "notices": float(len(decided.reclaims)),
        "examined": float(len(examined)),
    }
    title = f"cycle: {num_jobs:,} shapes {name}, {len(views):,} GPUs"
    return Figure(title, took_s, "s", 1.0, peers=peers, basis=Basis.CPU)


def _with_ends(workload: Workload, taken: set[GpuUuid]) -> tuple[RunningAttempt, ...]:
    """Return the attempts on the GPUs in use, which end within two hours."""
    chance = random.Random(6)  # noqa: S311  # a seeded workload must repeat
    own = ((one, tuple(uuid for uuid in one.gpus if uuid in taken)) for one in workload.running)
    return tuple(
        replace(one, gpus=gpus, ends_ms=NOW_MS + chance.randrange(60_000, 7_200_000)) for one, gpus in own if gpus
    )
