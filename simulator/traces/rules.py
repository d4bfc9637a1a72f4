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
from simulator.traces.nodes import give_back
from simulator.traces.reclaiming import take_back
from simulator.traces.waiting import Floats

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
    """Start of the others who do not delay the head: they end before it can start, or fit beside it. It does not fit.

    ``others``: places in the queue. ``worth``: what each of them is worth, so that the most goes first; None: they go
    as they stand.
    """
    started: list[int] = []
    nodes, waiting = cluster.nodes, cluster.waiting
    shortest = [
        (num_nodes, estimates_s[0])
        for (num_nodes, each), estimates_s in waiting.estimates_by_shape.items()
        if nodes.fits(num_nodes, each)
    ]
    if not shortest:
        return started
    shadow_s, num_spare = _promise(cluster, cluster.jobs[head].num_nodes)
    # Mostly nobody may start, which the shortest of each shape tell without a look at every job.
    if all(num_nodes > num_spare and cluster.now_s + least_s > shadow_s for num_nodes, least_s in shortest):
        return started
    num_nodes = waiting.num_nodes[others]
    ends_in_time = cluster.now_s + waiting.estimates_s[others] <= shadow_s
    may_start = np.array(nodes.at_least)[waiting.gpus_per_node[others]] >= num_nodes
    may_start &= ends_in_time | (num_nodes <= num_spare)
    places = may_start.nonzero()[0]
    if worth is not None and len(places) > 1:
        places = places[np.argsort(-worth[places], kind="stable")]
    numbers = cluster.queue[others]
    for place in places.tolist():
        number = numbers[place]
        needed = cluster.jobs[number].num_nodes
        if cluster.fits(number) and (ends_in_time[place] or needed <= num_spare):
            num_spare -= 0 if ends_in_time[place] else needed
            started.append(cluster.start(number))
            if not nodes.num_free:
                break
    return started


def _promise(cluster: Cluster, num_nodes: int) -> tuple[float, int]:
    """When so many whole nodes are believed free, and how many more there are then."""
    nodes, jobs, running = cluster.nodes, cluster.jobs, cluster.running
    if nodes.num_whole >= num_nodes:
        return cluster.now_s, nodes.num_whole - num_nodes
    free = nodes.free.copy()
    for end_s, number in cluster.ends:
        give_back(free, running[number], nodes.size if number < 0 else jobs[number].gpus_per_node)
        num_whole = free[-1].bit_count()
        if num_whole >= num_nodes:
            return max(cluster.now_s, end_s), num_whole - num_nodes
    raise AssertionError("with nothing running every node is free")


RULES: Final[Mapping[str, Rule]] = {"fifo": fifo, "skip": skip, "easy": easy, "muster": muster}
