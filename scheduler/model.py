"""The planner's input and output: plain frozen data, times in milliseconds, no rows and no clock."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from health.standing.admission import AdmissionFacts
from muster.domain.ids import AttemptId, GpuUuid, JobId, NodeId, TenantId
from muster.domain.job.plan_texts import Tense
from muster.domain.job.wait_reasons import WaitReason
from muster.domain.policy.document import Policy
from scheduler.quota.tenancy import Tenancy
from scheduler.solve.placement_rule import ANYWHERE, Labels, PlacementRule

DEFAULT_LEVELS: Final = ("rack",)
"""Named levels of the tree, widest first. The fleet above them and the node below them are always there."""

NO_TENANT: Final = TenantId("")

Parts = tuple[tuple[NodeId, tuple[GpuUuid, ...]], ...]
"""The GPUs of each node, in rank order."""


@dataclass(frozen=True, slots=True)
class GpuView:
    """One GPU as the planner sees it.

    ``path``: the names of the node's domains, one a level, widest first; an empty name is an unknown place.
    ``health_cost``: failures that are expected in 1,000,000 hours beyond a sound GPU's. Gangs avoid it, small spot jobs
    prefer it. ``labels``: the node's.
    """

    uuid: GpuUuid
    node_id: NodeId
    slot_index: int
    cohort_key: str
    facts: AdmissionFacts
    path: tuple[str, ...] = ()
    health_cost: int = 0
    labels: Labels = ()


@dataclass(frozen=True, slots=True)
class FirmStart:
    """A firm start: the job starts by ``latest_ms``. ``gpus``: the place that is held for it.

    ``is_guaranteed``: its tenant was within its guarantee at the job's last turn, so it goes before other jobs.
    """

    latest_ms: int
    gpus: tuple[GpuUuid, ...]
    is_guaranteed: bool = False


@dataclass(frozen=True, slots=True)
class Postponed:
    """A firm start that was postponed, and why."""

    latest_ms: int
    why: str


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """One pending job.

    ``keep``: the parts of the last attempt, whose good GPUs the next one should take again, rank by rank.
    ``min_nodes``, ``max_nodes``: the range of an elastic job around the ``nodes`` that it requests; None: that number
    alone. ``expected_s``: its wall time, None if it states none; an attempt runs no longer. ``predicted_s``: for a job
    without a wall time, the run time of others of its ``name`` and shape; it may run longer. ``overtaken_gpu_s``:
    GPU-seconds of later jobs of its tier that ran while it was pending (overtaken work). ``interrupted_ms``: when a
    fault or maintenance ended its last attempt; None if something else did. ``firm_start``: of the newest cycle;
    ``postponed``: the last firm start that was. ``bundle_holders``: nodes with a copy of its bundle, which are taken
    before equal ones.
    """

    job_id: JobId
    version: int
    tier: str
    queued_ms: int
    nodes: int
    gpus_per_node: int
    avoid_nodes: frozenset[NodeId] = frozenset()
    tenant_id: TenantId = NO_TENANT
    required_level: str | None = None
    preferred_level: str | None = None
    keep: Parts = ()
    min_nodes: int | None = None
    max_nodes: int | None = None
    expected_s: float | None = None
    overtaken_gpu_s: float = 0.0
    rule: PlacementRule = ANYWHERE
    interrupted_ms: int | None = None
    predicted_s: float | None = None
    name: str = ""
    firm_start: FirmStart | None = None
    postponed: Postponed | None = None
    bundle_holders: frozenset[NodeId] = frozenset()

    @property
    def expected_run_s(self) -> float | None:
        """The wall time, else the predicted run time; None if neither is known."""
        return self.predicted_s if self.expected_s is None else self.expected_s

    @property
    def fewest_nodes(self) -> int:
        return self.nodes if self.min_nodes is None else self.min_nodes

    @property
    def most_nodes(self) -> int:
        return self.nodes if self.max_nodes is None else self.max_nodes

    @property
    def fewest_gpus(self) -> int:
        return self.fewest_nodes * self.gpus_per_node


@dataclass(frozen=True, slots=True)
class ElasticGang:
    """The growth that an elastic attempt allows: its parts in rank order, the most hosts, and where they may be.

    ``avoid_nodes``: nodes at fault in its job's last attempts; its next attempt would not be placed on them.
    """

    parts: Parts
    min_nodes: int
    max_nodes: int
    gpus_per_node: int
    required_level: str | None = None
    preferred_level: str | None = None
    avoid_nodes: frozenset[NodeId] = frozenset()
    rule: PlacementRule = ANYWHERE


@dataclass(frozen=True, slots=True)
class Shape:
    """A request that other jobs are likely to make too. ``required``: the level of its home."""

    nodes: int
    gpus_per_node: int
    required: str | None = None

    @property
    def key(self) -> tuple[int, int, str]:
        """The sort key of shapes."""
        return self.nodes, self.gpus_per_node, self.required or ""


@dataclass(frozen=True, slots=True)
class RunningAttempt:
    """A live attempt. ``elastic``: set only if it may have another number of hosts than it has.

    ``saved_ms`` is when its newest durable checkpoint was made. ``ends_ms`` is the latest time at which it ends for
    certain: its wall time, or the deadline of a stop request (then ``is_stopping``). ``predicted_ms`` is when others
    like it would end, if it states no wall time: holds use it, and no attempt is stopped by it. ``requested``: the
    shape that its job requested; None if unknown.
    """

    attempt_id: AttemptId
    job_id: JobId
    tenant_id: TenantId
    tier: str
    gpus: tuple[GpuUuid, ...]
    started_ms: int
    saved_ms: int | None = None
    ends_ms: int | None = None
    is_stopping: bool = False
    elastic: ElasticGang | None = None
    predicted_ms: int | None = None
    requested: Shape | None = None


@dataclass(frozen=True, slots=True)
class StandingReclaim:
    """A reclaim that was committed and whose beneficiary is still pending, whether or not its victim has ended by now.

    ``hold`` are the GPUs on which the beneficiary will run; no other job may take them. ``keeps``: the GPUs with which
    an elastic victim continues; it gives only the others. ``is_delivered``: a host of the victim has received the
    notice, so the victim leaves in any case.
    """

    victim: AttemptId
    beneficiary: JobId
    deadline_ms: int
    hold: tuple[GpuUuid, ...]
    keeps: tuple[GpuUuid, ...] = ()
    is_delivered: bool = False


@dataclass(frozen=True, slots=True)
class ResumeHold:
    """GPUs kept for one job: it changes its size, or it was interrupted.

    They are its own and the GPUs that it grows by; for an interrupted job, the GPUs that it had. No other job takes
    them. Once the job has no attempt, no other job takes the quota that they need of ``tenant_id`` in ``tier`` either,
    though the job may be in no queue yet.
    """

    job_id: JobId
    gpus: tuple[GpuUuid, ...]
    tenant_id: TenantId = NO_TENANT
    tier: str = ""


@dataclass(frozen=True, slots=True)
class ReclaimLoss:
    """GPUs that a tenant lost to a completed reclaim; standing reclaims are counted separately."""

    tenant_id: TenantId
    num_gpus: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class Workload:
    """Running attempts, holds, quotas and planned work, in addition to the fleet and the queue.

    ``peak_gpus``: the most GPUs that a tenant had in the reclaim window. ``tenancy``: the tree of tenants, with quotas
    (I6) and past usage. ``maintenance_starts``: the time from which planned work needs a node without jobs.
    ``maintenance_ends``: the time at which the work is over, if nothing else keeps the node cordoned; start
    forecasts use it. ``cleaning``: GPUs whose attempt has ended, and that are being proved clean. ``may_grow``: at
    least one attempt may grow, by size and dwell. ``others_wait``: jobs outside the queue wait for their own GPUs;
    then no job gets more than it requests. ``NO_WORKLOAD`` has none of it.
    """

    now_ms: int
    running: tuple[RunningAttempt, ...] = ()
    reclaims: tuple[StandingReclaim, ...] = ()
    losses: tuple[ReclaimLoss, ...] = ()
    peak_gpus: Mapping[TenantId, int] = field(default_factory=dict)
    tenancy: Tenancy = field(default_factory=Tenancy)
    holds: tuple[ResumeHold, ...] = ()
    cleaning: tuple[GpuUuid, ...] = ()
    may_grow: bool = True
    others_wait: bool = False
    maintenance_starts: Mapping[NodeId, int] = field(default_factory=dict)
    maintenance_ends: Mapping[NodeId, int] = field(default_factory=dict)
    failures_per_gpu_hour: float = 0.0


NO_WORKLOAD: Final = Workload(now_ms=0, tenancy=Tenancy())
"""No attempt, hold, quota or planned work: a plan by fleet and queue alone. No wait counts at its time."""


@dataclass(frozen=True, slots=True)
class Swap:
    """The continuation of an interrupted attempt: what it keeps, and by rank which host replaces another.

    ``kept_nodes`` 0: nothing of it was kept, and the whole gang was placed again. ``resized``: set if it continues with
    another number of hosts. Then it keeps hosts, not ranks, and no host replaces another.
    """

    kept_nodes: int
    kept_gpus: int
    replaced: tuple[tuple[NodeId, NodeId], ...] = ()
    resized: "Resized | None" = None


@dataclass(frozen=True, slots=True)
class Resized:
    """A change of the number of hosts.

    ``left``: hosts of the last attempt that it no longer has; ``joined``: hosts that are new to it; in rank order.
    """

    from_nodes: int
    to_nodes: int
    left: tuple[NodeId, ...]
    joined: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """One gang: the GPUs of each node, in node rank order. ``swap``: set if its job's last attempt was interrupted."""

    job_id: JobId
    version: int
    parts: Parts
    swap: Swap | None = None


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason for which a job is pending.

    ``num_gpus``, ``num_hosts``: how many a filter excludes, or how many the reason is about; None if it counts nothing.
    ``num_hosts`` of a filter: hosts that could give one host's part before it, and cannot after it.
    """

    token: WaitReason
    num_gpus: int | None = None
    num_hosts: int | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The reason why a job is pending: as text, as the token that binds, and all reasons in their order.

    ``why_conditional``: the text for a plan that is only asked for; None: the same text.
    """

    why: str
    binding: WaitReason
    reasons: tuple[Reason, ...] = ()
    why_conditional: str | None = None

    def in_tense(self, tense: Tense) -> str:
        return self.why if tense is Tense.DONE or self.why_conditional is None else self.why_conditional


