"""What the planner is given and what it answers: plain frozen data, times in milliseconds, no rows and no clock."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from health.standing.admission import AdmissionFacts
from muster.domain.ids import AttemptId, GpuUuid, JobId, NodeId, TenantId
from muster.domain.job.plan_words import Mood
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
    """``path``: the names of the node's domains, one a level, widest first; an empty name is an unknown place.

    ``health_cost``: failures that are expected in 1,000,000 hours beyond those of a sound GPU. Gangs avoid it, small
    spot jobs seek it. ``labels``: the node's.
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
class WaitingJob:
    """``keep``: the parts of the last attempt, whose good GPUs the next one should take again, rank by rank.

    ``min_nodes``, ``max_nodes``: of an elastic job, around the ``nodes`` that it wishes for; None: no others.
    ``expected_s``: its wall time, where it says one: an attempt runs no longer. ``predicted_s``: where it says none,
    what others of its ``name`` and shape took: it may run longer. ``passed_gpu_s``: GPU-seconds that jobs
    of its tier have run for which came later. ``interrupted_ms``: when a fault or maintenance ended its last attempt;
    None where something else did.
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
    passed_gpu_s: float = 0.0
    rule: PlacementRule = ANYWHERE
    interrupted_ms: int | None = None
    predicted_s: float | None = None
    name: str = ""

    @property
    def believed_s(self) -> float | None:
        """None: nobody knows."""
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
    """What an attempt of an elastic job may grow by: its parts in rank order, the most hosts, and where they may be.

    ``avoid_nodes``: at fault in its job's last attempts, so that the next one would not be placed on them.
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
    """What a job asks for that others are likely to ask for too. ``required``: the level of its home."""

    nodes: int
    gpus_per_node: int
    required: str | None = None

    @property
    def key(self) -> tuple[int, int, str]:
        """By which shapes are put in order."""
        return self.nodes, self.gpus_per_node, self.required or ""


@dataclass(frozen=True, slots=True)
class RunningAttempt:
    """A live attempt. ``elastic``: only of one that may have another number of hosts than it has.

    ``saved_ms`` is when its newest durable checkpoint was made; ``ends_ms`` when it ends for certain at the latest:
    its wall time, or the deadline of a stop request (then ``is_stopping``); ``predicted_ms`` when others like it would,
    where it says no wall time: holds go by it, and nobody is stopped by it. ``asked``: what its job asked for; None:
    nobody says.
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
    asked: Shape | None = None


@dataclass(frozen=True, slots=True)
class StandingReclaim:
    """A reclaim that was committed and whose beneficiary still waits, whether or not its victim has ended by now.

    ``held`` are the GPUs on which the beneficiary will run; nobody else may take them. ``keeps``: those with which an
    elastic victim goes on; it gives the others alone.
    """

    victim: AttemptId
    beneficiary: JobId
    deadline_ms: int
    held: tuple[GpuUuid, ...]
    keeps: tuple[GpuUuid, ...] = ()


@dataclass(frozen=True, slots=True)
class OwnHold:
    """GPUs on which a job will go on that changes its size, its own and what it grows by, or that was interrupted, with
    those that it had. Nobody else takes them, nor, once it has no attempt, what they need of the quotas of
    ``tenant_id`` in ``tier``, though it may be in no queue yet.
    """

    job_id: JobId
    gpus: tuple[GpuUuid, ...]
    tenant_id: TenantId = NO_TENANT
    tier: str = ""


@dataclass(frozen=True, slots=True)
class ReclaimLoss:
    """GPUs that a tenant has lost to a reclaim that is over; those that still stand are counted by themselves."""

    tenant_id: TenantId
    num_gpus: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class Workload:
    """What runs and what is promised, beside the fleet and the queue.

    ``peak_gpus``: the most GPUs that a tenant held in the reclaim window; ``tenancy``: the tree of tenants, with quotas
    (I6) and past usage. ``closings``: from when on nobody shall be on a node, for planned work; ``reopenings``: when
    the work is over, and nothing else keeps the node cordoned: by them starts are foreseen. ``cleaning``: GPUs whose
    attempt has ended, and that are being proved clean. ``may_grow``: somebody may, by size and dwell.
    ``others_wait``: beside the queue, for their own GPUs; nobody has more than its wish then. Without a workload the
    planner neither reclaims, nor lets anybody grow, nor knows of quotas.
    """

    now_ms: int
    running: tuple[RunningAttempt, ...] = ()
    reclaims: tuple[StandingReclaim, ...] = ()
    losses: tuple[ReclaimLoss, ...] = ()
    peak_gpus: Mapping[TenantId, int] = field(default_factory=dict)
    tenancy: Tenancy = field(default_factory=Tenancy)
    holds: tuple[OwnHold, ...] = ()
    cleaning: tuple[GpuUuid, ...] = ()
    may_grow: bool = True
    others_wait: bool = False
    closings: Mapping[NodeId, int] = field(default_factory=dict)
    reopenings: Mapping[NodeId, int] = field(default_factory=dict)
    failures_per_gpu_hour: float = 0.0


@dataclass(frozen=True, slots=True)
class Swap:
    """How an attempt that was interrupted goes on: what it keeps, and by rank which host takes another's place.

    ``kept_nodes`` 0: nothing of it was kept; the whole gang was placed anew. ``resized``: of one that goes on with
    another number of hosts: it keeps hosts, not ranks, and none takes another's place.
    """

    kept_nodes: int
    kept_gpus: int
    replaced: tuple[tuple[NodeId, NodeId], ...] = ()
    resized: "Resized | None" = None


@dataclass(frozen=True, slots=True)
class Resized:
    """``left``: hosts of the last attempt that it is without, ``joined``: those that are new to it; in rank order."""

    from_nodes: int
    to_nodes: int
    left: tuple[NodeId, ...]
    joined: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """One gang: the GPUs of each node, in node rank order. ``swap``: of a job whose last attempt was interrupted."""

    job_id: JobId
    version: int
    parts: Parts
    swap: Swap | None = None


@dataclass(frozen=True, slots=True)
class Reason:
    """``num_gpus``, ``num_hosts``: what a filter leaves out, or what it is about; None where nothing is counted.

    ``num_hosts`` of a filter: those that could give one host's part before it, and cannot after it.
    """

    token: WaitReason
    num_gpus: int | None = None
    num_hosts: int | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why a job waits: in words, as the token that binds, and all reasons in their order.

    ``why_asked``: in the words of a plan that is only asked for; None: in the same.
    """

    why: str
    binding: WaitReason
    reasons: tuple[Reason, ...] = ()
    why_asked: str | None = None

    def told(self, mood: Mood) -> str:
        return self.why if mood is Mood.DONE or self.why_asked is None else self.why_asked


