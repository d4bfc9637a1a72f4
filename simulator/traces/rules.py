"""Rules of a queue: ours, and those that others are measured by: strict order, skipping, and EASY backfill.

Each looks at the queue after whatever changed at one moment, and starts jobs until it would start no more. What a job
is believed to take is an estimate; only a clairvoyant one is its duration. ``muster`` has the planner's order
(``scheduler.order``, by the default policy) and its one hold; the place that is held is a number of whole nodes here,
since these fleets have no topology. Where jobs are told tiers, ``muster`` alone knows them: the higher goes first, and
takes back from the reclaimable ones below.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from scheduler.order import urgency
from simulator.traces.cluster import Cluster
from simulator.traces.nodes import Nodes
from simulator.traces.reclaiming import take_back
from simulator.traces.waiting import Flags, Floats, Ints

LOOK_AHEAD: Final = 300
"""So many jobs behind its head skip and EASY try, as schedulers bound it (Slurm's bf_max_job_test is 500)."""


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
    return started + _behind(cluster, cluster.queue[0], slice(1, LOOK_AHEAD + 1), None)


def muster(cluster: Cluster) -> list[int]:
    """The most urgent first, and what EASY promises its head promised to the most urgent that does not fit.

    Who was interrupted goes before the others, and who was passed by as much work as the policy allows, in order of
    submission.
    """
    started: list[int] = []
    if not (cluster.waiting.has_tiers and cluster.queue) and not cluster.may_start_any():
        return started
    worth = _worth(cluster)
    while len(worth):
        first = int(worth.argmax())
        number = cluster.queue[first]
        if not cluster.fits(number):
            take_back(cluster, number)
            worth[first] = -math.inf
            return started + _behind(cluster, number, slice(None), worth)
        started.append(cluster.start(number))
        worth[first:-1] = worth[first + 1 :]
        worth = worth[:-1]
    return started


def _worth(cluster: Cluster) -> Floats:
    """Of each who waits: the first of the largest has its turn."""
    waiting = cluster.waiting
    worth = urgency(cluster.now_s - waiting.submitted_s, waiting.expected_s, waiting.slowness)
    worth[: bisect_left(cluster.queue, cluster.passed.advance(cluster.now_s))] = math.inf
    if cluster.num_interrupted:
        worth[waiting.is_again] = math.inf
    if waiting.has_tiers:
        places = np.lexsort((-worth, -waiting.priority))
        worth[places] = np.arange(len(places), 0, -1.0)
    return worth


def _behind(cluster: Cluster, head: int, others: slice, worth: Floats | None) -> list[int]:
    """Start of the others who do not delay the head: they end before it can start, or fit beside it.

    ``others``: places in the queue. ``worth``: what each of them is worth, so that the most goes first; minus infinity:
    it is passed over. None: they go as they stand, and only whole nodes are beside the head (EASY as it is measured).
    """
    nodes, waiting = cluster.nodes, cluster.waiting
    num_nodes, each = waiting.num_nodes[others].copy(), waiting.gpus_per_node[others].copy()
    has_room = np.array(nodes.num_with_at_least())[each] >= num_nodes
    if worth is not None:
        has_room &= worth > -math.inf
    if not has_room.any():
        return []
    beside = _Beside(cluster, head, is_by_node=worth is not None)
    ends_in_time = cluster.now_s + waiting.estimates_s[others] <= beside.shadow_s
    has_room &= ends_in_time | beside.has_room(num_nodes, each)
    numbers, started = cluster.queue[others], list[int]()
    while has_room.any():
        first = int(has_room.argmax() if worth is None else np.where(has_room, worth, -math.inf).argmax())
        node = None if ends_in_time[first] else beside.take(int(num_nodes[first]), int(each[first]))
        started.append(cluster.start(numbers[first], node))
        if not nodes.num_free:
            break
        has_room[first] = False
        has_room &= ends_in_time | beside.has_room(num_nodes, each)
        has_room &= np.array(nodes.num_with_at_least())[each] >= num_nodes
    return started


class _Beside:
    """What the head leaves to who is not gone in time: so many whole nodes, and those that are not whole then.

    ``shadow_s``: when the head is believed to start. ``is_by_node``: else there are whole nodes alone.
    """

    __slots__ = ("_nodes", "_num_spare", "_parted", "shadow_s")

    def __init__(self, cluster: Cluster, head: int, *, is_by_node: bool) -> None:
        self._nodes = cluster.nodes
        self.shadow_s, self._num_spare, free_then = _promise(cluster, cluster.jobs[head].num_nodes)
        self._parted = _parted(cluster.nodes, free_then) if is_by_node else []

    def has_room(self, num_nodes: Ints, each: Ints) -> Flags:
        has_room: Flags = num_nodes <= self._num_spare
        if self._parted and not self._num_spare:
            most = max(self._nodes.free[node] for node in self._parted)
            has_room = (num_nodes == 1) & (each <= most)
        return has_room

    def take(self, num_nodes: int, each: int) -> int | None:
        """The fullest of the parted nodes that has room, the first of equals; None: anywhere, at a spare one's cost."""
        free = self._nodes.free
        if num_nodes == 1:
            node = min((node for node in self._parted if free[node] >= each), key=free.__getitem__, default=None)
            if node is not None:
                return node
        self._num_spare -= num_nodes
        return None


def _parted(nodes: Nodes, free_then: list[int]) -> list[int]:
    """Nodes that have something free now, and are not whole then."""
    if nodes.num_free == nodes.num_whole * nodes.size:
        return []
    size = nodes.size
    return [node for node, now in enumerate(nodes.free) if now and free_then[node] < size]


def _promise(cluster: Cluster, num_nodes: int) -> tuple[float, int, list[int]]:
    """When so many whole nodes are believed free, how many more there are then, and what each node has free by then.

    A node that is not whole then is of no use to the head, whoever runs there.
    """
    free, size = cluster.nodes.free.copy(), cluster.nodes.size
    num_whole = cluster.nodes.num_whole
    if num_whole >= num_nodes:
        return cluster.now_s, num_whole - num_nodes, free
    for end_s, number in cluster.ends:
        each = size if number < 0 else cluster.jobs[number].gpus_per_node
        for node in cluster.running[number]:
            free[node] += each
            num_whole += free[node] == size
        if num_whole >= num_nodes:
            return max(cluster.now_s, end_s), num_whole - num_nodes, free
    raise AssertionError("with nothing running every node is free")


RULES: Final[Mapping[str, Rule]] = {"fifo": fifo, "skip": skip, "easy": easy, "muster": muster}
