"""A trace played by the planner itself, which is asked of each job that waits when it will start (``scheduler.eta``).

All jobs are of one tier, so that nobody is taken back, and traces are short against the bound of passed work. Some say
a wall time, longer than they need; of the others nobody knows how long they run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush

from health.admission import AdmissionFacts
from muster.domain.ids import AttemptId, GpuUuid, JobId, NodeId, TenantId
from muster.domain.policy import DEFAULT_POLICY
from muster.domain.states import Contact, Standing
from scheduler.eta import Outlook
from scheduler.model import GpuView, Plan, Question, RunningAttempt, Shape, StartRange, WaitingJob, Workload
from scheduler.planner import plan_on
from scheduler.topology import FleetState
from simulator.traces.jobs import TraceJob

_TIER = "on_demand"
_FIT = AdmissionFacts(standing=Standing.HEALTHY, contact=Contact.LIVE)


@dataclass(frozen=True, slots=True)
class Told:
    """What was said of a job when it had to wait, and when it started. ``said`` None: nobody knew."""

    said: StartRange | None
    started_ms: int

    @property
    def is_covered(self) -> bool:
        """Within the range; an end that nobody knows holds nothing back."""
        if self.said is None:
            return False
        latest_ms = self.said.latest_ms
        return self.said.earliest_ms <= self.started_ms and (latest_ms is None or self.started_ms <= latest_ms)


def starts_told(
    jobs: Sequence[TraceJob],
    wall_times_s: Sequence[float | None],
    predicted_s: Sequence[float | None] | None = None,
    *,
    num_nodes: int,
    gpus_per_node: int,
) -> list[Told]:
    """Of each job that did not start when it came. ``wall_times_s``: of each job; None: it says none. ``predicted_s``:
    by what others like it took, where there are some.
    """
    believed_s = [None] * len(jobs) if predicted_s is None else predicted_s
    world = _World(num_nodes, gpus_per_node)
    moments = [(round(job.submit_s * 1000), 1, number) for number, job in enumerate(jobs)]
    while moments:
        at_ms = moments[0][0]
        while moments and moments[0][0] == at_ms:
            _, is_submission, number = heappop(moments)
            if is_submission:
                world.submit(number, jobs[number], (wall_times_s[number], believed_s[number]), at_ms)
            else:
                world.running.pop(number)
        for number in world.decide(at_ms):
            heappush(moments, (at_ms + max(round(jobs[number].duration_s * 1000), 1), 0, number))
    return [Told(said, world.started_ms[number]) for number, said in world.said.items()]


def _after(now_ms: int, run_s: float | None) -> int | None:
    return None if run_s is None else now_ms + round(run_s * 1000)


class _World:
    def __init__(self, num_nodes: int, gpus_per_node: int) -> None:
        self._gpus = [
            GpuView(GpuUuid(f"{node}-{slot}"), NodeId(str(node)), slot, "one", _FIT)
            for node in range(num_nodes)
            for slot in range(gpus_per_node)
        ]
        self._waiting: dict[str, tuple[int, WaitingJob]] = {}
        self.running: dict[int, RunningAttempt] = {}
        self.said: dict[int, StartRange | None] = {}
        self.started_ms: dict[int, int] = {}

    def submit(self, number: int, job: TraceJob, run_s: tuple[float | None, float | None], at_ms: int) -> None:
        """``run_s``: as it says, and by what others like it took."""
        said_s, predicted_s = run_s
        job_id = JobId(f"{number:06}")
        shape = (job.num_nodes, job.gpus_per_node)
        self._waiting[job_id] = (
            number,
            WaitingJob(
                job_id, 1, _TIER, at_ms, *shape, tenant_id=TenantId("one"), expected_s=said_s, predicted_s=predicted_s
            ),
        )

    def decide(self, now_ms: int) -> list[int]:
        """Who starts now. Whoever waits for the first time is told when it will."""
        held = {uuid for attempt in self.running.values() for uuid in attempt.gpus}
        taken = replace(_FIT, is_held=True)
        gpus = [replace(gpu, facts=taken) if gpu.uuid in held else gpu for gpu in self._gpus]
        queue = [job for _, job in self._waiting.values()]
        asked = Question(DEFAULT_POLICY, gpus, queue, Workload(now_ms, tuple(self.running.values())))
        state = FleetState(gpus, DEFAULT_POLICY)
        decided = plan_on(state, queue, DEFAULT_POLICY, asked.workload)
        self._tell(state, asked, decided)
        started = []
        for placed in decided.placements:
            number, job = self._waiting.pop(placed.job_id)
            self.started_ms[number] = now_ms
            uuids = tuple(uuid for _, own in placed.parts for uuid in own)
            self.running[number] = RunningAttempt(
                AttemptId(job.job_id),
                job.job_id,
                job.tenant_id,
                _TIER,
                uuids,
                now_ms,
                ends_ms=_after(now_ms, job.expected_s),
                predicted_ms=_after(now_ms, job.predicted_s if job.expected_s is None else None),
                asked=Shape(job.nodes, job.gpus_per_node),
            )
            started.append(number)
        return started

    def _tell(self, state: FleetState, asked: Question, decided: Plan) -> None:
        outlook = Outlook(state, asked, decided)
        for waiting in decided.waiting:
            number, _ = self._waiting[waiting.job_id]
            if number not in self.said:
                self.said[number] = outlook.start_range(waiting.job_id)