class Turn(IntEnum):
    """Turns within a tier, first to last. ``PASSED``: enough work overtook the job, whatever its tenant has."""

    GUARANTEED = 0
    PASSED = 1
    UNDER = 2
    OVER = 3


@dataclass(frozen=True, slots=True)
class Waiting:
    """A pending job with its verdict. ``turn``: the turn within its tier in which it was tried.

    ``firm_start``: if its start is firm; ``postponed``: the last firm start that was.
    """

    job_id: JobId
    verdict: Verdict
    turn: Turn = Turn.UNDER
    firm_start: FirmStart | None = None
    postponed: Postponed | None = None

    @property
    def why(self) -> str:
        return self.verdict.why


@dataclass(frozen=True, slots=True)
class Hold:
    """A backfill hold: ``gpus`` on which a pending job will start at about ``until_ms``.

    ``num_free`` of them are idle until then. ``num_before``: how many earlier jobs have places on some of them until
    then. ``is_by_reclaim``: not all of them become free by themselves by then; the others may be reclaimed.
    ``num_in_maintenance``: on how many of its hosts planned work ends by then, whether it has begun or not.
    ``latest_ms``: the latest start if that is firm, else None.
    """

    job_id: JobId
    gpus: tuple[GpuUuid, ...]
    num_free: int
    until_ms: int
    num_before: int = 0
    is_by_reclaim: bool = False
    num_in_maintenance: int = 0
    latest_ms: int | None = None


