"""Jobs and their attempts, as the API answers them."""

from typing import Annotated, NotRequired

from typing_extensions import TypedDict

from muster.documents.effects import Trial
from muster.documents.fields import Json, Moment, OneOf, Page
from muster.documents.job_plans import WaitingReason
from muster.domain.job.wait_reasons import WaitReason
from muster.domain.states import (
    AttemptState,
    Cause,
    HostPartState,
    JobState,
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
    reasons: list[WaitingReason]
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


class JobEnergy(TypedDict):
    """The energy of a job.

    ``energy_j``: of all metered attempts; null where there is none. Attempts are in their order.
    """

    energy_j: float | None
    energy_kwh: float | None
    is_simulated: bool
    attempts: list[AttemptEnergy]
