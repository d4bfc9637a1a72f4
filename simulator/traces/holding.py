"""A hold for one gang while a trace is played: its nodes, its time, and the jobs that may run meanwhile.

As in the planner (``scheduler.holds.backfill``): of the nodes that are expected to be free at the first time at which
the gang fits, the ones with the fewest idle GPUs until then are held. Only jobs that are expected to end by that time
may use them. On other nodes any job that fits may run, for as long as it likes.
"""

from bisect import bisect_left
from itertools import accumulate

import numpy as np

from muster.domain.policy.document import DEFAULT_POLICY
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


def pass_by(cluster: Cluster, head: int, worth: Floats) -> tuple[list[int], Floats]:
    """Start jobs that may run in spite of the hold for the head: the largest worth first.

    ``worth``: of each pending job; it is returned without the started ones. The head does not fit, or its start is
    firm: then it starts in its turn if it fits, and the other jobs wait for the next call.
    """
    started: list[int] = []
    waiting = cluster.waiting
    until_s, held = _place(cluster, head)
    _keep_firm(cluster, head, until_s)
    while True:
        may_head = head == cluster.firm and cluster.fits(head)
        beside = _alongside(cluster, held) if may_head else _room_alongside(cluster, until_s, held)
        if beside is None:
            return started, worth
        may_start = np.array(cluster.nodes.at_least).take(waiting.gpus_per_node) >= waiting.num_nodes
        is_gone = waiting.estimates_s <= until_s - cluster.now_s
        if held:
            may_start &= is_gone | (np.array(beside).take(waiting.gpus_per_node) >= waiting.num_nodes)
        if may_head:
            may_start[bisect_left(cluster.queue, head)] = True
        places = may_start.nonzero()[0]
        first = int(places[worth[places].argmax()])
        number = cluster.queue[first]
        started.append(cluster.start(number, 0 if is_gone[first] or number == head else held))
        worth[first:-1] = worth[first + 1 :]
        worth = worth[:-1]
        if number == head:
            cluster.firm = None
            return started, worth


def _keep_firm(cluster: Cluster, head: int, until_s: float) -> None:
    """Make the head's start firm if its place is free soon."""
    if cluster.may_become_firm and until_s <= cluster.now_s + DEFAULT_POLICY.queue.firm_within_s:
        cluster.firm = head


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


def _alongside(cluster: Cluster, assigned: NodeSet) -> list[int]:
    """Return how many nodes without a hold have so many GPUs, as ``Nodes.at_least``."""
    nodes = cluster.nodes
    if not assigned:
        return nodes.at_least
    return list(accumulate([(with_so_many & ~assigned).bit_count() for with_so_many in nodes.free[::-1]]))[::-1]


def _room_alongside(cluster: Cluster, until_s: float, assigned: NodeSet) -> list[int] | None:
    """Return how many nodes without a hold have so many GPUs, as ``Nodes.at_least``; None if no job may start.

    Mostly none may, which the shortest job of each shape shows without a test of every job.
    """
    nodes, left_s, beside = cluster.nodes, until_s - cluster.now_s, _alongside(cluster, assigned)
    for (num_nodes, each), estimates_s in cluster.waiting.estimates_by_shape.items():
        if beside[each] >= num_nodes or (estimates_s[0] <= left_s and nodes.at_least[each] >= num_nodes):
            return beside
    return None