@dataclass(frozen=True, slots=True)
class RunnerUp:
    """The next best victim set, which shows a person the alternative to the choice."""

    victims: tuple[AttemptId, ...]
    cost_gpu_s: float


@dataclass(frozen=True, slots=True)
class Reclaim:
    """A reclaim of ``gpus`` from ``victim`` after ``notice_s``, for ``beneficiary``, which will run on ``hold``.

    ``cost_gpu_s``: GPU-seconds that the victim loses: since its newest durable checkpoint, and to start again.
    ``keeps``: whole hosts, in rank order, with which an elastic victim's job continues; empty: it gives all that it
    has.
    """

    victim: AttemptId
    beneficiary: JobId
    notice_s: float
    gpus: tuple[GpuUuid, ...]
    hold: tuple[GpuUuid, ...]
    cost_gpu_s: float
    runner_up: RunnerUp | None = None
    keeps: tuple[GpuUuid, ...] = ()


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """The end of a reclaim that is no longer needed and whose notice no host has received: ``victim`` continues."""

    victim: AttemptId
    beneficiary: JobId
    why: str


@dataclass(frozen=True, slots=True)
class Lapse:
    """The end of the hold for ``beneficiary``, whether or not a victim is left that can continue."""

    beneficiary: JobId
    why: str


@dataclass(frozen=True, slots=True)
class Growth:
    """An order that ``attempt_id`` saves and leaves, so that its job continues on ``parts``, which are more."""

    attempt_id: AttemptId
    job_id: JobId
    from_nodes: int
    parts: Parts


@dataclass(frozen=True, slots=True)
class Plan:
    """The decisions of one cycle.

    ``examined_until``: where the next cycle continues to examine (``scheduler.queue.examination``); 0: at the head.
    ``spares``: idle GPUs that are kept as spares, at the cycle's end.
    """

    placements: tuple[Placement, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    reclaims: tuple[Reclaim, ...] = ()
    withdrawals: tuple[Withdrawal, ...] = ()
    lapses: tuple[Lapse, ...] = ()
    growths: tuple[Growth, ...] = ()
    holds: tuple[Hold, ...] = ()
    examined_until: int = 0
    spares: tuple[GpuUuid, ...] = ()


@dataclass(frozen=True, slots=True)
class Question:
    """The input of one cycle: policy, fleet, queue and running attempts of one moment."""

    policy: Policy
    gpus: list[GpuView]
    queue: list[WaitingJob]
    workload: Workload


@dataclass(frozen=True, slots=True)
class StartRange:
    """The range in which a job is expected to start. ``latest_ms``: None if unknown."""

    earliest_ms: int
    latest_ms: int | None
