"""A hold for one gang while a trace is played: its nodes, its time, and the jobs that may run meanwhile.

As in the planner (``scheduler.holds.backfill``): of the nodes that are expected to be free at the first time at which
the gang fits, the ones with the fewest idle GPUs until then are held. Only jobs that are expected to end by that time
may use them. On other nodes any job that fits may run, for as long as it likes.
"""

from itertools import accumulate

import numpy as np

from simulator.traces.cluster import Cluster
from simulator.traces.nodes import NodeSet, lowest
from simulator.traces.waiting import Floats


def first_room(cluster: Cluster, num_nodes: int, gpus_per_node: int) -> tuple[float, NodeSet]:
    """Return when so many nodes are expected to have so many GPUs free, and which nodes these are."""
    counts = cluster.counts
    free, mask = counts.compared(cluster.idle, gpus_per_node)
    if cluster.nodes.fits(num_nodes, gpus_per_node):
        return cluster.now_s, counts.nodes(free & mask)
    for end_s, _, held in cluster.ends:
        free += held
        if free & mask and (free & mask).bit_count() >= num_nodes:
            return max(cluster.now_s, end_s), counts.nodes(free & mask)
    raise AssertionError("with nothing running every node is free")


def pass_by(cluster: Cluster, head: int, worth: Floats) -> list[int]:
    """Start jobs that may run in spite of the hold for the head, which does not fit: the largest worth first.

    ``worth``: of each pending job.
    """
    started: list[int] = []
    waiting = cluster.waiting
    until_s, held = _place(cluster, head)
    while (beside := _room_alongside(cluster, until_s, held)) is not None:
        may_start = np.array(cluster.nodes.at_least).take(waiting.gpus_per_node) >= waiting.num_nodes
        is_gone = waiting.estimates_s <= until_s - cluster.now_s
        if held:
            may_start &= is_gone | (np.array(beside).take(waiting.gpus_per_node) >= waiting.num_nodes)
        places = may_start.nonzero()[0]
        first = int(places[worth[places].argmax()])
        started.append(cluster.start(cluster.queue[first], 0 if is_gone[first] else held))
        worth[first:-1] = worth[first + 1 :]
        worth = worth[:-1]
    return started


def _place(cluster: Cluster, head: int) -> tuple[float, NodeSet]:
    """Return until when the hold lasts, and its nodes that have any GPU idle."""
    job = cluster.jobs[head]
    until_s, fits = first_room(cluster, job.num_nodes, job.gpus_per_node)
    missing = job.num_nodes - (cluster.nodes.free[0] & fits).bit_count()
    held = 0
    for nodes in cluster.nodes.free[1:]:
        if missing <= 0:
            break
        part = nodes & fits
        if part:
            part = lowest(part, min(part.bit_count(), missing))
            held |= part
            missing -= part.bit_count()
    return until_s, held


def _room_alongside(cluster: Cluster, until_s: float, assigned: NodeSet) -> list[int] | None:
    """Return how many nodes without a hold have so many GPUs, as ``Nodes.at_least``; None if no job may start.

    Mostly none may, which the shortest job of each shape shows without a test of every job.
    """
    nodes, left_s = cluster.nodes, until_s - cluster.now_s
    beside = nodes.at_least
    if assigned:
        beside = list(accumulate([(with_so_many & ~assigned).bit_count() for with_so_many in nodes.free[::-1]]))[::-1]
    for (num_nodes, each), estimates_s in cluster.waiting.estimates_by_shape.items():
        if beside[each] >= num_nodes or (estimates_s[0] <= left_s and nodes.at_least[each] >= num_nodes):
            return beside
    return None
