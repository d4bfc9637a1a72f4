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
import numpy.typing as npt

from scheduler.order import urgency
from simulator.traces.cluster import Cluster
from simulator.traces.reclaiming import take_back

LOOK_AHEAD: Final = 300
"""So many jobs behind its head skip and EASY try, as schedulers bound it (Slurm's bf_max_job_test is 500)."""

Numbers = npt.NDArray[np.int64]


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

    Who was interrupted goes before the others, and who was passed by as much work as the policy allows, in order of
    submission.
    """
    started: list[int] = []
    if not cluster.queue or not (cluster.nodes.num_free or cluster.columns.has_tiers):
        return started
    numbers, worth = _by_worth(cluster)
    while len(started) < len(numbers):
        first = int(worth.argmax())
        number = int(numbers[first])
        worth[first] = -math.inf
        if not cluster.fits(number):
            take_back(cluster, number)
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
    if cluster.num_interrupted:
        worth[columns.is_again[numbers]] = math.inf
    if columns.has_tiers:
        places = np.lexsort((-worth, -columns.priority[numbers]))
        worth[places] = np.arange(len(places), 0, -1.0)
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
        each = size if number < 0 else cluster.jobs[number].gpus_per_node
        for node in cluster.running[number]:
            free[node] += each
            num_whole += free[node] == size
        if num_whole >= num_nodes:
            return max(cluster.now_s, end_s), num_whole - num_nodes
    raise AssertionError("with nothing running every node is free")


RULES: Final[Mapping[str, Rule]] = {"fifo": fifo, "skip": skip, "easy": easy, "muster": muster}
