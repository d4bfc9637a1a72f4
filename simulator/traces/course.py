"""The events on a fleet while a trace is played: submissions, ends, failures, repairs, and ends of notices."""

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from heapq import heappop, heappush
from typing import Final

from simulator.traces.cluster import Cluster
from simulator.traces.failing import Failures

MOST_FAILURES: Final = 1_000_000
"""Most failures of a trace: with more, jobs lose as much as they do, and the trace does not end."""
MOMENT: Final = ("at_s", "waiting", "free_gpus", "scattered_gpus", "away_gpus", "broken_rack_gpus")
"""Fields of a moment, valid until the next one.

They are: jobs in the queue; free GPUs, and how many of them are on nodes partly in use; GPUs of failed nodes; free ones
on other nodes, of racks partly in use.
"""


class EndlessError(ValueError):
    """The trace does not end at this rate of failures."""


class Cause(StrEnum):
    FAILURE = "failure"
    RECLAIM = "reclaim"


@dataclass(frozen=True, slots=True)
class Interruption:
    """An interruption of a job. ``lost_s``: work that has to be done again, of each of the job's GPUs."""

    number: int
    at_s: float
    cause: Cause
    lost_s: float


class Work:
    """Seconds of each job, summed over its attempts: its time on its nodes, and the parts that were not kept work."""

    __slots__ = ("busy_s", "lost_s", "restarting_s", "stalled_s")

    def __init__(self, num_jobs: int) -> None:
        self.busy_s, self.stalled_s, self.restarting_s, self.lost_s = ([0.0] * num_jobs for _ in range(4))


class Course:
    """The course of one trace.

    ``_ends``: (when, job, its attempt, whether a notice ends then); for a repair the job is -1 - node.
    """

    def __init__(self, cluster: Cluster, failures: Failures, seed: int) -> None:
        num_jobs = len(cluster.jobs)
        self._cluster, self._jobs, self._failures = cluster, cluster.jobs, failures
        self._submissions_s: Sequence[float] = [*(job.submit_s for job in cluster.jobs), math.inf]
        self._next_job, self._num_away = 0, 0
        self._ends: list[tuple[float, int, int, bool]] = []
        self._moments_of_failure = failures.moments(cluster.nodes.num_nodes, from_s=self._submissions_s[0], seed=seed)
        self._failure = next(self._moments_of_failure)
        self.num_left, self.num_events, self.num_failures = num_jobs, 0, 0
        self._num_drawn = 0
        self.finished_s = [math.nan] * num_jobs
        self.work = Work(num_jobs)
        self.interruptions: list[Interruption] = []
        self.moments = array("d")

    def advance(self) -> None:
        """Advance to the next time at which anything happens, and let all of it happen."""
        ends, cluster = self._ends, self._cluster
        now_s = min(self._submissions_s[self._next_job], self._failure[0])
        if ends and ends[0][0] < now_s:
            now_s = ends[0][0]
        cluster.now_s = now_s
        while ends and ends[0][0] <= now_s:
            self._end(*heappop(ends))
        while self._failure[0] <= now_s:
            self._fail(self._failure[1])
            self._failure = next(self._moments_of_failure)
        while self._submissions_s[self._next_job] <= now_s:
            cluster.submit(self._next_job)
            self._next_job += 1
            self.num_events += 1

    def start(self, number: int) -> None:
        cluster = self._cluster
        attempt = cluster.attempts[number]
        run_s = self._failures.checkpoints.run_s(cluster.left_s[number], is_again=attempt > 1)
        heappush(self._ends, (cluster.now_s + run_s, number, attempt, False))

    def note(self) -> None:
        """Record the rule's notices, and the state in which it left the fleet."""
        cluster, nodes = self._cluster, self._cluster.nodes
        for number, stop_s in cluster.notices:
            heappush(self._ends, (stop_s, number, cluster.attempts[number], True))
        cluster.notices.clear()
        scattered = nodes.num_free - nodes.num_whole * nodes.size
        away, broken = self._num_away * nodes.size, nodes.num_in_broken_racks * nodes.size
        self.moments.extend((cluster.now_s, len(cluster.queue), nodes.num_free, scattered, away, broken))

    def _end(self, at_s: float, number: int, attempt: int, is_notice: bool) -> None:  # noqa: FBT001  # an entry of _ends
        cluster = self._cluster
        if number < 0:
            cluster.repair(-1 - number)
            self._num_away -= 1
        elif number not in cluster.running or cluster.attempts[number] != attempt:
            return
        elif is_notice:
            self._interrupt(number, Cause.RECLAIM)
        else:
            held_s = cluster.end(number)
            restart_s = self._failures.checkpoints.restart_s if attempt > 1 else 0.0
            self.work.busy_s[number] += held_s
            self.work.restarting_s[number] += restart_s
            if self._failures.checkpoints.stall_s:
                self.work.stalled_s[number] += held_s - cluster.left_s[number] - restart_s
            self.finished_s[number] = at_s
            self.num_left -= 1
        self.num_events += 1

    def _fail(self, node: int) -> None:
        """Let a node fail. A failure of a node that is away breaks nothing, but counts against the end."""
        cluster = self._cluster
        self._count_drawn()
        if node in cluster.away:
            return
        self.num_failures += 1
        self.num_events += 1
        for number in [number for number, nodes in cluster.running.items() if nodes >> node & 1]:
            self._interrupt(number, Cause.FAILURE)
        cluster.fail(node, cluster.now_s + self._failures.repair_s)
        self._num_away += 1
        heappush(self._ends, (cluster.now_s + self._failures.repair_s, -1 - node, 0, False))

    def _count_drawn(self) -> None:
        self._num_drawn += 1
        if self._num_drawn > MOST_FAILURES:
            message = (
                f"{self.num_left:,} jobs have not ended after {MOST_FAILURES:,} failures: at this rate they lose as "
                "much as they do, or never have their nodes at once; use a lower rate, or more checkpoints"
            )
            raise EndlessError(message)

    def _interrupt(self, number: int, cause: Cause) -> None:
        """Queue the job again at its old place, with the work that it has left."""
        cluster, work = self._cluster, self.work
        is_again = cluster.attempts[number] > 1
        held_s = cluster.end(number)
        spent = self._failures.checkpoints.spent(held_s, is_again=is_again, saves_last=cause is Cause.RECLAIM)
        work.busy_s[number] += held_s
        work.stalled_s[number] += spent.stalled_s
        work.restarting_s[number] += spent.restarting_s
        work.lost_s[number] += spent.lost_s
        self.interruptions.append(Interruption(number, cluster.now_s, cause, spent.lost_s))
        cluster.return_to_queue(number, spent.kept_s)
