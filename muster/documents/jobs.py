"""Jobs, their attempts, checkpoints, training and logs, as the API answers them."""

from typing import Annotated, Literal, NotRequired

from typing_extensions import TypedDict

from muster.documents.effects import Trial
from muster.documents.fields import Json, Moment, OneOf, Page, Stretch
from muster.documents.money import PlannedCost
from muster.domain.job.wait_reasons import WaitReason
from muster.domain.states import (
    AttemptState,
    Cause,
    CheckpointStatus,
    ExpectedFrom,
    HostPartState,
    JobState,
    PlanOutcome,
    StopReason,
)


class Job(TypedDict):
    """``state_reason`` is the reason for its state as text; ``spec`` is the job as it was submitted.

    In a list, ``spec`` has name, tier, shape, place, rules and labels. The job's own document has the program too.

    ``accumulation``: the factor of pieces per batch in its next attempt, relative to the program's own number.
    ``wanted_nodes``: the largest number of hosts of an elastic job, as requested since it was submitted.
    ``job_class``: the class in which it was submitted; null: by an earlier release, so that the default class counts.
    ``copied_from``: the job that this one is a copy of.
    ``binding``, ``reasons``: why a pending job waits, by the scheduler's newest cycle that considered it; null and
    empty if it is not pending, or no cycle has considered it yet. ``firm_start_at``: a pending job starts by then; null
    if its start is not firm.
    """

    id: str
    tenant_id: str
    name: str
    tier: str
    state: Annotated[str, OneOf(JobState)]
    state_reason: str
    spec: Json
    submitted_by: str
    created_at: Moment
    updated_at: Moment
    finished_at: Moment | None
    restarts_used: int
    accumulation: int
    wanted_nodes: int | None
    job_class: NotRequired[str | None]
    copied_from: str | None
    binding: Annotated[str, OneOf(WaitReason)] | None
    reasons: list["WaitingReason"]
    firm_start_at: Moment | None
    next_try_at: Moment | None
    cancel_requested_at: Moment | None
    version: int


class ChangedJob(Job, Trial):
    """The job after a change."""


class JobPage(Page):
    items: list[Job]


class AttemptHost(TypedDict):
    """One host's part of an attempt; ``gpus`` are UUIDs in the order of local ranks.

    ``awaits_go``: it reports that it is ready (``ready_at``), and starts once all hosts of the attempt are ready.
    ``is_at_fault``: the attempt ended because of this host, such as one that was not ready in time; the job avoids it.
    ``gpu_processes_unknown``: why processes on its GPUs after the end are unknown, so that the host counts as clean
    without that check; null: their driver reports none, or there is no proof yet.
    """

    node_id: str
    node_name: str
    node_rank: int
    state: Annotated[str, OneOf(HostPartState)]
    gpus: list[str]
    claimed_at: Moment | None
    awaits_go: bool
    ready_at: Moment | None
    is_at_fault: bool
    started_at: Moment | None
    exited_at: Moment | None
    clean_at: Moment | None
    exit_record: Json | None
    gpu_processes_unknown: str | None


class CheckpointInterval(TypedDict):
    """The interval of an attempt's checkpoints from ``step`` on, and its basis, in seconds.

    ``stall_s``: how long a checkpoint delays training; ``save_s``: its whole duration; ``step_s``: a step; each of the
    slowest rank. ``mtbf_s``: the mean time between failures of ``num_gpus`` GPUs. ``bound``: ``none`` where the
    interval has the least cost; else it is the policy's ``min`` or ``max``, or the duration of a ``save``.
    """

    step: int
    interval_s: float
    bound: str
    stall_s: float
    save_s: float
    step_s: float
    mtbf_s: float
    failures_per_gpu_hour: float
    num_gpus: int


class AttemptEnergy(TypedDict):
    """The energy of an attempt's GPUs, by their own counters as the agents read them; never an estimate.

    ``energy_j`` is the sum over ``gpus_metered`` of ``gpus``; null where no GPU has a counter. ``gpu_seconds`` is the
    time between readings, of ``assigned_gpu_seconds`` in all. ``why``: the missing part, as text. ``tokens_per_j``: by
    its newest pace. ``gpus_unsupported``: GPUs without such a counter. ``j_per_step``: all its energy over the reported
    ``steps``, so with its start and its saves; null unless each GPU was metered.
    """

    attempt_id: str
    number: int
    gpus: int
    gpus_metered: int
    gpus_unsupported: int
    energy_j: float | None
    energy_kwh: float | None
    gpu_seconds: float
    assigned_gpu_seconds: float
    is_simulated: bool
    tokens_per_j: float | None
    steps: int
    j_per_step: float | None
    why: str


