"""The effect of a change that was only tried."""

from typing import Annotated, NotRequired

from typing_extensions import TypedDict

from muster.documents.fields import Consequence, Moment, OneOf
from muster.domain.states import JobEffectKind, PlanOutcome, StopReason


class Onward(TypedDict):
    """Where a job continues, as the planner would decide now.

    ``hosts``: names in rank order, with ``num_gpus`` of it. ``starts_at``: when GPUs held or reclaimed for it are free.
    ``why``: why it would wait; null if it starts at once.
    """

    outcome: Annotated[str, OneOf(PlanOutcome)]
    hosts: list[str]
    num_gpus: int
    starts_at: Moment | None
    why: str | None


class JobEffect(TypedDict):
    """The effect on one job: it ``leaves`` its GPUs, ``ends``, ``starts``, or ``waits`` where it would start.

    ``why``: why its attempt is stopped. ``requested_at``: when it gets the request to leave, null for at once.
    ``deadline_at``, in ``deadline_s``: by when its programs have to end. ``saved_at``: its newest durable checkpoint.
    ``lost_gpu_s``: GPU-seconds since then, which are lost if it saves none before the deadline. ``onward`` null: it
    ends.
    """

    effect: Annotated[str, OneOf(JobEffectKind)]
    job_id: str
    name: str
    tenant_id: str
    tenant: str
    tier: str
    num_gpus: int
    why: Annotated[str, OneOf(StopReason)] | None
    requested_at: Moment | None
    deadline_at: Moment | None
    deadline_s: float | None
    saved_at: Moment | None
    lost_gpu_s: float
    onward: Onward | None


class TierCapacity(TypedDict):
    """GPUs that a tier admits, with and without jobs, before and after the change; ``idle``: without a job after it."""

    tier: str
    before: int
    after: int
    idle: int


class Effect(TypedDict):
    """The effect of a change at ``at``, which was rolled back.

    ``tiers`` is for operators and auditors, and empty where the change does not concern placement. ``changes``: what
    else it changes, a sentence each.
    """

    at: Moment
    jobs: list[JobEffect]
    tiers: list[TierCapacity]
    changes: list[str]


class Trial(TypedDict):
    """The addition to the answer of a change that was requested with ``dry_run``: nothing happened.

    ``effect`` is for persons; ``consequences`` are the records that the change would have left.
    """

    dry_run: NotRequired[bool]
    effect: NotRequired[Effect]
    consequences: NotRequired[list[Consequence]]
