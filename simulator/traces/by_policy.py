"""A trace played by the planner itself under any policy, with tiers, quotas, shares and notices.

Each moment is one cycle of ``scheduler.planner``. A victim of a reclaim runs until its deadline, saves within the
notice, and is queued again with the work that it has left. A moment takes milliseconds: for thousands of jobs, not for
a hundred thousand (``simulator.traces.rules`` has the default policy's order for these).
"""

import math
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from typing import Final

from health.standing.admission import AdmissionFacts
from muster.domain.ids import AttemptId, GpuUuid, JobId, NodeId, TenantId
from muster.domain.job.wait_reasons import WaitReason
from muster.domain.policy.document import Policy
from muster.domain.states import Contact, Standing
from scheduler.fleet.topology import FleetState
from scheduler.model import (
    GpuView,
    Plan,
    ReclaimLoss,
    RunningAttempt,
    Shape,
    StandingReclaim,
    WaitingJob,
    Workload,
)
from scheduler.planner import plan_on
from scheduler.quota.tenancy import Tenancy
from simulator.traces.course import Cause, Interruption, Work
from simulator.traces.jobs import TraceJob
from simulator.traces.playing import Played

USUAL_TIER: Final = "on_demand"
TICK_MS: Final = 60_000
"""How often a job that waits for minimum run times or a cap is tried without another change."""
_FIT: Final = AdmissionFacts(standing=Standing.HEALTHY, contact=Contact.LIVE)
_TIMED: Final = frozenset({WaitReason.RECLAIM_MIN_RUN, WaitReason.RECLAIM_CAP})


class UnplayableError(ValueError):
    """The policy cannot play the trace; the text says which job or tier, and why."""


@dataclass(frozen=True, slots=True)
class RunTimes:
    """What the planner knows of each job's run time, in seconds; None: unknown. A wall time ends the job."""

    wall_times_s: Sequence[float | None]
    predicted_s: Sequence[float | None]


def tier_of(job: TraceJob, policy: Policy) -> str:
    """Return the job's tier; without one ``on_demand``, or the policy's first by priority if it has no such tier.

    Raises:
        UnplayableError: the policy does not define the tier.
    """
    if job.tier in policy.tiers:
        return job.tier
    if job.tier:
        raise UnplayableError(f"the policy has no tier {job.tier!r}, which the trace names: it has {_names(policy)}")
    return USUAL_TIER if USUAL_TIER in policy.tiers else _names(policy).split(", ")[0]


def _names(policy: Policy) -> str:
    return ", ".join(sorted(policy.tiers, key=lambda name: (-policy.tiers[name].priority, name)))


