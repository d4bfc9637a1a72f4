"""Tenants, keys, quotas, reclaims and events, as the API answers and accepts them."""

from typing import Annotated, NotRequired

from typing_extensions import TypedDict

from muster.documents.effects import Trial
from muster.documents.fields import Json, Moment, OneOf, Page, Stretch
from muster.domain.logins import LoginState
from muster.domain.principals import Permission, Role
from muster.domain.residency import OutsideKind
from muster.domain.states import ReclaimOutcome, ReclaimState


class Residency(TypedDict):
    """Where a tenant's jobs may run and its data may be; null: anywhere.

    ``sites``: values of the label ``site`` of hosts. ``stores``: names of content stores, and ``s3://bucket/prefix`` of
    stores for checkpoints.
    """

    sites: list[str] | None
    stores: list[str] | None


class Tenant(TypedDict):
    """A tenant. ``parent_id``: the department of a team. ``weight``: its share among the tenants of the same parent.

    ``residency``: its own residency rule; null: it has none.
    """

    id: str
    name: str
    created_at: Moment
    parent_id: str | None
    weight: float
    residency: Residency | None


class OutsideResidency(TypedDict):
    """One thing outside of a residency rule.

    ``subject_id``: the job, or the tenant whose content or copies it is. ``places``: hosts, or the store. ``to_do``:
    what an operator does about it; nothing is stopped, moved or deleted because of a rule.
    """

    kind: Annotated[str, OneOf(OutsideKind)]
    tenant_id: str
    subject_id: str
    name: str
    places: list[str]
    to_do: str


class TenantResidency(Tenant):
    """A tenant, its residency rule, and what is outside.

    ``holds``: the rule that holds, which is its own and the rules of all above it together. ``num_hosts``: hosts at its
    sites. ``num_fleet_hosts``: hosts of the fleet. ``outside``: what is outside of the rule now.
    """

    holds: Residency
    num_hosts: int
    num_fleet_hosts: int
    outside: list[OutsideResidency]


class ChangedResidency(TenantResidency, Trial):
    """The residency rule after a change."""


class ChangedTenant(Tenant, Trial):
    """The tenant after a change."""


class TenantPage(Page):
    items: list[Tenant]


class Quota(TypedDict):
    """The quota of a tenant and all below it; ``assigned_gpus``: the GPUs that they use now.

    ``lent_gpus``: the GPUs of the unused guarantee on which jobs of others run, beyond guarantees of their own.
    ``borrowable_gpus``, beyond the guarantee, and ``ceiling_gpus``: null: no limit.
    """

    tenant_id: str
    tier: str
    guaranteed_gpus: int
    borrowable_gpus: int | None
    ceiling_gpus: int | None
    assigned_gpus: int
    lent_gpus: int
    updated_at: Moment


class ChangedQuota(Quota, Trial):
    """The quota after a change."""


class QuotaPage(Page):
    items: list[Quota]


class TenantLimit(TypedDict):
    """A limit on what a tenant submits and plans: ``used`` of ``most``, now.

    ``field``: in the policy, below ``limits.tenant``.
    ``open_jobs`` and ``stored_bytes`` count jobs that have not ended. Of ``submissions_per_minute`` less is used with
    each second, and of ``planning_s_per_minute``, which may be passed by the newest plan.
    """

    field: str
    used: int
    most: int


class TenantLimitPage(Page):
    items: list[TenantLimit]


class NewKey(TypedDict):
    name: str
    role: Annotated[str, OneOf(Role)]
    tenant_id: NotRequired[str | None]
    node_id: NotRequired[str | None]
    expires_at: NotRequired[Moment | None]


class Key(TypedDict):
    """``prefix`` is the part of the token that may be shown."""

    id: str
    name: str
    prefix: str
    role: Annotated[str, OneOf(Role)]
    tenant_id: str | None
    node_id: str | None
    created_at: Moment
    expires_at: Moment | None
    revoked_at: Moment | None
    last_used_at: Moment | None
    version: int


class CreatedKey(Key, Trial):
    """``token`` is in this answer alone."""

    token: str


class ChangedKey(Key, Trial):
    """The key after a change."""


class KeyPage(Page):
    items: list[Key]


class NewLogin(TypedDict):
    """A sign-in of the command. ``device``: as it names itself to the person who confirms it."""

    device: str


class StartedLogin(TypedDict):
    """A sign-in that waits: a person compares ``code`` on the console's page ``page``.

    ``login_token`` is the waiting command's secret, in this answer alone. It asks every ``interval_s`` for its key.
    """

    code: str
    page: str
    login_token: str
    expires_at: Moment
    interval_s: int


class LoginToken(TypedDict):
    login_token: str


class LoginAnswer(TypedDict):
    """The state of a sign-in. ``token`` and ``key``: with the first answer after the confirmation alone."""

    state: Annotated[str, OneOf(LoginState)]
    token: str | None
    key: Key | None


class SignedOut(TypedDict):
    """``is_revoked``: the key was made by a sign-in of the command, and opens nothing any more."""

    is_revoked: bool


class Whoami(TypedDict):
    """The principal of this key, and its permissions."""

    name: str
    role: Annotated[str, OneOf(Role)]
    key_id: str | None
    tenant_id: str | None
    node_id: str | None
    permissions: list[Annotated[str, OneOf(Permission)]]


class Reclaim(TypedDict):
    """A reclaim. Fields of the other tenant are null, and so is the basis of the choice, except for operators.

    ``num_kept_gpus``: the GPUs with which an elastic victim continues; 0: it releases all.
    """

    id: str
    state: Annotated[str, OneOf(ReclaimState)]
    reason: str
    num_gpus: int
    num_kept_gpus: int
    victim_tier: str
    victim_job_id: str | None
    victim_job_name: str | None
    victim_attempt_id: str | None
    beneficiary_tier: str
    beneficiary_job_id: str | None
    beneficiary_job_name: str | None
    notice_s: float
    notified_at: Moment
    deadline_at: Moment
    delivered_at: Moment | None
    settled_at: Moment | None
    settled_why: str | None
    outcome: Annotated[str, OneOf(ReclaimOutcome)] | None
    cost_gpu_s: float | None
    lost_gpu_s: float | None
    runner_up: Json | None
    policy_version: int | None


class ReclaimPage(Page):
    items: list[Reclaim]


class Event(TypedDict):
    """``position`` is gap-free; ``caused_by`` is the audit entry of the change that caused it."""

    id: str
    position: int
    at: Moment
    kind: str
    subject_type: str
    subject_id: str
    tenant_id: str | None
    payload: Json
    caused_by: str | None


class EventStretch(Stretch):
    items: list[Event]


class EventPage(Page):
    items: list[Event]
