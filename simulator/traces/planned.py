"""A trace played by the planner itself, with its fleet, queue and running jobs as the planner's input.

All jobs are of one tier and tenant, so that nothing is reclaimed and no share counts.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush

from health.standing.admission import AdmissionFacts
from muster.domain.ids import AttemptId, GpuUuid, JobId, NodeId, TenantId
from muster.domain.policy.document import DEFAULT_POLICY, Policy
from muster.domain.states import Contact, Standing
from scheduler.fleet.topology import FleetState
from scheduler.model import GpuView, Parts, Plan, Question, RunningAttempt, Shape, WaitingJob, Workload
from scheduler.planner import plan_on
from simulator.traces.jobs import TraceJob

_TIER, _TENANT = "on_demand", TenantId("one")
_FIT = AdmissionFacts(standing=Standing.HEALTHY, contact=Contact.LIVE)


@dataclass(frozen=True, slots=True)
class Decision:
    """One plan. ``state``: as ``decided`` left it. ``numbers``: of the pending jobs, by job."""

    question: Question
    decided: Plan
    state: FleetState
    numbers: dict[JobId, int]


@dataclass(frozen=True, slots=True)
class Expected:
    """The wall time of each job and its predicted run time, in seconds; None: unknown."""

    wall_times_s: Sequence[float | None]
    predicted_s: Sequence[float | None]


@dataclass(slots=True)
class PlannedQueue:
    """A trace under the planner. ``started_ms``: of each job by number, once it has started. ``running``: by number."""

    jobs: Sequence[TraceJob]
    expected: Expected
    num_nodes: int
    gpus_per_node: int
    policy: Policy = DEFAULT_POLICY
    started_ms: dict[int, int] = field(default_factory=dict)
    running: dict[int, RunningAttempt] = field(default_factory=dict)
    _waiting: dict[JobId, tuple[int, WaitingJob]] = field(default_factory=dict)
    _ran_gpu_ms: dict[int, int] = field(default_factory=dict)

    def play(self, note: Callable[[Decision], None] = lambda _: None) -> None:
        """Play to the end of the last job. ``note`` receives each plan before its jobs start."""
        moments = [(round(job.submit_s * 1000), 1, number) for number, job in enumerate(self.jobs)]
        heapify(moments)
        while moments:
            now_ms = moments[0][0]
            while moments and moments[0][0] == now_ms:
                _, is_submission, number = heappop(moments)
                if is_submission:
                    self._submit(number, now_ms)
                else:
                    self._end(number, now_ms)
            decision = self._check(now_ms)
            note(decision)
            self._remember(decision.decided)
            for number in self._start(decision, now_ms):
                heappush(moments, (now_ms + max(round(self.jobs[number].duration_s * 1000), 1), 0, number))

    def _remember(self, decided: Plan) -> None:
        """Keep what the plan promises, as the control plane does."""
        for told in decided.waiting:
            number, job = self._waiting[told.job_id]
            self._waiting[told.job_id] = number, replace(job, firm_start=told.firm_start, postponed=told.postponed)

    def _submit(self, number: int, now_ms: int) -> None:
        job, job_id = self.jobs[number], JobId(f"{number:06}")
        self._waiting[job_id] = (
            number,
            WaitingJob(
                job_id,
                1,
                _TIER,
                now_ms,
                job.num_nodes,
                job.gpus_per_node,
                tenant_id=_TENANT,
                expected_s=self.expected.wall_times_s[number],
                predicted_s=self.expected.predicted_s[number],
            ),
        )

    def _end(self, number: int, now_ms: int) -> None:
        self._ran_gpu_ms[number] = self._work(self.running.pop(number), now_ms)

    def _check(self, now_ms: int) -> Decision:
        queue = list(self._queue(now_ms))
        asked = Question(self.policy, self._gpus(), queue, Workload(now_ms, tuple(self.running.values())))
        state = FleetState(asked.gpus, self.policy)
        decided = plan_on(state, queue, self.policy, asked.workload)
        return Decision(asked, decided, state, {job_id: number for job_id, (number, _) in self._waiting.items()})

    def _queue(self, now_ms: int) -> Iterator[WaitingJob]:
        """Yield the pending jobs, each with the work of later jobs."""
        work = self._ran_gpu_ms | {number: self._work(attempt, now_ms) for number, attempt in self.running.items()}
        for number, job in self._waiting.values():
            passed_ms = sum(done for other, done in work.items() if other > number)
            yield replace(job, overtaken_gpu_s=passed_ms / 1000)

    def _gpus(self) -> list[GpuView]:
        held = {uuid for attempt in self.running.values() for uuid in attempt.gpus}
        names = [
            (f"{node:05}", f"{node:05}-{slot}", slot)
            for node in range(self.num_nodes)
            for slot in range(self.gpus_per_node)
        ]
        return [
            GpuView(GpuUuid(uuid), NodeId(node), slot, "one", replace(_FIT, is_assigned=uuid in held))
            for node, uuid, slot in names
        ]

    @staticmethod
    def _work(attempt: RunningAttempt, now_ms: int) -> int:
        return len(attempt.gpus) * (now_ms - attempt.started_ms)

    def _start(self, decision: Decision, now_ms: int) -> Iterator[int]:
        for placed in decision.decided.placements:
            number, job = self._waiting.pop(placed.job_id)
            self.started_ms[number] = now_ms
            self.running[number] = _attempt(job, placed.parts, now_ms)
            yield number


def _attempt(job: WaitingJob, parts: Parts, now_ms: int) -> RunningAttempt:
    def after_ms(run_s: float | None) -> int | None:
        return None if run_s is None else now_ms + round(run_s * 1000)

    return RunningAttempt(
        AttemptId(job.job_id),
        job.job_id,
        job.tenant_id,
        _TIER,
        tuple(uuid for _, own in parts for uuid in own),
        now_ms,
        ends_ms=after_ms(job.expected_s),
        predicted_ms=after_ms(job.predicted_s if job.expected_s is None else None),
        requested=Shape(job.nodes, job.gpus_per_node),
    )