class AttemptDropped(TypedDict):
    """What an attempt reported beyond a limit of the policy's `limits.attempt`, counted and not stored.

    ``log_bytes``: bytes of its output. 0: it reached no such limit.
    """

    log_bytes: int
    events: int
    checkpoints: int
    steps: int


class Attempt(TypedDict):
    """``cause`` and ``proof``: why it ended, and the basis of that. ``num_nodes``: its own size.

    ``go_at``: when all hosts that wait for one another were ready. ``checkpoint_interval``: null for a program that
    names a number of steps, or has not measured a checkpoint yet. ``energy``: null until some minutes after it
    has ended; until then the job's energy has its own request. ``steps_removed``: its steps that are no longer listed
    one by one, since it ended longer ago than the policy's `retention.steps_days`. ``idle_since``: its GPUs are known
    to do nothing since then; ``idle_stop_at``: when it is stopped for that, unless they work before.
    """

    id: str
    number: int
    fence: int
    state: Annotated[str, OneOf(AttemptState)]
    cause: Annotated[str, OneOf(Cause)] | None
    proof: str | None
    stop_reason: Annotated[str, OneOf(StopReason)] | None
    stop_deadline_at: Moment | None
    num_nodes: int
    placed_at: Moment
    claimed_at: Moment | None
    go_at: Moment | None
    running_at: Moment | None
    ended_at: Moment | None
    idle_since: Moment | None
    idle_stop_at: Moment | None
    checkpoint_interval: CheckpointInterval | None
    energy: AttemptEnergy | None
    steps_removed: int
    dropped: AttemptDropped
    hosts: list[AttemptHost]


class JobDetail(Job):
    attempts: list[Attempt]


class PlannedHost(TypedDict):
    """A host of a plan. ``gpus``: UUIDs in the order of local ranks."""

    node_id: str
    node_name: str
    node_rank: int
    gpus: list[str]


class PlannedGroups(TypedDict):
    """Groups of one dimension of the job's layout that are wider than a host: `num_together` of `num_groups` would have
    one domain of `level` each. One of `fsdp` is of `fsdp` × `tp` ranks.
    """

    dimension: Literal["tp", "fsdp", "pp"]
    level: str
    num_groups: int
    num_together: int


class PlannedRails(TypedDict):
    """The rails of a plan.

    ``rails``: of the first host's local ranks, in order. ``num_hosts``: hosts with the same rails.
    """

    rails: list[int]
    num_hosts: int


class PlannedVictim(TypedDict):
    """An attempt that would be reclaimed. ``job_id``, ``tenant_id``: null for a tenant.

    ``cost_gpu_s``: GPU-seconds that it would lose: since its newest durable checkpoint, and to start again.
    ``num_kept_gpus``: the GPUs with which an elastic one would continue; 0: it releases all.
    """

    job_id: str | None
    tenant_id: str | None
    tier: str
    num_gpus: int
    notice_s: float
    cost_gpu_s: float
    num_kept_gpus: int


class PlannedChange(TypedDict):
    """``field`` of the job, or of a quota in its tier, set to ``value``, would let it start at once.

    ``topology.required``: a wider level than it requires; ``fleet``: none. ``node_labels.without``: without its rule
    about that label. ``quota_above``: of the department of its tenant, or of a higher one.
    ``fleet.nodes``: so many more idle hosts of its cohort, which its labels admit, in one domain of the level that it
    requires.
    """

    field: Literal[
        "wall_time_s",
        "topology.required",
        "node_labels.without",
        "tier",
        "shape.nodes",
        "quota.ceiling_gpus",
        "quota.borrowable_gpus",
        "quota_above.ceiling_gpus",
        "quota_above.borrowable_gpus",
        "fleet.nodes",
    ]
    value: int | float | str


