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
from scheduler.order import LEAST_RUN_S, passed_work_bound_gpu_s, slowness, urgency
from simulator.traces.jobs import TraceJob
from simulator.traces.nodes import Nodes
from simulator.traces.passing import PassedWork

LOOK_AHEAD: Final = 300
"""So many jobs behind its head skip and EASY try, as schedulers bound it (Slurm's bf_max_job_test is 500)."""

Numbers = npt.NDArray[np.int64]


class _Columns:
    """What is asked of many jobs at once, a value a job."""

    __slots__ = ("estimates_s", "expected_s", "gpus_per_node", "is_waiting", "num_nodes", "slowness", "submitted_s")

    def __init__(self, jobs: Sequence[TraceJob], estimates_s: Sequence[float]) -> None:
        self.submitted_s = np.array([job.submit_s for job in jobs])
        self.num_nodes = np.array([job.num_nodes for job in jobs])
        self.gpus_per_node = np.array([job.gpus_per_node for job in jobs])
        self.estimates_s = np.array(estimates_s)
        self.expected_s = np.maximum(self.estimates_s, LEAST_RUN_S)
        self.slowness = slowness(self.expected_s, DEFAULT_POLICY)
        self.is_waiting = np.zeros(len(jobs), dtype=bool)


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
    columns: _Columns = field(init=False)
    passed: PassedWork = field(init=False)
    num_racks: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.started_s = [math.nan] * len(self.jobs)
        self.num_racks = [0] * len(self.jobs)
        self.columns = _Columns(self.jobs, self.estimates_s)
        bound_gpu_s = passed_work_bound_gpu_s(DEFAULT_POLICY, self.nodes.num_gpus)
        self.passed = PassedWork(len(self.jobs), bound_gpu_s)

    def fits(self, number: int) -> bool:
        job = self.jobs[number]
        return self.nodes.fits(job.num_nodes, job.gpus_per_node)

    def submit(self, number: int) -> None:
        self.queue.append(number)
        self.columns.is_waiting[number] = True

    def start(self, number: int) -> int:
        del self.queue[bisect_left(self.queue, number)]
        self.columns.is_waiting[number] = False
        job = self.jobs[number]
        taken = self.running[number] = self.nodes.take(job.num_nodes, job.gpus_per_node)
        self.num_racks[number] = self.nodes.num_racks_of(taken)
        self.started_s[number] = self.now_s
        self.passed.starts(number, job.num_nodes * job.gpus_per_node, self.now_s)
        insort(self.ends, (self.now_s + self.estimates_s[number], number))
        return number

    def end(self, number: int) -> None:
        job = self.jobs[number]
        self.nodes.give(self.running.pop(number), job.gpus_per_node)
        self.passed.ends(number, job.num_nodes * job.gpus_per_node, self.now_s)
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
    others = np.array(cluster.queue[1 : LOOK_AHEAD + 1], dtype=np.int64)
    return started + _behind(cluster, cluster.queue[0], others, None)


def muster(cluster: Cluster) -> list[int]:
    """The most urgent first, and what EASY promises its head promised to the most urgent that does not fit.

    Who was passed by as much work as the policy allows goes before the others, in order of submission.
    """
    started: list[int] = []
    if not cluster.queue or not cluster.nodes.num_free:
        return started
    numbers, worth = _by_worth(cluster)
    while len(started) < len(numbers):
        first = int(worth.argmax())
        number = int(numbers[first])
        worth[first] = -math.inf
        if not cluster.fits(number):
            return started + _behind(cluster, number, numbers, worth)
        started.append(cluster.start(number))
    return started


def _by_worth(cluster: Cluster) -> tuple[Numbers, npt.NDArray[np.float64]]:
    """Who waits, in order of submission, and what each is worth: the first of the largest has its turn."""
    columns, first, last = cluster.columns, cluster.queue[0], cluster.queue[-1]
    numbers = columns.is_waiting[first : last + 1].nonzero()[0] + first
    waits_s = cluster.now_s - columns.submitted_s[numbers]
    worth = urgency(waits_s, columns.expected_s[numbers], columns.slowness[numbers])
    worth[: bisect_left(cluster.queue, cluster.passed.advance(cluster.now_s))] = math.inf
    return numbers, worth


def _behind(cluster: Cluster, head: int, others: Numbers, worth: npt.NDArray[np.float64] | None) -> list[int]:
    """Start of the others who do not delay the head: they end before it can start, or fit beside it.

    ``worth``: what each of them is worth, so that the most goes first; minus infinity: it is passed over. None: they
    go as they stand.
    """
    started: list[int] = []
    nodes, columns = cluster.nodes, cluster.columns
    has_room = np.array(nodes.num_with_at_least())[columns.gpus_per_node[others]] >= columns.num_nodes[others]
    if worth is not None:
        has_room &= worth > -math.inf
    if not has_room.any():
        return started
    shadow_s, num_spare = _promise(cluster, cluster.jobs[head].num_nodes)
    ends_in_time = cluster.now_s + columns.estimates_s[others] <= shadow_s
    may_start = np.flatnonzero(has_room & (ends_in_time | (columns.num_nodes[others] <= num_spare)))
    if worth is not None:
        may_start = may_start[np.argsort(-worth[may_start], kind="stable")]
    for place in may_start.tolist():
        number = int(others[place])
        num_nodes = cluster.jobs[number].num_nodes
        if cluster.fits(number) and (ends_in_time[place] or num_nodes <= num_spare):
            num_spare -= 0 if ends_in_time[place] else num_nodes
            started.append(cluster.start(number))
            if not nodes.num_free:
                break
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
