"""Reclaims: one victim's notice each; and the GPUs that are held for the jobs which they are for."""

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, Double, ForeignKey, Index, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from muster.db.base import Base, EnumText, one_of
from muster.domain.ids import AttemptId, GpuUuid, JobId, ReclaimId, TenantId
from muster.domain.states import ReclaimOutcome, ReclaimState


class Reclaim(Base):
    """One victim's notice for one beneficiary. The lock of the victim's job guards its state.

    ``delivered_at``: when a host of the victim was first notified, after which nothing can be withdrawn.
    ``hold_ended_at``: since when nothing is held for the beneficiary any more.
    ``keeps``: UUIDs, in rank order, with which an elastic victim continues; NULL: it gives all that it has.
    ``cost_gpu_s`` and ``runner_up``: what the choice was made by; ``lost_gpu_s``: what the victim lost in the end.
    """

    __tablename__ = "reclaims"
    __table_args__ = (
        CheckConstraint("(state = 'NOTIFIED') = (settled_at IS NULL)", name="settled"),
        CheckConstraint("(state IN ('RELEASED', 'FORCED')) = (outcome IS NOT NULL)", name="outcome_by_state"),
        CheckConstraint("(outcome IS NULL) = (lost_gpu_s IS NULL)", name="lost"),
        CheckConstraint("(hold_ended_at IS NULL) = (hold_ended_why IS NULL)", name="hold_ended"),
        CheckConstraint("state <> 'WITHDRAWN' OR told_at IS NULL", name="withdrawn_untold"),
        CheckConstraint("deadline_at > notified_at", name="deadline"),
        CheckConstraint("num_gpus > 0", name="num_gpus"),
        CheckConstraint("keeps IS NULL OR jsonb_typeof(keeps) = 'array'", name="keeps"),
        Index("uq_reclaims_victim", "victim_attempt_id", unique=True, postgresql_where=text("state = 'NOTIFIED'")),
        Index("ix_reclaims_holding", "beneficiary_job_id", postgresql_where=text("hold_ended_at IS NULL")),
        Index("ix_reclaims_settled", "settled_at", postgresql_where=text("state IN ('RELEASED', 'FORCED')")),
        Index("ix_reclaims_page", text("notified_at DESC"), text("id DESC")),
    )

    id: Mapped[ReclaimId] = mapped_column(primary_key=True)
    beneficiary_job_id: Mapped[JobId] = mapped_column(ForeignKey("jobs.id"))
    beneficiary_tenant_id: Mapped[TenantId] = mapped_column(ForeignKey("tenants.id"))
    beneficiary_tier: Mapped[str]
    victim_attempt_id: Mapped[AttemptId] = mapped_column(ForeignKey("attempts.id"), index=True)
    victim_job_id: Mapped[JobId] = mapped_column(ForeignKey("jobs.id"))
    victim_tenant_id: Mapped[TenantId] = mapped_column(ForeignKey("tenants.id"))
    victim_tier: Mapped[str]
    num_gpus: Mapped[int]
    state: Mapped[ReclaimState] = mapped_column(EnumText(ReclaimState), one_of("state", ReclaimState))
    reason: Mapped[str]
    notice_s: Mapped[float] = mapped_column(Double)
    notified_at: Mapped[datetime]
    deadline_at: Mapped[datetime]
    delivered_at: Mapped[datetime | None] = mapped_column("told_at", default=None)
    settled_at: Mapped[datetime | None] = mapped_column(default=None)
    settled_why: Mapped[str | None] = mapped_column(default=None)
    outcome: Mapped[ReclaimOutcome | None] = mapped_column(
        EnumText(ReclaimOutcome), one_of("outcome", ReclaimOutcome), default=None
    )
    cost_gpu_s: Mapped[float] = mapped_column(Double)
    lost_gpu_s: Mapped[float | None] = mapped_column(Double, default=None)
    runner_up: Mapped[dict[str, Any] | None] = mapped_column(default=None)
    keeps: Mapped[list[str] | None] = mapped_column(JSONB(none_as_null=True), default=None)
    policy_version: Mapped[int | None] = mapped_column(ForeignKey("policy_versions.version"), default=None)
    hold_ended_at: Mapped[datetime | None] = mapped_column(default=None)
    hold_ended_why: Mapped[str | None] = mapped_column(default=None)


class GpuHold(Base):
    """A GPU that only ``job_id`` may take, free or not yet. One a GPU; gone when the job is placed or waits no more."""

    __tablename__ = "gpu_holds"

    gpu_uuid: Mapped[GpuUuid] = mapped_column(ForeignKey("gpus.uuid"), primary_key=True)
    job_id: Mapped[JobId] = mapped_column(ForeignKey("jobs.id"), index=True)
    created_at: Mapped[datetime]