class WaitingReason(TypedDict):
    """``num_gpus``, ``num_hosts``: GPUs and hosts that a filter excludes, or that the reason is about; each GPU once.
    Null: not counted.

    ``num_hosts`` of a filter: hosts that could take one host's part before it, and cannot after it.
    """

    token: Annotated[str, OneOf(WaitReason)]
    text: str
    num_gpus: int | None
    num_hosts: int | None


class JobBefore(TypedDict):
    """``job_id``, ``tenant_id``: null where the reader may not see them. ``num_gpus``: at least."""

    job_id: str | None
    tenant_id: str | None
    tier: str
    num_gpus: int


class JobPlan(TypedDict):
    """The plan for a job: it ``starts`` at once, ``reclaims`` GPUs, has a ``hold`` until others end, or ``waits``.

    ``why`` and the texts of ``reasons`` state for a plan the actions to come, and for a pending job its state.
    ``reasons``: why it waits, the filters first and in their order. ``binding``: the first reason without which, and
    without the reasons after it, the job would fit. ``starts_at``: when the GPUs held or reclaimed for it are free.
    ``earliest_at``, ``latest_at``: about eight of ten such jobs start between them, by the expected run times of the
    running jobs and of the jobs before it; null if unknown. ``firm_start_at``: it starts by then, and ``latest_at`` is
    then no later; null if its start is not firm. ``num_ahead``: pending jobs before it, for ``gpus_ahead``
    GPUs; ``ahead``: the first 20 of them, in their order; empty if their order is unknown. ``changes``: each would let
    it start at once, the cheapest first. ``expected_run_s``: its expected run time, by its wall time, by the run times
    of its tenant's jobs of the same name and shape (no job is stopped by that), or by the policy; null if it starts at
    once or is not considered. ``groups``, ``rails``: the places of the ranks of a job that starts at once; null rails:
    none are declared for its first host, or it has one host alone. ``environment``: why no host in contact could build
    the environment of its program; null: one could, or it needs none, or the job is submitted already.
    ``cost``: what it would cost; null: a model that it may get has no price, or the job is submitted already.
    """

    outcome: Annotated[str, OneOf(PlanOutcome)]
    why: str | None
    binding: Annotated[str, OneOf(WaitReason)] | None
    reasons: list[WaitingReason]
    starts_at: Moment | None
    earliest_at: Moment | None
    latest_at: Moment | None
    firm_start_at: Moment | None
    num_ahead: int
    gpus_ahead: int
    ahead: list[JobBefore]
    expected_run_s: float | None
    expected_from: Annotated[str, OneOf(ExpectedFrom)] | None
    hosts: list[PlannedHost]
    groups: list[PlannedGroups]
    rails: PlannedRails | None
    victims: list[PlannedVictim]
    changes: list[PlannedChange]
    environment: str | None
    cost: NotRequired[PlannedCost | None]


class Lineage(TypedDict):
    """The origin of a checkpoint, as its program reports it; null is unknown.

    ``git_is_dirty``: a tracked file was changed since ``git_commit``. ``bundle``: the digest of the job's bundle.
    ``environments``: the digests of the environments that its hosts got, one for each kind of host.
    ``parent``: the generation that training continued from; null: from the start. ``outputs``: the digests of the
    outputs that hosts collected with it, as the list of the job's outputs has them.
    """

    code_sha256: str | None
    git_commit: str | None
    git_is_dirty: bool | None
    config_sha256: str | None
    spec_sha256: str | None
    bundle: NotRequired[str | None]
    environments: NotRequired[list[str]]
    outputs: NotRequired[list[str]]
    data_sha256: str | None
    parent: str | None
    python_version: str | None
    torch_version: str | None
    world_size: int | None


class Checkpoint(TypedDict):
    """A checkpoint. ``reason``: why it is REJECTED or TAINTED. ``lineage`` null: its runtime reported none.

    ``pinned_at``, ``pinned_by``: when it was pinned, and by which principal. ``pin_applied_at``: when its program
    marked it in its store; null while the pin is not yet delivered. ``scrubbed_at``: when it was last read again as a
    whole.
    """

    id: str
    attempt_id: str
    step: int
    generation: str
    status: Annotated[str, OneOf(CheckpointStatus)]
    reason: str | None
    bytes: int | None
    save_s: float | None
    committed_at: Moment | None
    verified_at: Moment | None
    lineage: NotRequired[Lineage | None]
    pinned_at: Moment | None
    pinned_by: str | None
    pin_applied_at: Moment | None
    scrubbed_at: Moment | None


