"""Rules of a queue: ours, and those that others are measured by: strict order, skipping, and EASY backfill.

Each looks at the queue after whatever changed at one moment, and starts jobs until it would start no more. What a job
is believed to take is an estimate; only a clairvoyant one is its duration. ``muster`` has the planner's order
(``scheduler.order``, by the default policy) and its one hold; the place that is held is a number of whole nodes here,
since these fleets have no topology.
"""

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from muster.domain.policy import DEFAULT_POLICY
from scheduler.order import LEAST_RUN_S, urgency
from simulator.traces.jobs import TraceJob
from simulator.traces.nodes import Nodes

LOOK_AHEAD: Final = 300
"""So many jobs of the queue are tried behind its head, as schedulers bound it (Slurm's bf_max_job_test is 500)."""


@dataclass(slots=True)
class Cluster:
    """What runs and what waits. ``queue``: numbers of jobs in order of submission; ``ends``: (believed end, job)."""

    jobs: Sequence[TraceJob]
    estimates_s: Sequence[float]
    nodes: Nodes
    queue: list[int] = field(default_factory=list)
    ends: list[tuple[float, int]] = field(default_factory=list)
    running: dict[int, list[int]] = field(default_factory=dict)
    started_s: list[float] = field(init=False)
    now_s: float = 0.0
    submitted_s: npt.NDArray[np.float64] = field(init=False)
    expected_s: npt.NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        self.started_s = [math.nan] * len(self.jobs)
        self.submitted_s = np.array([job.submit_s for job in self.jobs])
        self.expected_s = np.maximum(np.array(self.estimates_s), LEAST_RUN_S)

    def fits(self, number: int) -> bool:
        job = self.jobs[number]
        return self.nodes.fits(job.num_nodes, job.gpus_per_node)

    def start(self, number: int) -> int:
        del self.queue[bisect_left(self.queue, number)]
        job = self.jobs[number]
        self.running[number] = self.nodes.take(job.num_nodes, job.gpus_per_node)
        self.started_s[number] = self.now_s
        insort(self.ends, (self.now_s + self.estimates_s[number], number))
        return number

    def end(self, number: int) -> None:
        self.nodes.give(self.running.pop(number), self.jobs[number].gpus_per_node)
        del self.ends[bisect_left(self.ends, (self.started_s[number] + self.estimates_s[number], number))]


Rule = Callable[[Cluster], list[int]]
"""Starts what it may now, and says which."""


def fifo(cluster: Cluster) -> list[int]:
    """Strict order: nobody passes the head."""
    started = []
    while cluster.queue and cluster.fits(cluster.queue[0]):
        started.append(cluster.start(cluster.queue[0]))
    return started


def skip(cluster: Cluster) -> list[int]:
    """Whoever fits starts, whoever does not is passed: nothing is held for the head (Kueue's BestEffortFIFO)."""
    started: list[int] = []
    for number in cluster.queue[:LOOK_AHEAD]:
        if not cluster.nodes.num_free:
            break
        if cluster.fits(number):
            started.append(cluster.start(number))
    return started


def easy(cluster: Cluster) -> list[int]:
    """The head is promised the first moment at which enough whole nodes are believed free; nobody may delay that.

    EASY: Lifka, "The ANL/IBM SP scheduling system" (1995).
    """
    started = fifo(cluster)
    if not cluster.queue or not cluster.nodes.num_free:
        return started
    return started + _behind(cluster, cluster.queue[0], cluster.queue[1 : LOOK_AHEAD + 1])


def muster(cluster: Cluster) -> list[int]:
    """The most urgent first, and what EASY promises its head promised to the most urgent that does not fit."""
    started: list[int] = []
    if not cluster.queue or not cluster.nodes.num_free:
        return started
    order = _most_urgent(cluster, LOOK_AHEAD + cluster.nodes.num_free + 1)
    for place, number in enumerate(order):
        if not cluster.nodes.num_free:
            break
        if not cluster.fits(number):
            return started + _behind(cluster, number, order[place + 1 : place + 1 + LOOK_AHEAD])
        started.append(cluster.start(number))
    return started


def _most_urgent(cluster: Cluster, most: int) -> list[int]:
    """So many of the queue, the most urgent first, of equals the first submitted."""
    queue = np.array(cluster.queue)
    waits_s = cluster.now_s - cluster.submitted_s[queue]
    worth = urgency(waits_s, cluster.expected_s[queue], DEFAULT_POLICY.queue.ageing_exponent)
    if len(queue) > most:
        first = np.argpartition(-worth, most)[:most]
        queue, worth = queue[first], worth[first]
    ordered: list[int] = queue[np.lexsort((queue, -worth))].tolist()
    return ordered


def _behind(cluster: Cluster, head: int, others: Sequence[int]) -> list[int]:
    """Start of the others who do not delay the head: they end before it can start, or fit beside it."""
    started: list[int] = []
    shadow_s, num_spare = _promise(cluster, cluster.jobs[head].num_nodes)
    for number in others:
        if not cluster.nodes.num_free:
            break
        ends_in_time = cluster.now_s + cluster.estimates_s[number] <= shadow_s
        num_nodes = cluster.jobs[number].num_nodes
        if cluster.fits(number) and (ends_in_time or num_nodes <= num_spare):
            num_spare -= 0 if ends_in_time else num_nodes
            started.append(cluster.start(number))
    return started


def _promise(cluster: Cluster, num_nodes: int) -> tuple[float, int]:
    """When so many whole nodes are believed free, and how many more there are then."""
    free, size = cluster.nodes.free.copy(), cluster.nodes.size
    num_whole = cluster.nodes.num_whole
    if num_whole >= num_nodes:
        return cluster.now_s, num_whole - num_nodes
    for end_s, number in cluster.ends:
        each = cluster.jobs[number].gpus_per_node
        for node in cluster.running[number]:
            free[node] += each
            num_whole += free[node] == size
        if num_whole >= num_nodes:
            return max(cluster.now_s, end_s), num_whole - num_nodes
    raise AssertionError("with nothing running every node is free")


RULES: Final[Mapping[str, Rule]] = {"fifo": fifo, "skip": skip, "easy": easy, "muster": muster}
