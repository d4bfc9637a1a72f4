"""A trace with tiers and failures, played for some days: which attempt had which GPUs from when to when.

All moments are whole milliseconds of the trace. A program trains in steps of ``STEP_S``, saves after each hour of work
and does not save at a notice: an attempt that is reclaimed loses work like one whose host fails.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from muster.domain.states import Cause
from simulator.traces import course as traces
from simulator.traces.cluster import Cluster
from simulator.traces.course import Course
from simulator.traces.failing import Checkpoints, Failures, Spent
from simulator.traces.generated import Law, generated
from simulator.traces.jobs import TraceJob
from simulator.traces.nodes import Nodes, NodeSet
from simulator.traces.playing import estimates_of
from simulator.traces.rules import muster

STEP_S: Final = 300
GPUS_A_NODE: Final = 8
NODES_A_RACK: Final = 16
HOUR_MS: Final = 3_600_000
DAY_S: Final = 86_400
LOAD: Final = 0.9
TIERS: Final = {"reserved": 25, "on_demand": 40, "spot": 35}
"""Shares of jobs in percent."""
_LAW: Final = Law(
    lambda chance, _: chance.expovariate(1 / 600),
    {1: 20, 4: 15, 8: 30, 16: 15, 32: 12, 64: 6, 128: 2},
    lambda chance, _: chance.lognormvariate(math.log(6 * 3600), 1.0),
)
_MEAN_S: Final = 6 * 3600 * math.exp(0.5)


@dataclass(frozen=True, slots=True)
class SavesByTheHour(Checkpoints):
    """Checkpoints of programs that do not save at a notice."""

    def spent(self, busy_s: float, *, is_again: bool, saves_last: bool) -> Spent:
        del saves_last
        return Checkpoints.spent(self, busy_s, is_again=is_again, saves_last=False)


SAVES: Final = SavesByTheHour()


@dataclass(frozen=True, slots=True)
class FailuresByTheMs(Failures):
    """Failures at whole milliseconds."""

    def moments(self, num_nodes: int, *, from_s: float, seed: int) -> Iterator[tuple[float, int]]:
        for at_s, node in Failures.moments(self, num_nodes, from_s=from_s, seed=seed):
            yield (at_s if math.isinf(at_s) else round(at_s, 3)), node


@dataclass(frozen=True, slots=True)
class Shape:
    """How large the fleet is, how long it is played, and how often a node fails and is away for ``repair_s``.

    1,000 GPUs have eight times as many failures as published for such a fleet, so that a month has many.
    """

    num_nodes: int
    days: float
    failures_a_day: float = 6.0
    repair_s: float = float(DAY_S)

    @property
    def num_gpus(self) -> int:
        return self.num_nodes * GPUS_A_NODE

    @property
    def num_hours(self) -> int:
        return round(self.days * 24)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a job, by numbers of its GPUs: slot + ``GPUS_A_NODE`` × node.

    ``number``: 1 for a job's first. ``first_step``: the number of the step with which it begins. ``end_ms`` None: it
    runs still when the playing ends.
    """

    job: int
    number: int
    start_ms: int
    gpus: tuple[int, ...]
    first_step: int
    end_ms: int | None = None
    cause: Cause | None = None

    @property
    def attempt_id(self) -> str:
        return f"att_{self.job:05}_{self.number:03}"

    @property
    def nodes(self) -> tuple[int, ...]:
        return tuple(sorted({gpu // GPUS_A_NODE for gpu in self.gpus}))


@dataclass(frozen=True, slots=True)
class Outage:
    """A node from its failure until it is back in service."""

    node: int
    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class History:
    """What happened. ``waiting``: (moment, pending jobs from then on), as the simulator counted them."""

    shape: Shape
    jobs: Sequence[TraceJob]
    attempts: tuple[Attempt, ...]
    outages: tuple[Outage, ...]
    waiting: tuple[tuple[int, int], ...]
    until_ms: int

    def num_steps(self, job: int) -> int:
        return round(self.jobs[job].duration_s) // STEP_S


def jobs_of_month(shape: Shape, seed: int) -> list[TraceJob]:
    """Return jobs whose work is whole steps, submitted at whole milliseconds."""
    law = replace(_LAW, gpus={size: share for size, share in _LAW.gpus.items() if size <= shape.num_gpus // 2})
    mean_gpu_s = _MEAN_S * sum(size * share for size, share in law.gpus.items()) / sum(law.gpus.values())
    num_jobs = round(LOAD * shape.num_gpus * (shape.days + 1) * DAY_S / mean_gpu_s)
    made = generated(law, num_jobs=num_jobs, num_nodes=shape.num_nodes, gpus_per_node=GPUS_A_NODE, load=LOAD, seed=seed)
    chance = Random(f"tiers {seed}")  # noqa: S311  # a simulation
    return [
        replace(
            job,
            submit_s=round(job.submit_s, 3),
            duration_s=float(max(1, round(job.duration_s / STEP_S)) * STEP_S),
            tier=chance.choices(list(TIERS), list(TIERS.values()))[0],
        )
        for job in made
    ]


def play_month(shape: Shape, seed: int) -> History:
    """Play the days of the shape, and two more, so that each report of its last hour has come."""
    return _Player(shape, jobs_of_month(shape, seed), seed).play()


class _Player:
    def __init__(self, shape: Shape, jobs: list[TraceJob], seed: int) -> None:
        self._shape, self._jobs = shape, jobs
        self._cluster = Cluster(
            jobs, estimates_of(jobs, error=1, seed=0), Nodes(shape.num_nodes, GPUS_A_NODE, NODES_A_RACK)
        )
        failures = FailuresByTheMs(shape.failures_a_day * 1000 / shape.num_nodes, shape.repair_s, SAVES)
        self._cluster.saves_every_s = SAVES.every_s
        self._course = Course(self._cluster, failures, seed)
        self._free = [list(range(node * GPUS_A_NODE, (node + 1) * GPUS_A_NODE)) for node in range(shape.num_nodes)]
        self._open: dict[int, Attempt] = {}
        self._ended: list[Attempt] = []
        self._outages: list[Outage] = []
        self._waiting: list[tuple[int, int]] = []

    def play(self) -> History:
        cluster, course = self._cluster, self._course
        until_s = (self._shape.days + 2) * DAY_S
        while course.num_left and cluster.now_s < until_s:
            away, num_interrupted = dict(cluster.away), len(course.interruptions)
            course.advance()
            self._note_ends({one.number: one.cause for one in course.interruptions[num_interrupted:]})
            self._note_outages(away)
            for number in muster(cluster):
                course.start(number)
                self._start(number)
            course.note()
            self._waiting.append((_ms(cluster.now_s), len(cluster.queue)))
        attempts = sorted([*self._ended, *self._open.values()], key=lambda one: (one.start_ms, one.job))
        return History(
            self._shape, self._jobs, tuple(attempts), tuple(self._outages), tuple(self._waiting), _ms(until_s)
        )

    def _start(self, number: int) -> None:
        cluster, job = self._cluster, self._jobs[number]
        gpus: list[int] = []
        for node in _members(cluster.running[number]):
            own = self._free[node]
            gpus += own[: job.gpus_per_node]
            del own[: job.gpus_per_node]
        steps_left = round(cluster.left_s[number] / STEP_S)
        first = round(job.duration_s / STEP_S) - steps_left + 1
        self._open[number] = Attempt(number, cluster.attempts[number], _ms(cluster.now_s), tuple(gpus), first)

    def _note_ends(self, interrupted: dict[int, traces.Cause]) -> None:
        """Note the attempts that have ended. Ends come before starts, so an attempt that is not running has ended."""
        causes = {traces.Cause.FAILURE: Cause.GPU_FAULT, traces.Cause.RECLAIM: Cause.RECLAIMED}
        for number in [number for number in self._open if number not in self._cluster.running]:
            one = self._open.pop(number)
            cause = causes[interrupted[number]] if number in interrupted else Cause.SUCCEEDED
            self._ended.append(replace(one, end_ms=_ms(self._cluster.now_s), cause=cause))
            for gpu in one.gpus:
                self._free[gpu // GPUS_A_NODE].append(gpu)
        for own in self._free:
            own.sort()

    def _note_outages(self, before: dict[int, float]) -> None:
        for node, until_s in self._cluster.away.items():
            if before.get(node) != until_s:
                self._outages.append(Outage(node, _ms(self._cluster.now_s), _ms(until_s)))


def by_job(attempts: Sequence[Attempt]) -> dict[int, list[Attempt]]:
    """Return the attempts of each job, in their order."""
    found: defaultdict[int, list[Attempt]] = defaultdict(list)
    for one in sorted(attempts, key=lambda one: one.number):
        found[one.job].append(one)
    return dict(found)


def _members(nodes: NodeSet) -> Iterator[int]:
    while nodes:
        low = nodes & -nodes
        yield low.bit_length() - 1
        nodes ^= low


def _ms(at_s: float) -> int:
    return round(at_s * 1000)
