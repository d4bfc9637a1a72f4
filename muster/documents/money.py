"""Money: rate cards, costs, budgets and statements, as the API answers and accepts them.

Amounts and prices are texts of decimal numbers: a number of JSON may lose digits.
"""

from typing import Annotated, NotRequired

from typing_extensions import TypedDict

from muster.documents.effects import Trial
from muster.documents.fields import Json, Moment, OneOf, Page
from muster.domain.budgets import BudgetAction, BudgetWindow


class RateVersion(TypedDict):
    """One version of the rate cards. ``created_by``, ``reason``: null for tenants."""

    version: int
    is_active: bool
    created_at: Moment
    created_by: str | None
    reason: str | None


class RateVersionPage(Page):
    items: list[RateVersion]


class Rates(TypedDict):
    """The rate cards. ``version`` and what is about it are null while none were set: then nothing has a price.

    ``document``: `currency`, `decimals`, `credited_accounts` and `cards`; null while none were set.
    """

    version: int | None
    is_active: bool
    created_at: Moment | None
    created_by: str | None
    reason: str | None
    document: Json | None


class ChangedRates(Rates, Trial):
    """The rate cards after a change."""


class PlannedCost(TypedDict):
    """What a job would cost. ``per_hour_least``, ``per_hour_most``: of all its GPUs, by the models that it may get.

    ``by_wall_time``: at most, if it runs as long as its wall time allows; null without one. ``by_expected``: if it
    takes as long as it is expected to; null if that is not known.
    """

    currency: str
    per_hour_least: str
    per_hour_most: str
    by_wall_time: str | None
    by_expected: str | None


class CostLine(TypedDict):
    """Time of GPUs of one model in one account of the ledger, at one price from ``from_at`` to before ``until_at``.

    ``price_per_gpu_hour``, ``amount`` and ``credit`` are null where no rate card held: unpriced, which is not free.
    ``credit``: what is given back, as a negative amount. ``provisional_gpu_hours``: of hours that are not closed yet.
    """

    model: str
    tier: str
    account: str
    from_at: Moment
    until_at: Moment
    gpu_hours: str
    provisional_gpu_hours: str
    credited_gpu_hours: str
    price_per_gpu_hour: str | None
    amount: str | None
    credit: str | None


class CostSums(TypedDict):
    """Sums of lines: ``charged`` before credits, ``due`` after them."""

    gpu_hours: str
    provisional_gpu_hours: str
    credited_gpu_hours: str
    unpriced_gpu_hours: str
    charged: str
    credits: str
    due: str


class JobCost(TypedDict):
    """What a job has cost until now. ``currency``: null while no rate cards are set.

    ``lines`` are of the hours until ``counted_until``, ``running`` of the time since then, whose use is not known yet.
    ``spent``: both together, after credits. ``step``: the farthest that is reported, ``tokens``: until then, null where
    the program does not state them. ``per_step``,
    ``per_million_tokens``, ``per_epoch``, ``per_checkpoint``: what is spent, shared out on what is reported; null where
    nothing is, or a part has no price.
    """

    job_id: str
    currency: str | None
    counted_until: Moment | None
    lines: list[CostLine]
    running: list[CostLine]
    sums: CostSums
    spent: str
    step: int | None
    tokens: int | None
    epochs: NotRequired[float | None]
    checkpoints: int
    per_step: str | None
    per_million_tokens: str | None
    per_epoch: NotRequired[str | None]
    per_checkpoint: str | None


class ComparedJob(TypedDict):
    """A job next to others. ``missing``: field → why it is null.

    GPU time is that of counted hours and of the time since. Steps are of its newest attempt with reports. Figures of
    money are to nine decimals: a short job costs less than the last digit of a bill.
    """

    job_id: str
    name: str
    state: str
    tier: str
    gpus: int | None
    attempts: int
    reclaims: int
    step: int | None
    tokens: int | None
    tokens_per_s: float | None
    tokens_per_s_per_gpu: float | None
    samples_per_s: float | None
    step_p50_s: float | None
    step_p95_s: float | None
    mfu: float | None
    communication_share: float | None
    loader_share: float | None
    goodput: float | None
    lost_share: float | None
    checkpoint_share: float | None
    gpu_hours: str
    currency: str | None
    price_per_gpu_hour: str | None
    spent: str | None
    credits: str | None
    per_million_tokens: str | None
    tokens_per_unit: str | None
    tokens_per_unit_while_training: str | None
    missing: dict[str, str]


