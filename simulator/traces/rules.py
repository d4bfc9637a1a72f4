"""Rules of a queue, of which others are measured: strict order, skipping, and EASY backfill.

Each looks at the queue after whatever changed at one moment, and starts jobs until it would start no more. What a job
is believed to take is an estimate; only a clairvoyant one is its duration.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

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
    queue: list[int]
    ends: list[tuple[float, int]]
    running: dict[int, list[int]]
    started_s: list[float]
    now_s: float = 0.0

    def fits(self, number: int) -> bool:
        job = self.jobs[number]
        return self.nodes.fits(job.num_nodes, job.gpus_per_node)

    def start(self, index: int) -> int:
        """The job at this place of the queue."""
        number = self.queue.pop(index)
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
        started.append(cluster.start(0))
    return started


def skip(cluster: Cluster) -> list[int]:
    """Whoever fits starts, whoever does not is passed: nothing is held for the head (Kueue's BestEffortFIFO)."""
    started: list[int] = []
    index = 0
    for _ in range(LOOK_AHEAD):
        if index >= len(cluster.queue) or not cluster.nodes.num_free:
            break
        if cluster.fits(cluster.queue[index]):
            started.append(cluster.start(index))
        else:
            index += 1
    return started


def easy(cluster: Cluster) -> list[int]:
    """The head is promised the first moment at which enough whole nodes are believed free; nobody may delay that.

    EASY: Lifka, "The ANL/IBM SP scheduling system" (1995).
    """
    started = fifo(cluster)
    if not cluster.queue or not cluster.nodes.num_free:
        return started
    shadow_s, num_spare = _promise(cluster, cluster.jobs[cluster.queue[0]].num_nodes)
    index = 1
    for _ in range(LOOK_AHEAD):
        if index >= len(cluster.queue) or not cluster.nodes.num_free:
            break
        number = cluster.queue[index]
        ends_in_time = cluster.now_s + cluster.estimates_s[number] <= shadow_s
        num_nodes = cluster.jobs[number].num_nodes
        if cluster.fits(number) and (ends_in_time or num_nodes <= num_spare):
            num_spare -= 0 if ends_in_time else num_nodes
            started.append(cluster.start(index))
        else:
            index += 1
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


RULES: Final[Mapping[str, Rule]] = {"fifo": fifo, "skip": skip, "easy": easy}
