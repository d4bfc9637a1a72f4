"""A trace played to its end: its events in the order of time, with the rule called after each moment."""

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from simulator.traces.cluster import Cluster
from simulator.traces.course import Course, Interruption, Work
from simulator.traces.failing import NO_FAILURES, Failures
from simulator.traces.jobs import TraceJob
from simulator.traces.nodes import Nodes
from simulator.traces.rules import Rule


@dataclass(frozen=True, slots=True)
class Played:
    """The result of one played trace.

    ``started_s``: the first start of each job; ``finished_s``: its end; ``end_s``: the last end. An event is a
    submission, an end, a failure or a repair of a node, or the end of a notice. ``num_racks``: in how many racks each
    job ran. ``moments``: rows of ``course.MOMENT``.
    """

    started_s: Sequence[float]
    finished_s: Sequence[float]
    end_s: float
    num_events: int
    num_racks: Sequence[int]
    moments: "array[float]"
    work: Work
    interruptions: Sequence[Interruption]
    num_failures: int


def estimates_of(jobs: Sequence[TraceJob], *, error: float, seed: int) -> list[float]:
    """Return the expected run time of each job in seconds: its duration times or divided by up to ``error``.

    The factor's logarithm is uniform, so that too short is as likely as too long. 1 is exact.
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
    failures: Failures | None = None,
    seed: int = 0,
) -> Played:
    """Play ``jobs``, given in order of submission; each fits the empty fleet. ``seed``: of the failures, if any.

    Raises:
        EndlessError: at this rate of failures jobs lose as much as they do.
    """
    cluster = Cluster(jobs, list(estimates_s), Nodes(num_nodes, gpus_per_node, nodes_per_rack))
    what_fails = failures or NO_FAILURES
    cluster.saves_every_s = what_fails.checkpoints.every_s
    course = Course(cluster, what_fails, seed)
    while course.num_left:
        course.advance()
        for number in rule(cluster):
            course.start(number)
        course.note()
    return Played(
        cluster.started_s,
        course.finished_s,
        cluster.now_s,
        course.num_events,
        cluster.num_racks,
        course.moments,
        course.work,
        course.interruptions,
        course.num_failures,
    )