class ChangedCheckpoint(Checkpoint, Trial):
    """The checkpoint after a change."""


class CheckpointPage(Page):
    items: list[Checkpoint]


class Pace(TypedDict):
    """The parts of the last ``num_steps`` steps, each the mean of a step, as a rank reports them.

    ``checkpoint_s`` is the delay by saves between steps. ``collective_s``: null where ranks communicate within their
    passes (FSDP, tensor parallelism), where it cannot be measured and is part of the others. ``tokens_per_s``: this
    rank's share of the job's. ``memory_mib``: the maximum of its tensors on the GPU; without one, the memory of its
    process. ``mfu`` and ``hfu`` are shares of 1, of its GPU's dense peak; null where the program did not state the cost
    of a token. ``samples``: the samples of this rank in this attempt; next to it the means of a step. ``padding``: the
    share of 1 that only filled sequences up. ``own_s``: a step's time without ``wait_s``, the waits for other ranks;
    ``own_steps``: the plain steps of which these are means; ``place``: the same for ranks with the same work.
    ``cpu_wait_s``: ready without a processor; ``gc_s``: garbage collection; ``threads_s``: processor time of other
    threads; ``io_wait_s``: waiting for a disk. Null where the program did not report it; missing where its runtime is
    older.
    """

    num_steps: int
    data_s: float
    forward_s: float
    backward_s: float
    collective_s: float | None
    optimizer_s: float
    other_s: float
    checkpoint_s: float
    tokens_per_s: float | None
    grad_norm: float | None
    memory_mib: float | None
    mfu: float | None
    hfu: float | None
    samples: NotRequired[int | None]
    samples_per_step: NotRequired[float | None]
    tokens_per_step: NotRequired[float | None]
    padding: NotRequired[float | None]
    own_s: NotRequired[float | None]
    wait_s: NotRequired[float | None]
    own_steps: NotRequired[int | None]
    place: NotRequired[str | None]
    cpu_wait_s: NotRequired[float | None]
    gc_s: NotRequired[float | None]
    threads_s: NotRequired[float | None]
    io_wait_s: NotRequired[float | None]
    steal_share: NotRequired[float | None]
    switches_per_s: NotRequired[float | None]
    read_bytes_per_s: NotRequired[float | None]


class JobEnergy(TypedDict):
    """The energy of a job.

    ``energy_j``: of all metered attempts; null where there is none. Attempts are in their order.
    """

    energy_j: float | None
    energy_kwh: float | None
    is_simulated: bool
    attempts: list[AttemptEnergy]


class Rank(TypedDict):
    """The progress of a rank, as it reports it.

    ``warnings``: code → message, about likely mistakes of its program; the first rank reports them for all.
    """

    attempt_id: str
    rank: int
    node_id: str
    world_size: int | None
    step: int | None
    loss: float | None
    step_s: float | None
    outcome: str | None
    pace: Pace | None
    warnings: dict[str, str]
    updated_at: Moment


class RankPage(Page):
    items: list[Rank]


class Step(TypedDict):
    """``pace`` is reported about once a second, of the steps since its last report."""

    attempt_id: str
    step: int
    loss: float | None
    step_s: float | None
    pace: Pace | None
    at: Moment


class StepPage(TypedDict):
    """``next_after`` is null on the last page."""

    items: list[Step]
    next_after: int | None


class LogPiece(TypedDict):
    """A piece of a log.

    ``stream``: a global rank, or ``launcher``. ``offset``: bytes in that stream before ``text``.
    """

    position: int
    attempt_id: str
    node_id: str
    stream: str
    offset: int
    received_at: Moment
    text: str


class LogLine(TypedDict):
    """A line that was searched for. ``offset``: bytes in its stream before ``text``, which of a long line is a part."""

    attempt_id: str
    node_id: str
    stream: str
    offset: int
    received_at: Moment
    text: str


class LogLinePage(Page):
    items: list[LogLine]


class LogStretch(Stretch):
    items: list[LogPiece]
