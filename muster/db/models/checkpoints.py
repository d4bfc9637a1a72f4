"""Checkpoints: the generations of a job's state."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column, relationship

from muster.db.base import Base, EnumText, one_of
from muster.db.models.attempts import Attempt
from muster.domain.ids import AttemptId, CheckpointId, Fence, JobId, TenantId
from muster.domain.states import CheckpointStatus


class Checkpoint(Base):
    """One generation: ``generation`` is its folder's name; ``manifest`` has what was reported of its files.

    ``pinned_at``, ``pinned_by``: when a principal pinned it, and which one. ``pin_applied_at``: since when it has its
    program's mark of that in its store. ``scrubbed_at``: when it was last read again and found as it was saved.
    """

    __tablename__ = "checkpoints"
    __table_args__ = (
        Index("ix_checkpoints_generations", "job_id", "fence", "step"),
        Index(
            "ix_checkpoints_durable",
            "job_id",
            "committed_at",
            postgresql_where=text("status IN ('VERIFIED', 'GOOD')"),
        ),
        Index("ix_checkpoints_pinned", "job_id", postgresql_where=text("pinned_at IS NOT NULL")),
        UniqueConstraint("job_id", "generation"),
        CheckConstraint("step >= 0", name="step"),
    )

    id: Mapped[CheckpointId] = mapped_column(primary_key=True)
    job_id: Mapped[JobId] = mapped_column(ForeignKey("jobs.id"))
    attempt_id: Mapped[AttemptId] = mapped_column(ForeignKey("attempts.id"), index=True)
    tenant_id: Mapped[TenantId] = mapped_column(ForeignKey("tenants.id"))
    fence: Mapped[Fence]
    step: Mapped[int] = mapped_column(BigInteger)
    generation: Mapped[str]
    status: Mapped[CheckpointStatus] = mapped_column(EnumText(CheckpointStatus), one_of("status", CheckpointStatus))
    manifest: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]
    committed_at: Mapped[datetime | None] = mapped_column(default=None)
    verified_at: Mapped[datetime | None] = mapped_column(default=None)
    num_bytes: Mapped[int | None] = mapped_column(BigInteger, default=None)
    reason: Mapped[str | None] = mapped_column(default=None)
    pinned_at: Mapped[datetime | None] = mapped_column(default=None)
    pinned_by: Mapped[str | None] = mapped_column(default=None)
    pin_applied_at: Mapped[datetime | None] = mapped_column("pin_held_at", default=None)
    scrubbed_at: Mapped[datetime | None] = mapped_column(default=None)

    attempt: Mapped[Attempt] = relationship(lazy="raise", init=False)
