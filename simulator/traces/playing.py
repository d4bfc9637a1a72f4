"""A trace played to its end: submissions and ends in the order of time, the rule asked after each moment."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random

from simulator.traces.jobs import TraceJob
from simulator.traces.nodes import Nodes
from simulator.traces.rules import Cluster, Rule


@dataclass(frozen=True, slots=True)
class Played:
    """``started_s``: of each job; ``end_s``: of the last. An event is a submission or an end.

    ``num_racks``: in how many racks each job ran. ``idle_gpu_s``: of all GPUs, while anybody waited;
    ``scattered_gpu_s``: what of it was on nodes that were partly in use.
    """

    started_s: Sequence[float]
    end_s: float
    num_events: int
    num_racks: Sequence[int]
    idle_gpu_s: float
    scattered_gpu_s: float


def estimates_of(jobs: Sequence[TraceJob], *, error: float, seed: int) -> list[float]:
    """What each job is believed to take, seconds: its duration times or divided by up to ``error``, 1 for exact.

    The factor's logarithm is uniform, so that too short is as likely as too long.
    """
    if error == 1:
        return [job.duration_s for job in jobs]
    chance, width = Random(seed), math.log(error)
    return [job.duration_s * math.exp(chance.uniform(-width, width)) for job in jobs]


def play(
    jobs: Sequence[TraceJob],
    estimates_s: Sequence[float],
    rule: Rule,
    *,
    num_nodes: int,
    gpus_per_node: int,
    nodes_per_rack: int | None = None,
) -> Played:
    """``jobs`` in order of submission; each fits the fleet when it is empty."""
    nodes = Nodes(num_nodes, gpus_per_node, nodes_per_rack)
    cluster = Cluster(jobs, estimates_s, nodes)
    ends: list[tuple[float, int]] = []
    next_job, end_s, idle_gpu_s, scattered_gpu_s = 0, 0.0, 0.0, 0.0
    while next_job < len(jobs) or ends:
        submit_s = jobs[next_job].submit_s if next_job < len(jobs) else math.inf
        before_s = cluster.now_s
        now_s = cluster.now_s = min(submit_s, ends[0][0] if ends else math.inf)
        if cluster.queue:
            idle_gpu_s += nodes.num_free * (now_s - before_s)
            scattered_gpu_s += (nodes.num_free - nodes.num_whole * gpus_per_node) * (now_s - before_s)
        while ends and ends[0][0] <= now_s:
            cluster.end(heappop(ends)[1])
            end_s = now_s
        while next_job < len(jobs) and jobs[next_job].submit_s <= now_s:
            cluster.submit(next_job)
            next_job += 1
        for number in rule(cluster):
            heappush(ends, (now_s + jobs[number].duration_s, number))
    return Played(cluster.started_s, end_s, 2 * len(jobs), cluster.num_racks, idle_gpu_s, scattered_gpu_s)
