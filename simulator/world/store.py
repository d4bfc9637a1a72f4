"""The database in memory: rows, versions by identity, and the rules that the real one enforces by index and trigger."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from health.standing.breaker import BreakerState
from health.standing.gpu_case import GpuCase
from muster.domain.evidence.findings import Evidence
from muster.domain.ids import AttemptId, Fence, GpuUuid, JobId, NodeId, compose_fence
from muster.domain.lifecycle.attempt import part_of
from muster.domain.lifecycle.contact import LastContact
from muster.domain.lifecycle.model import AttemptLifecycle, JobLifecycle
from muster.domain.state_sets import ENDED_PARTS, JOBS_THAT_WAIT_FOR_GPUS
from muster.domain.states import (
    ALLOCATION_EDGES,
    ATTEMPT_EDGES,
    HOST_PART_EDGES,
    JOB_EDGES,
    TERMINAL_JOB_STATES,
    AllocationState,
    AttemptState,
    HostPartState,
    JobState,
    require_edge,
)
from scheduler.model import FirmStart, GpuView, Postponed
from simulator.planning.keeping import Kept
from simulator.planning.rules import RANDOM_RULES, Rules, Window
from simulator.world.gpu_times import GpuTimes
from simulator.world.notices import Notices
from simulator.world.places import fault_of_place, over_quota
from simulator.world.rows import JobRow as JobRow  # noqa: PLC0414  # who asks the store has its rows from here
from simulator.world.rows import Notice as Notice  # noqa: PLC0414
from simulator.world.truth import Truth, require

PLACED: Final = "the job that it was for has been placed"
_CLEAN, _ENDED = HostPartState.CLEAN, AttemptState.ENDED
_NOT_STARTED = frozenset({HostPartState.UNCLAIMED, HostPartState.CLAIMED})


@dataclass(slots=True)
class Store:
    truth: Truth
    gpus: dict[NodeId, tuple[GpuUuid, ...]]
    is_admitted: dict[GpuUuid, bool]
    ceiling_gpus: int
    cases: dict[GpuUuid, GpuCase] = field(default_factory=dict)
    breaker: BreakerState = field(default_factory=BreakerState)
    is_out: set[GpuUuid] = field(default_factory=set)
    node_evidence: dict[NodeId, tuple[Evidence, ...]] = field(default_factory=dict)
    nodes_on_hold: set[NodeId] = field(default_factory=set)
    notices: Notices = field(default_factory=Notices)
    rows: dict[JobId, JobRow] = field(default_factory=dict)
    job_of_key: dict[str, JobId] = field(default_factory=dict)
    jobs: dict[JobId, JobLifecycle] = field(default_factory=dict)
    attempts: dict[AttemptId, AttemptLifecycle] = field(default_factory=dict)
    live_of_job: dict[JobId, AttemptId] = field(default_factory=dict)
    allocated: dict[AttemptId, Mapping[NodeId, tuple[GpuUuid, ...]]] = field(default_factory=dict)
    allocation_states: dict[AttemptId, AllocationState] = field(default_factory=dict)
    holders: dict[GpuUuid, AttemptId] = field(default_factory=dict)
    hold_of: dict[GpuUuid, JobId] = field(default_factory=dict)
    kept: Kept = field(default_factory=Kept)
    hearings: dict[NodeId, LastContact] = field(default_factory=dict)
    known_boots: set[str] = field(default_factory=set)
    open_on: dict[NodeId, dict[AttemptId, None]] = field(default_factory=dict)
    open_attempts: dict[AttemptId, None] = field(default_factory=dict)
    usage_counts: dict[tuple[AttemptId, GpuUuid], int] = field(default_factory=dict)
    serial: int = 0
    rules: Rules = RANDOM_RULES
    clock: Callable[[], int] = int
    submitted_ms: dict[JobId, int] = field(default_factory=dict)
    saved_ms: dict[JobId, int] = field(default_factory=dict)
    ended_ms: dict[AttemptId, int] = field(default_factory=dict)
    attempts_of: dict[JobId, list[AttemptId]] = field(default_factory=dict)
    views: dict[GpuUuid, GpuView] = field(default_factory=dict)
    firm_starts: dict[JobId, tuple[FirmStart | None, Postponed | None]] = field(default_factory=dict)
    num_changes: int = 0
    times: GpuTimes = field(init=False)
    is_calm: bool = False
    """People keep everything in service: there is no planned work, and every GPU that a rule doubts is admitted."""

    def __post_init__(self) -> None:
        self.times = GpuTimes(self.clock)

    def next_fence(self) -> Fence:
        self.serial += 1
        return compose_fence(1, self.serial)

    def put_job(self, life: JobLifecycle) -> None:
        before = self.jobs.get(life.job_id)
        if before is not None and before.state is not life.state:
            require_edge(JOB_EDGES, before.state, life.state)
        if before is not None and before.state in TERMINAL_JOB_STATES:
            require(life == before, "I21", f"{life.job_id} changes after its end")
        self.num_changes += before is None or before.state is not life.state
        self.jobs[life.job_id] = life
        if life.state is not JobState.QUEUED:
            self.firm_starts.pop(life.job_id, None)
        if life.state in TERMINAL_JOB_STATES or life.state is JobState.HELD:
            self.let_go(life.job_id, "the job that it was for is no longer pending")

    def hold(self, job_id: JobId, gpus: Iterable[GpuUuid]) -> None:
        """Hold GPUs for a job that changes its size, or the reclaimed GPUs for a pending one."""
        self.num_changes += 1
        self.hold_of.update({gpu: job_id for gpu in gpus if gpu not in self.hold_of})

    def hold_alone(self, job_id: JobId, gpus: Collection[GpuUuid]) -> None:
        """Hold these GPUs, and release all others that the job keeps since it was interrupted."""
        rest = {gpu for gpu, holder in self.hold_of.items() if holder == job_id}.difference(gpus)
        self.hold_of = {gpu: holder for gpu, holder in self.hold_of.items() if gpu not in rest}
        self.kept.forget(job_id, rest)
        self.hold(job_id, gpus)

    def let_go(self, job_id: JobId, why: str) -> None:
        """End the hold of the job. Reclaims of victims without an order yet may then be withdrawn."""
        self.num_changes += 1
        self.hold_of = {gpu: holder for gpu, holder in self.hold_of.items() if holder != job_id}
        self.kept.forget(job_id)
        self.notices.end_hold(job_id, why)

    def insert_attempt(self, life: AttemptLifecycle, picks: Mapping[NodeId, tuple[GpuUuid, ...]]) -> None:
        """Insert an attempt with I1, I2, I5 as unique indexes; the caller, which has the clock, checks I3."""
        row = self.rows[life.job_id]
        require(life.job_id not in self.live_of_job, "I2", f"{life.job_id} has a live attempt already")
        is_whole = len(life.hosts) == len(picks) and all(len(part) == row.gpus_per_node for part in picks.values())
        require(is_whole, "I5", f"{life.attempt_id} is placed in part: {picks}")
        is_a_size = row.min_nodes <= len(picks) <= row.most_nodes
        require(is_a_size, "I5", f"{life.attempt_id} has {len(picks)} hosts, of {row.min_nodes} to {row.most_nodes}")
        fault = fault_of_place(self.rules, row, list(picks))
        require(fault is None, *(fault or ("", "")))
        self.kept.require_own(life.job_id, [gpu for part in picks.values() for gpu in part])
        self.truth.placed(life.job_id, life.fence)
        self.attempts[life.attempt_id] = life
        self.live_of_job[life.job_id] = life.attempt_id
        self.allocated[life.attempt_id] = picks
        self.allocation_states[life.attempt_id] = AllocationState.ASSIGNED
        self.open_attempts[life.attempt_id] = None
        for node_id, part in picks.items():
            self.open_on[node_id][life.attempt_id] = None
            for gpu in part:
                require(gpu not in self.holders, "I1", f"{gpu} is held by {self.holders.get(gpu)} already")
                holder = self.hold_of.get(gpu, life.job_id)
                require(holder == life.job_id, "hold", f"{gpu} is held for {holder}, and {life.job_id} takes it")
                self.holders[gpu] = life.attempt_id
        self.times.placed(life.attempt_id, picks)
        held = self.num_assigned(row.tenant)
        require(held <= self.ceiling_gpus, "I6", f"{row.tenant} holds {held} GPUs, of {self.ceiling_gpus} at most")
        over = over_quota(self.rules, self.assigned_by_tenant_and_tier(), row)
        require(over is None, "I6", f"with {life.attempt_id}, {over}")
        self.attempts_of.setdefault(life.job_id, []).append(life.attempt_id)
        self._note_holdings(row.tenant)
        self.let_go(life.job_id, PLACED)

    def num_assigned(self, tenant: str) -> int:
        """Return the GPUs of the tenant's attempts, with the ones that are being cleaned."""
        return sum(self.rows[self.attempts[holder].job_id].tenant == tenant for holder in self.holders.values())

    def assigned_by_tenant_and_tier(self) -> dict[tuple[str, str], int]:
        held: dict[tuple[str, str], int] = {}
        for attempt_id in self.holders.values():
            row = self.rows[self.attempts[attempt_id].job_id]
            held[row.tenant, row.tier] = held.get((row.tenant, row.tier), 0) + 1
        return held

    def kept_alongside(self, job_id: JobId) -> list[tuple[str, str]]:
        """Return tenant and tier of each GPU that is held for another pending job and not in use by that job."""
        found = []
        for gpu, waiting in self.hold_of.items():
            holder = self.holders.get(gpu)
            is_its_own = holder is not None and self.attempts[holder].job_id == waiting
            if waiting != job_id and self.jobs[waiting].state in JOBS_THAT_WAIT_FOR_GPUS and not is_its_own:
                found.append((self.rows[waiting].tenant, self.rows[waiting].tier))
        return found

    def windows(self) -> list[Window]:
        """Return planned work that is known by now and not over."""
        if self.is_calm:
            return []
        now_ms = self.clock()
        return [one for one in self.rules.windows if one.declared_ms <= now_ms < one.until_ms]

    def started_ms(self, life: AttemptLifecycle) -> int | None:
        """Return when the last of its hosts had started; None: not yet."""
        if life.wall_deadline_ms is None or life.wall_time_ms is None:
            return None
        return life.wall_deadline_ms - life.wall_time_ms

    def ran_ms(self, life: AttemptLifecycle, at_ms: int) -> int:
        started_ms = self.started_ms(life)
        return 0 if started_ms is None else max(at_ms - started_ms, 0)

    def put_notice(self, life: AttemptLifecycle, notice: Notice) -> None:
        row = self.rows[life.job_id]
        require(row.notice_ms is not None, "I7", f"{life.attempt_id} is reclaimed, of a tier that no rule takes back")
        ran_ms, told_ms = self.ran_ms(life, notice.committed_ms), notice.deadline_ms - notice.committed_ms
        require(ran_ms >= row.min_run_ms, "I9", f"{life.attempt_id} is reclaimed after it ran for {ran_ms} ms")
        least_ms = row.notice_ms or 0
        require(
            told_ms >= least_ms, "I8", f"{life.attempt_id} has {told_ms} ms to leave, and its tier gives {least_ms}"
        )
        self.num_changes += 1
        self.notices.give(life.attempt_id, row.tenant, notice)
        if self.rules.is_planned:
            sizes = [
                sum(map(len, self.allocated[one].values()))
                for job_id, one in self.live_of_job.items()
                if self.rows[job_id].tenant == row.tenant
            ]
            self.notices.require_within_cap(row.tenant, notice.committed_ms, min(sizes), self.rules.policy.reclaim)

    def _note_holdings(self, tenant: str) -> None:
        """Record the tenant's GPUs in allocations that are not released yet, for the cap of I9."""
        lives = (self.attempts[attempt_id] for attempt_id in self.open_attempts)
        own = [life.attempt_id for life in lives if self.rows[life.job_id].tenant == tenant]
        held = sum(len(part) for attempt_id in own for part in self.allocated[attempt_id].values())
        self.notices.note_holdings(tenant, self.clock(), held)

    def newest_of(
        self, life: AttemptLifecycle, fence: Fence, boot_id: str, node_id: NodeId
    ) -> tuple[AttemptLifecycle, Fence, str, NodeId]:
        """Treat the report of an old attempt as one of the job's live attempt, for a planted bug."""
        live = self.attempts.get(self.live_of_job.get(life.job_id, life.attempt_id), life)
        if live is life:
            return life, fence, boot_id, node_id
        part = part_of(live, node_id) or live.hosts[0]
        return live, live.fence, part.boot_id or boot_id, part.node_id

    def put_attempt(self, after: AttemptLifecycle) -> None:
        """Store one attempt's row and its hosts' rows, with the checks of the database and of the invariants."""
        before = self.attempts[after.attempt_id]
        if before.state is not after.state:
            require_edge(ATTEMPT_EDGES, before.state, after.state)
        if before.ending is not None:
            require(after.ending == before.ending, "I21", f"{after.attempt_id}: its cause changes")
        if before.stop is not None:
            is_kept = after.stop is not None and after.stop.deadline_ms <= before.stop.deadline_ms
            require(is_kept, "I8", f"{after.attempt_id}: its stop deadline is dropped or lengthened")
        if after.hosts is not before.hosts:
            self._put_parts(before, after)
        if after.state is AttemptState.CLAIMING:
            is_waiting = any(part.state in _NOT_STARTED for part in after.hosts)
            require(is_waiting, "I21", f"{after.attempt_id} has started everywhere and is not RUNNING")
        self.num_changes += before.stop != after.stop
        self.attempts[after.attempt_id] = after
        self.times.changed(before, after)
        if after.state is _ENDED and before.state is not _ENDED:
            self.ended_ms[after.attempt_id] = self.clock()
            self.notices.settle(after, self.clock())
            del self.live_of_job[after.job_id]
            self._move_allocation(after.attempt_id, AllocationState.CLEANING)
            if self.rules.is_planned:
                self.kept.note(after, self.allocated[after.attempt_id], self.hold_of)
        if after.state is _ENDED:
            self._release(after)

    def _put_parts(self, before: AttemptLifecycle, after: AttemptLifecycle) -> None:
        for old, new in zip(before.hosts, after.hosts, strict=True):
            if old.state is new.state:
                continue
            require_edge(HOST_PART_EDGES, old.state, new.state)
            place = (after.attempt_id, new.node_id)
            if new.state in ENDED_PARTS:
                require(not self.truth.runs(place), "I14", f"{place} is {new.state} at the server and runs on its host")
            if new.state is _CLEAN:
                require(place not in self.truth.present, "I22", f"{place} is clean at the server, not on its host")
                self.open_on[new.node_id].pop(after.attempt_id, None)

    def _release(self, life: AttemptLifecycle) -> None:
        clean = [part.node_id for part in life.hosts if part.state is _CLEAN]
        for node_id in clean:
            for gpu in self.allocated[life.attempt_id][node_id]:
                if self.holders.get(gpu) == life.attempt_id:
                    self._free(gpu)
        if len(clean) == len(life.hosts) and life.attempt_id in self.open_attempts:
            self._move_allocation(life.attempt_id, AllocationState.RELEASED)
            del self.open_attempts[life.attempt_id]
            self._note_holdings(self.rows[life.job_id].tenant)

    def _free(self, gpu: GpuUuid) -> None:
        user = self.truth.user_of.get(gpu)
        require(user is None, "I22", f"{gpu} is freed while {user} uses it")
        self.times.freed(self.holders.pop(gpu), gpu)
        self.num_changes += 1

    def _move_allocation(self, attempt_id: AttemptId, state: AllocationState) -> None:
        require_edge(ALLOCATION_EDGES, self.allocation_states[attempt_id], state)
        self.allocation_states[attempt_id] = state

    def count_usage(self, attempt_id: AttemptId) -> None:
        for part in self.allocated[attempt_id].values():
            for gpu in part:
                count = self.usage_counts[attempt_id, gpu] = self.usage_counts.get((attempt_id, gpu), 0) + 1
                require(count == 1, "I23", f"{attempt_id} on {gpu} is counted {count} times")

    def require_lease_may_end(
        self, before: AttemptLifecycle, after: AttemptLifecycle, up_ms: int, no_expiry_ms: int
    ) -> None:
        """Require R15: silence alone ends no lease soon after the control plane's own start."""
        ended_before = {part.node_id for part in before.hosts if part.is_past_lease}
        newly_ended = {part.node_id for part in after.hosts if part.is_past_lease} - ended_before
        if newly_ended:
            require(
                up_ms >= no_expiry_ms,
                "R15",
                f"a lease of {after.attempt_id} ends by silence {up_ms} ms after the server's start",
            )

    def is_at_rest(self) -> bool:
        """Return whether every job has ended (or is HELD), and no GPU is in use or on hold."""
        at_rest = TERMINAL_JOB_STATES | {JobState.HELD}
        is_any_held = bool(self.open_attempts or self.holders or self.hold_of or self.notices.holds())
        return not is_any_held and all(life.state in at_rest for life in self.jobs.values())