class JobComparison(Page):
    """Jobs side by side, in the order in which they were named."""

    items: list[ComparedJob]


class NewRates(TypedDict):
    """Rate cards to set, whole: a card that is left out ends.

    ``corrects_past``: also where prices or credits of hours change that have begun.
    """

    document: Json
    reason: str
    corrects_past: NotRequired[bool]


class TenantBudget(TypedDict):
    """A budget of a tenant with all below it, and what is spent of it from ``begins_at`` to ``ends_at``.

    ``spent``: priced hours after credits, and the time since the last counted hour. ``share``: of ``amount``, in whole
    per cent. ``unpriced_gpu_hours`` count for nothing. ``fault``: why it is not judged; null: it is. ``lifted_at``:
    since when it counts no more. ``set_by``, ``reason``: null for tenants.
    """

    tenant_id: str
    amount: str
    currency: str
    window: Annotated[str, OneOf(BudgetWindow)]
    action: Annotated[str, OneOf(BudgetAction)]
    shares: list[int]
    begins_at: Moment
    ends_at: Moment
    spent: str
    share: int
    is_spent: bool
    unpriced_gpu_hours: str
    fault: str | None
    set_at: Moment
    set_by: str | None
    reason: str | None


class ChangedTenantBudget(TenantBudget, Trial):
    """The budget after a change."""


class LiftedBudget(Trial):
    """A budget that counts no more since ``lifted_at``."""

    tenant_id: str
    amount: str
    currency: str
    lifted_at: Moment | None


class NewTenantBudget(TypedDict):
    """A budget to set, in place of the one before. Without ``ends_at`` it is one of each calendar month in UTC."""

    amount: str
    reason: str
    action: NotRequired[Annotated[str, OneOf(BudgetAction)]]
    shares: NotRequired[list[int]]
    begins_at: NotRequired[Moment | None]
    ends_at: NotRequired[Moment | None]


class StatementLine(CostLine):
    """A line of a statement. ``attempts``: whose time it is, by which it is followed to what happened; ``job_name``:
    null once the job was removed. ``amount`` is ``num_ms`` at the price, rounded once to the statement's decimals,
    ``credit`` the same of ``credited_ms``. ``credit_evidence``: the evidence, verdicts and reclaims by which time is
    given back.
    """

    tenant_id: str
    tenant_name: str | None
    job_id: str | None
    job_name: str | None
    num_ms: int
    credited_ms: int
    provisional_ms: int
    attempts: list[str]
    credit_evidence: list[str]


class Statement(TypedDict):
    """What was used in a month of UTC, and what is due. ``tenant_id``: whose; null: of all tenants.

    ``is_final``: no hour of the month can change any more, but by a correction. ``open_hours``: how many can.
    ``revision``: the newest correction in it. ``decimals``: to which each amount is rounded.
    """

    month: str
    begins_at: Moment
    ends_at: Moment
    tenant_id: str | None
    currency: str | None
    decimals: int
    is_final: bool
    open_hours: int
    revision: int
    lines: list[StatementLine]
    sums: CostSums


class SignedStatement(TypedDict):
    """A statement with the signature of the operator's key, Ed25519 in hex digits. ``format``: what is signed."""

    format: str
    statement: Statement
    key_id: str
    public_key: str
    signature: str


class BillKey(TypedDict):
    """A public key of bills, Ed25519 in hex digits. ``is_active``: it signs new ones."""

    key_id: str
    public_key: str
    is_active: bool


class BillKeyPage(Page):
    items: list[BillKey]
