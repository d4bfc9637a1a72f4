"""Why a job waits, and where it would run, as the API answers it."""

from typing import Annotated, Literal, NotRequired

from typing_extensions import TypedDict

from muster.documents.fields import Moment, OneOf
from muster.documents.money import PlannedCost
from muster.domain.job.wait_reasons import WaitReason
from muster.domain.states import (
    ExpectedFrom,
    PlanOutcome,
)


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
