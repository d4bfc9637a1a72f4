"""The running and pending jobs while a trace is played: a rule of the queue reads them and starts jobs on them."""

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from muster.domain.policy.document import DEFAULT_POLICY
from scheduler.queue.order import expected_run_s, passed_work_bound_gpu_s
from simulator.traces.counts import Counts
from simulator.traces.jobs import TraceJob
from simulator.traces.nodes import Nodes, NodeSet
from simulator.traces.passing import PassedWork
from simulator.traces.waiting import Waiting


@dataclass(slots=True)
class Cluster:
    """The state of one played trace.

    ``queue``: numbers of jobs in order of submission, the ones of ``waiting``. ``ends``: (expected end, job, its GPUs
    by ``counts``), or for a node that is away (when it is back, -1 - node, all its GPUs); so ``running``, ``assigned``.
    ``left_s``: work that each job has left. ``attempts``: how often it started. ``num_interrupted``: interruptions of
    all jobs. ``saves_every_s``: work between two checkpoints.

    ``has_wall_times``: no job runs longer than its estimate; ``firm``: then the job whose start is firm, if any.
    ``notices``: (job, its deadline), until they are handled; ``reported``: jobs with a notice; ``losses``: (time of the
    notice, job) of the last while. ``idle``: GPUs of each node, by ``counts``.
    """

    jobs: Sequence[TraceJob]
    estimates_s: list[float]
    nodes: Nodes
    waiting: Waiting = field(init=False)
    queue: list[int] = field(init=False)
    ends: list[tuple[float, int, int]] = field(default_factory=list)
    running: dict[int, NodeSet] = field(default_factory=dict)
    away: dict[int, float] = field(default_factory=dict)
    started_s: list[float] = field(init=False)
    now_s: float = 0.0
    passed: PassedWork = field(init=False)
    num_racks: list[int] = field(init=False)
    left_s: list[float] = field(init=False)
    attempts: list[int] = field(init=False)
    notices: list[tuple[int, float]] = field(default_factory=list)
    reported: set[int] = field(default_factory=set)
    losses: deque[tuple[float, int]] = field(default_factory=deque)
    counts: Counts = field(init=False)
    idle: int = field(init=False)
    assigned: dict[int, int] = field(default_factory=dict)
    num_interrupted: int = 0
    saves_every_s: float = math.inf
    has_wall_times: bool = False
    firm: int | None = None
    _since_s: dict[int, float] = field(default_factory=dict)
    _expected_s: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.started_s = [math.nan] * len(self.jobs)
        self.num_racks, self.attempts = [0] * len(self.jobs), [0] * len(self.jobs)
        self.left_s = [job.duration_s for job in self.jobs]
        self.counts = Counts(self.nodes.num_nodes, self.nodes.size)
        self.idle = self.counts.of(self.nodes.free[-1], self.nodes.size)
        self.waiting = Waiting(self.jobs, self.estimates_s)
        self.queue = self.waiting.numbers
        bound_gpu_s = passed_work_bound_gpu_s(DEFAULT_POLICY, self.nodes.num_gpus)
        self.passed = PassedWork(len(self.jobs), bound_gpu_s)

    def fits(self, number: int) -> bool:
        job = self.jobs[number]
        return self.nodes.fits(job.num_nodes, job.gpus_per_node)

    def may_start_any(self) -> bool:
        """Return whether the nodes have room for any pending job."""
        nodes = self.nodes
        if nodes.num_free:
            for num_nodes, each in self.waiting.estimates_by_shape:
                if nodes.fits(num_nodes, each):
                    return True
        return False

    @property
    def may_become_firm(self) -> bool:
        """Return whether the next start may become firm. Tiers and interrupted jobs would go before it."""
        has_others = self.waiting.has_tiers or self.num_interrupted
        return self.has_wall_times and self.firm is None and not has_others

    def submit(self, number: int) -> None:
        self.waiting.add(number)

    def start(self, number: int, excluded: NodeSet = 0) -> int:
        """Start the job and return its number. ``excluded``: nodes that it must not use."""
        self.waiting.remove(number)
        job, now_s = self.jobs[number], self.now_s
        taken = self.running[number] = self.nodes.take(job.num_nodes, job.gpus_per_node, excluded)
        self.assigned[number] = self.counts.of(taken, job.gpus_per_node)
        self.idle -= self.assigned[number]
        if not self.attempts[number]:
            self.started_s[number] = now_s
            self.num_racks[number] = self.nodes.num_racks_of(taken)
        self.attempts[number] += 1
        self._since_s[number] = now_s
        self.passed.starts(number, job.num_nodes * job.gpus_per_node, now_s)
        self._believe(number, now_s + self.estimates_s[number])
        return number

    def end(self, number: int) -> float:
        """End the attempt, and return how long it had its nodes."""
        job = self.jobs[number]
        self.nodes.give(self.running.pop(number), job.gpus_per_node)
        self.idle += self.assigned.pop(number)
        self.passed.ends(number, job.num_nodes * job.gpus_per_node, self.now_s)
        self._forget(number)
        self.reported.discard(number)
        return self.now_s - self._since_s.pop(number)

    def ran_s(self, number: int) -> float:
        """Return the seconds since this attempt started."""
        return self.now_s - self._since_s[number]

    def return_to_queue(self, number: int, kept_s: float) -> None:
        """Queue the job at its old place with so much of its work done; its estimate shrinks in proportion."""
        left_s = max(self.left_s[number] - kept_s, 0.0)
        if self.left_s[number]:
            self.estimates_s[number] *= left_s / self.left_s[number]
        self.left_s[number] = left_s
        self.num_interrupted += 1
        self.waiting.add_again(number, self.estimates_s[number])

    def give_notice(self, number: int, stop_s: float) -> None:
        """Give the job a notice: it leaves by then at the latest, and its expected end is no later."""
        self.reported.add(number)
        self.notices.append((number, stop_s))
        self.losses.append((self.now_s, number))
        believed_s = self._expected_s[number]
        self._forget(number)
        self._believe(number, min(believed_s, stop_s) if believed_s > self.now_s else stop_s)

    def fail(self, node: int, until_s: float) -> None:
        """Take the node out of service until then; no job runs on it any more."""
        self.nodes.lose(node)
        self.away[node] = until_s
        self.running[-1 - node] = 1 << node
        self.assigned[-1 - node] = self.counts.of(1 << node, self.nodes.size)
        self.idle -= self.assigned[-1 - node]
        self._believe(-1 - node, until_s)

    def expect_again(self) -> None:
        """Set a new, future end for each job that outlasts its expected one."""
        while self.ends and self.ends[0][0] < self.now_s:
            number = self.ends[0][1]
            run_s = expected_run_s(self.estimates_s[number], self.ran_s(number), DEFAULT_POLICY)
            self._forget(number)
            self._believe(number, max(self._since_s[number] + run_s, self.now_s))

    def repair(self, node: int) -> None:
        del self.away[node], self.running[-1 - node]
        self._forget(-1 - node)
        self.nodes.give(1 << node, self.nodes.size)
        self.idle += self.assigned.pop(-1 - node)

    def _believe(self, number: int, end_s: float) -> None:
        self._expected_s[number] = end_s
        insort(self.ends, (end_s, number, self.assigned[number]))

    def _forget(self, number: int) -> None:
        del self.ends[bisect_left(self.ends, (self._expected_s.pop(number), number, 0))]