@dataclass(slots=True)
class PolicyQueue:
    """A trace under a policy. ``attempts``: how often each job started; ``left_s``: the work that each has left."""

    jobs: Sequence[TraceJob]
    known: RunTimes
    policy: Policy
    tenancy: Tenancy
    num_nodes: int
    gpus_per_node: int
    nodes_per_rack: int | None = None
    started_s: list[float] = field(init=False)
    finished_s: list[float] = field(init=False)
    work: Work = field(init=False)
    interruptions: list[Interruption] = field(default_factory=list)
    _left_s: list[float] = field(init=False)
    _attempts: list[int] = field(init=False)
    _num_racks: list[int] = field(init=False)
    _tiers: list[str] = field(init=False)
    _moments: list[tuple[int, int, int, int]] = field(default_factory=list)
    _waiting: dict[JobId, tuple[int, WaitingJob]] = field(default_factory=dict)
    _running: dict[int, RunningAttempt] = field(default_factory=dict)
    _work_gpu_ms: dict[int, int] = field(default_factory=dict)
    _reclaims: dict[AttemptId, StandingReclaim] = field(default_factory=dict)
    _losses: list[ReclaimLoss] = field(default_factory=list)
    _peaks: list[tuple[int, TenantId, int]] = field(default_factory=list)
    _rows: "array[float]" = field(default_factory=lambda: array("d"))
    _num_events: int = 0

    def __post_init__(self) -> None:
        number = len(self.jobs)
        self.started_s, self.finished_s = [math.nan] * number, [math.nan] * number
        self.work = Work(number)
        self._left_s = [job.duration_s for job in self.jobs]
        self._attempts, self._num_racks = [0] * number, [1] * number
        self._tiers = [tier_of(job, self.policy) for job in self.jobs]

    def play(self, note: Callable[[Plan], None] = lambda _: None) -> Played:
        """Play to the end of the last job. ``note`` receives each plan.

        Raises:
            UnplayableError: a job never starts under this policy.
        """
        self._moments = [(round(job.submit_s * 1000), 2, number, 0) for number, job in enumerate(self.jobs)]
        heapify(self._moments)
        now_ms = 0
        while self._moments:
            now_ms = self._moments[0][0]
            while self._moments and self._moments[0][0] == now_ms:
                self._happens(*heappop(self._moments))
            decided = self._decide(now_ms)
            self._note(now_ms)
            note(decided)
            is_timed = any(_TIMED & {reason.token for reason in one.verdict.reasons} for one in decided.waiting)
            if is_timed and not (self._moments and self._moments[0][0] <= now_ms + TICK_MS):
                heappush(self._moments, (now_ms + TICK_MS, 3, -1, 0))
            elif self._waiting and not self._moments:
                self._refuse(decided)
        return Played(
            self.started_s,
            self.finished_s,
            now_ms / 1000,
            self._num_events,
            self._num_racks,
            self._rows,
            self.work,
            self.interruptions,
            0,
        )

    def _refuse(self, decided: Plan) -> None:
        number = self._waiting[decided.waiting[0].job_id][0]
        more = f", and {len(self._waiting) - 1} more" if len(self._waiting) > 1 else ""
        job = self.jobs[number]
        message = (
            f"the job of {job.gpus} GPUs submitted at {job.submit_s:g} s never starts under this policy{more}: "
            f"{decided.waiting[0].why}"
        )
        raise UnplayableError(message)

    def _happens(self, now_ms: int, kind: int, number: int, attempt: int) -> None:
        """Handle an end (0), the end of a notice (1), or a submission (2); any other moment is only planned."""
        self._num_events += kind < 3
        if kind == 2:
            self._queue(number, now_ms)
        elif kind < 2 and number in self._running and self._attempts[number] == attempt:
            self._leaves(number, now_ms, is_reclaimed=kind == 1)

    def _leaves(self, number: int, now_ms: int, *, is_reclaimed: bool) -> None:
        one = self._running[number]
        if is_reclaimed and one.attempt_id not in self._reclaims:
            return  # withdrawn
        del self._running[number]
        held_s = (now_ms - one.started_ms) / 1000
        self.work.busy_s[number] += held_s
        self._work_gpu_ms[number] = self._work_gpu_ms.get(number, 0) + len(one.gpus) * (now_ms - one.started_ms)
        if not is_reclaimed:
            self.finished_s[number] = now_ms / 1000
            return
        self._losses.append(ReclaimLoss(one.tenant_id, len(one.gpus), now_ms))
        self.interruptions.append(Interruption(number, now_ms / 1000, Cause.RECLAIM, 0.0))
        self._left_s[number] = max(self._left_s[number] - held_s, 0.0)
        self._queue(number, now_ms)

    def _queue(self, number: int, now_ms: int) -> None:
        """Queue the job. An interrupted one keeps its place by its submission."""
        job, job_id = self.jobs[number], JobId(f"{number:06}")
        share = self._left_s[number] / job.duration_s if job.duration_s else 1.0
        wall_s, predicted_s = self.known.wall_times_s[number], self.known.predicted_s[number]
        self._waiting[job_id] = (
            number,
            WaitingJob(
                job_id,
                1,
                self._tiers[number],
                min(round(job.submit_s * 1000), now_ms),
                job.num_nodes,
                job.gpus_per_node,
                tenant_id=TenantId(job.tenant),
                preferred_level="rack" if self.nodes_per_rack is not None and job.num_nodes > 1 else None,
                expected_s=None if wall_s is None else wall_s * share,
                predicted_s=None if predicted_s is None else predicted_s * share,
            ),
        )

    def _decide(self, now_ms: int) -> Plan:
        state = FleetState(self._gpus(), self.policy, ("rack",) if self.nodes_per_rack is not None else ())
        decided = plan_on(state, [job for _, job in self._queued(now_ms)], self.policy, self._workload(now_ms))
        for withdrawal in decided.withdrawals:
            self._reclaims.pop(withdrawal.victim, None)
        for lapse in decided.lapses:
            gone = [one.victim for one in self._reclaims.values() if one.beneficiary == lapse.beneficiary]
            for victim in gone:
                del self._reclaims[victim]
        for reclaim in decided.reclaims:
            deadline_ms = now_ms + round(reclaim.notice_s * 1000)
            number = int(reclaim.victim.split("-")[0])
            self._reclaims[reclaim.victim] = StandingReclaim(
                reclaim.victim, reclaim.beneficiary, deadline_ms, reclaim.hold, reclaim.keeps
            )
            heappush(self._moments, (deadline_ms, 1, number, self._attempts[number]))
        for placed in decided.placements:
            self._start(placed.job_id, tuple(uuid for _, own in placed.parts for uuid in own), now_ms)
        for told in decided.waiting:  # the next cycle reads them, as in the control plane; a start clears them
            number, job = self._waiting[told.job_id]
            self._waiting[told.job_id] = number, replace(job, firm_start=told.firm_start, postponed=told.postponed)
        return decided

    def _queued(self, now_ms: int) -> Iterator[tuple[int, WaitingJob]]:
        """Yield the pending jobs, each with the work of later jobs of its tier."""
        work = dict(self._work_gpu_ms)
        for number, one in self._running.items():
            work[number] = work.get(number, 0) + len(one.gpus) * (now_ms - one.started_ms)
        for number, job in self._waiting.values():
            passed_ms = sum(done for other, done in work.items() if other > number and self._tiers[other] == job.tier)
            yield number, replace(job, overtaken_gpu_s=passed_ms / 1000)

    def _workload(self, now_ms: int) -> Workload:
        since_ms = now_ms - self.policy.reclaim.window_s * 1000
        held: dict[TenantId, int] = {}
        for one in self._running.values():
            held[one.tenant_id] = held.get(one.tenant_id, 0) + len(one.gpus)
        self._peaks = [one for one in self._peaks if one[0] > since_ms] + [(now_ms, *one) for one in held.items()]
        peaks: dict[TenantId, int] = {}
        for _, tenant, number in self._peaks:
            peaks[tenant] = max(peaks.get(tenant, 0), number)
        self._losses = [loss for loss in self._losses if loss.at_ms > since_ms]
        waiting = self._waiting.keys()
        self._reclaims = {name: one for name, one in self._reclaims.items() if one.beneficiary in waiting}
        return Workload(
            now_ms,
            tuple(self._running.values()),
            tuple(self._reclaims.values()),
            tuple(self._losses),
            peaks,
            self.tenancy,
        )

    def _gpus(self) -> list[GpuView]:
        held = {uuid for one in self._running.values() for uuid in one.gpus}
        found = []
        for node in range(self.num_nodes):
            name = f"{node:05}"
            path = () if self.nodes_per_rack is None else (f"{node // self.nodes_per_rack:05}",)
            for slot in range(self.gpus_per_node):
                uuid = GpuUuid(f"{name}-{slot}")
                facts = replace(_FIT, is_assigned=True) if uuid in held else _FIT
                found.append(GpuView(uuid, NodeId(name), slot, "one", facts, path))
        return found

    def _start(self, job_id: JobId, gpus: tuple[GpuUuid, ...], now_ms: int) -> None:
        number, job = self._waiting.pop(job_id)
        self._attempts[number] += 1
        if self._attempts[number] == 1:
            self.started_s[number] = now_ms / 1000
            if self.nodes_per_rack is not None:
                self._num_racks[number] = len({int(uuid.split("-")[0]) // self.nodes_per_rack for uuid in gpus})
        self._running[number] = RunningAttempt(
            AttemptId(f"{number:06}-{self._attempts[number]}"),
            job_id,
            job.tenant_id,
            job.tier,
            gpus,
            now_ms,
            saved_ms=now_ms,
            ends_ms=None if job.expected_s is None else now_ms + round(job.expected_s * 1000),
            predicted_ms=None
            if job.predicted_s is None or job.expected_s is not None
            else now_ms + round(job.predicted_s * 1000),
            requested=Shape(job.nodes, job.gpus_per_node),
        )
        run_ms = max(round(self._left_s[number] * 1000), 1)
        heappush(self._moments, (now_ms + run_ms, 0, number, self._attempts[number]))

    def _note(self, now_ms: int) -> None:
        """Record the state after the moment as ``course.MOMENT`` has it."""
        used: dict[str, int] = {}
        for one in self._running.values():
            for uuid in one.gpus:
                node = uuid.split("-")[0]
                used[node] = used.get(node, 0) + 1
        free = self.num_nodes * self.gpus_per_node - sum(used.values())
        scattered = sum(self.gpus_per_node - number for number in used.values())
        broken = 0
        if self.nodes_per_rack is not None:
            racks = {int(node) // self.nodes_per_rack for node in used}
            nodes = sum(min(self.nodes_per_rack, self.num_nodes - rack * self.nodes_per_rack) for rack in racks)
            broken = (nodes - len(used)) * self.gpus_per_node
        self._rows.extend((now_ms / 1000, len(self._waiting), free, scattered, 0, broken))