class Turn(IntEnum):
    """Who is tried first within a tier. ``PASSED``: enough work has passed it, whatever its tenant has."""

    GUARANTEED = 0
    PASSED = 1
    UNDER = 2
    OVER = 3


@dataclass(frozen=True, slots=True)
class Waiting:
    """``turn``: in which it was tried, within its tier."""

    job_id: JobId
    verdict: Verdict
    turn: Turn = Turn.UNDER

    @property
    def why(self) -> str:
        return self.verdict.why


@dataclass(frozen=True, slots=True)
class Held:
    """``gpus``: where a waiting job will start at about ``until_ms``; ``num_free`` of them are idle until then.

    ``num_before``: so many jobs before it have places on some of them until then; ``is_by_reclaim``: not all of them
    come free of their own by then, the others may be reclaimed. ``num_worked_on``: on so many of its hosts planned work
    goes on until then at the latest, or is to come and over by then.
    """

    job_id: JobId
    gpus: tuple[GpuUuid, ...]
    num_free: int
    until_ms: int
    num_before: int = 0
    is_by_reclaim: bool = False
    num_worked_on: int = 0


@dataclass(frozen=True, slots=True)
class RunnerUp:
    """The next best set of victims, so that a person can see what the choice was between."""

    victims: tuple[AttemptId, ...]
    cost_gpu_s: float


@dataclass(frozen=True, slots=True)
class Reclaim:
    """Take ``gpus`` back from ``victim`` after ``notice_s``, for ``beneficiary``, which will run on ``held``.

    ``cost_gpu_s``: GPU-seconds that the victim loses: since its newest durable checkpoint, and to start again.
    ``keeps``: whole hosts, in rank order, with which an elastic victim's job goes on; none: it gives all that it has.
    """

    victim: AttemptId
    beneficiary: JobId
    notice_s: float
    gpus: tuple[GpuUuid, ...]
    held: tuple[GpuUuid, ...]
    cost_gpu_s: float
    runner_up: RunnerUp | None = None
    keeps: tuple[GpuUuid, ...] = ()


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """The reclaim of ``victim`` is needed no more: the victim goes on."""

    victim: AttemptId
    beneficiary: JobId
    why: str


@dataclass(frozen=True, slots=True)
class Lapse:
    """What was held for ``beneficiary`` is held no more, whether or not a victim is left to go on."""

    beneficiary: JobId
    why: str


@dataclass(frozen=True, slots=True)
class Growth:
    """Let ``attempt_id`` save and leave, and its job go on on ``parts``, which are more than it has."""

    attempt_id: AttemptId
    job_id: JobId
    from_nodes: int
    parts: Parts


@dataclass(frozen=True, slots=True)
class Plan:
    placements: tuple[Placement, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    reclaims: tuple[Reclaim, ...] = ()
    withdrawals: tuple[Withdrawal, ...] = ()
    lapses: tuple[Lapse, ...] = ()
    growths: tuple[Growth, ...] = ()
    holds: tuple[Held, ...] = ()


@dataclass(frozen=True, slots=True)
class Question:
    """All that a cycle is asked: policy, fleet, queue and what runs, of one moment."""

    policy: Policy
    gpus: list[GpuView]
    queue: list[WaitingJob]
    workload: Workload


@dataclass(frozen=True, slots=True)
class StartRange:
    """``latest_ms``: None where nobody knows."""

    earliest_ms: int
    latest_ms: int | None
