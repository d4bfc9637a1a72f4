"""The effect of a change as plain data."""

from dataclasses import dataclass
from datetime import datetime

from muster.domain.ids import JobId, TenantId
from muster.domain.states import JobEffectKind, JobState, PlanOutcome, StopReason


@dataclass(frozen=True, slots=True)
class Onward:
    """Where a job continues. ``hosts``: names in rank order. ``starts_at``: when its held or reclaimed GPUs are free.

    ``why``: why it would wait, and None where it starts at once.
    """

    outcome: PlanOutcome
    hosts: tuple[str, ...] = ()
    num_gpus: int = 0
    starts_at: datetime | None = None
    why: str | None = None


@dataclass(frozen=True, slots=True)
class JobFacts:
    """A job as its effect names it. ``ends``: it continues nowhere."""

    job_id: JobId
    name: str
    tenant_id: TenantId
    tenant: str
    tier: str
    state: JobState
    ends: bool


@dataclass(frozen=True, slots=True)
class JobEffect:
    """The effect on one job. ``why``: why its attempt is stopped. ``requested_at``: when it gets the request to leave.

    ``deadline_at``: by when its programs have to end. ``saved_at``: its newest durable checkpoint. ``lost_gpu_s``: the
    work since then, which is lost if it saves none before the deadline. ``onward``: None if it ends permanently.
    """

    kind: JobEffectKind
    job: JobFacts
    num_gpus: int
    why: StopReason | None = None
    requested_at: datetime | None = None
    deadline_at: datetime | None = None
    saved_at: datetime | None = None
    lost_gpu_s: float = 0.0
    onward: Onward | None = None


@dataclass(frozen=True, slots=True)
class TierCapacity:
    """GPUs that a tier admits, whether or not they run jobs, before and after. ``idle``: those without a job after."""

    tier: str
    before: int
    after: int
    idle: int


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of a change at ``at``. ``tiers``: empty where the change does not concern placement.

    ``changes``: what else it changes, a sentence each.
    """

    at: datetime
    jobs: tuple[JobEffect, ...] = ()
    tiers: tuple[TierCapacity, ...] = ()
    changes: tuple[str, ...] = ()
