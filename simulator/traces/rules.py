"""Rules of a queue: our own, and the ones for comparison: strict order, skipping, shortest first, EASY, conservative.

Each rule reads the queue after the changes of one moment, and starts jobs until it would start no more. The expected
run time of a job is an estimate; it is exact only in a clairvoyant trace. All rules have the same information: a job
that outlasts its estimate gets a new one under each (``Cluster.expect_again``). ``muster`` has the planner's order
(``scheduler.queue.order``, by the default policy) and its one hold (``simulator.traces.holding``). If jobs have tiers,
only ``muster`` uses them: the higher goes first, and reclaims from the reclaimable ones below.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from scheduler.queue.order import urgency
from simulator.traces.cluster import Cluster
from simulator.traces.holding import first_room, pass_by
from simulator.traces.reclaiming import take_back
from simulator.traces.reserving import Places
from simulator.traces.waiting import Floats

LOOKAHEAD: Final = 300
"""Number of jobs after the queue's head that skip and EASY try; Slurm's bound, bf_max_job_test, is 500."""
RESERVED: Final = 64
"""Number of jobs that have places under conservative backfill, as by ``queue.reservations_max``."""


Rule = Callable[[Cluster], list[int]]
"""A function that starts the jobs that may start now, and returns their numbers."""


def fifo(cluster: Cluster) -> list[int]:
    """Start jobs in strict order: no job overtakes the head."""
    started = []
    while cluster.queue and cluster.fits(cluster.queue[0]):
        started.append(cluster.start(cluster.queue[0]))
    return started


def skip(cluster: Cluster) -> list[int]:
    """Start each job that fits: nothing is held for the head (Kueue's BestEffortFIFO)."""
    started: list[int] = []
    for number in cluster.queue[:LOOKAHEAD]:
        if not cluster.nodes.num_free:
            break
        if cluster.fits(number):
            started.append(cluster.start(number))
    return started


def easy(cluster: Cluster) -> list[int]:
    """Hold the first time at which enough whole nodes are expected to be free for the head; no job may delay it.

    EASY: Lifka, "The ANL/IBM SP scheduling system" (1995).
    """
    cluster.expect_again()
    started = fifo(cluster)
    if not cluster.queue or not cluster.nodes.num_free:
        return started
    return started + _behind(cluster, cluster.queue[0])


def shortest(cluster: Cluster) -> list[int]:
    """Start the job with the least expected run time, if it fits: nothing is held for any job.

    It has about the least mean wait, and large or long jobs may wait without end.
    """
    started: list[int] = []
    while cluster.may_start_any():
        waiting = cluster.waiting
        fits = (np.array(cluster.nodes.at_least).take(waiting.gpus_per_node) >= waiting.num_nodes).nonzero()[0]
        started.append(cluster.start(cluster.queue[int(fits[waiting.estimates_s[fits].argmin()])]))
    return started


def conservative(cluster: Cluster) -> list[int]:
    """Hold a place for each of the first jobs, from its earliest time on; no job may delay one before it.

    Mu'alem and Feitelson, "Utilization, predictability, workloads, and user runtime estimates in scheduling the IBM SP2
    with backfilling", IEEE TPDS 2001. The first ``RESERVED`` jobs have places, and later jobs do not start.
    """
    cluster.expect_again()
    started = fifo(cluster)
    if not cluster.queue or not cluster.may_start_any():
        return started
    places = Places(cluster)
    for number in cluster.queue[:RESERVED]:
        if places.reserve(number):
            started.append(number)
    return started


def muster(cluster: Cluster) -> list[int]:
    """Start the most urgent jobs first, and hold a place for the most urgent one that does not fit.

    Interrupted jobs go before the others, and so do jobs that the policy's bound of work overtook, in order of
    submission. A job that outlasts its expected run time gets a new one. Where all jobs state wall times, and none was
    interrupted, a start becomes firm as in the planner (``scheduler.holds.firm_starts``).
    """
    started: list[int] = []
    cluster.expect_again()
    is_read = cluster.queue and (cluster.waiting.has_tiers or cluster.may_become_firm)
    if not is_read and not cluster.may_start_any():
        return started
    worth = _worth(cluster)
    if cluster.firm is not None:
        started, worth = pass_by(cluster, cluster.firm, worth)
        if cluster.firm is not None:
            return started
    while len(worth):
        first = int(worth.argmax())
        number = cluster.queue[first]
        if not cluster.fits(number):
            take_back(cluster, number)
            if started and not cluster.may_become_firm and not cluster.may_start_any():
                return started
            return started + pass_by(cluster, number, worth)[0]
        started.append(cluster.start(number))
        worth[first:-1] = worth[first + 1 :]
        worth = worth[:-1]
    return started


def muster_by_wall_times(cluster: Cluster) -> list[int]:
    """Start jobs as ``muster`` does where each estimate is a wall time, so that starts become firm."""
    cluster.has_wall_times = True
    return muster(cluster)


def _worth(cluster: Cluster) -> Floats:
    """Return the worth of each pending job: the first of the largest is next."""
    waiting = cluster.waiting
    worth = urgency(cluster.now_s - waiting.submitted_s, waiting.expected_s, waiting.slowness)
    worth[: bisect_left(cluster.queue, cluster.passed.advance(cluster.now_s))] = math.inf
    if cluster.num_interrupted:
        worth[waiting.is_again] = math.inf
    if waiting.has_tiers:
        places = np.lexsort((-worth, -waiting.priority))
        worth[places] = np.arange(len(places), 0, -1.0)
    return worth


def _behind(cluster: Cluster, head: int) -> list[int]:
    """Start jobs after the head, which does not fit.

    They end before it can start, or use whole nodes that it leaves.
    """
    started: list[int] = []
    nodes = cluster.nodes
    shadow_s, whole = first_room(cluster, cluster.jobs[head].num_nodes, nodes.size)
    num_spare = whole.bit_count() - cluster.jobs[head].num_nodes
    for number in cluster.queue[1 : LOOKAHEAD + 1]:
        if not nodes.num_free:
            break
        ends_in_time = cluster.now_s + cluster.estimates_s[number] <= shadow_s
        needed = cluster.jobs[number].num_nodes
        if cluster.fits(number) and (ends_in_time or needed <= num_spare):
            num_spare -= 0 if ends_in_time else needed
            started.append(cluster.start(number))
    return started


QUEUE_RULES: Final[Mapping[str, Rule]] = {
    "fifo": fifo,
    "skip": skip,
    "sjf": shortest,
    "easy": easy,
    "conservative": conservative,
    "muster": muster,
}
