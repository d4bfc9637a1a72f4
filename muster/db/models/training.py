"""The reports of a job's ranks on their training: progress, loss, and the position read in each host's file."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, Double, ForeignKey, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from muster.db.base import Base
from muster.domain.ids import AttemptId, JobId, NodeId, TenantId


class TrainingHost(Base):
    """The state of a host's file.

    ``line_offset``: bytes that have had effect; ``num_refused``: lines that did not fit; ``num_steps``: rows of steps
    that its rank 0 has left; ``findings_offset``: bytes of its file of lines about faults that have had effect.
    ``durations``: how long each phase took there (``watch.progress.durations``), of earlier attempts as well.
    """

    __tablename__ = "training_hosts"
    __table_args__ = (CheckConstraint("line_offset >= 0", name="line_offset"),)

    attempt_id: Mapped[AttemptId] = mapped_column(ForeignKey("attempts.id"), primary_key=True)
    node_id: Mapped[NodeId] = mapped_column(primary_key=True)
    line_offset: Mapped[int] = mapped_column(BigInteger, default=0)
    num_refused: Mapped[int] = mapped_column(BigInteger, default=0)
    num_steps: Mapped[int] = mapped_column(BigInteger, default=0, server_default=text("0"))
    findings_offset: Mapped[int] = mapped_column(BigInteger, default=0, server_default=text("0"))
    durations: Mapped[dict[str, Any] | None] = mapped_column(default=None)


class TrainingRank(Base):
    """The newest word of one rank. ``history``: its steps so far, as ``domain.thinned`` keeps them.

    ``pace``: where its time went recently, as ``wire.training.Pace`` without the step. ``warnings``: code → message.
    ``windows``: own compute and waits by windows of steps, as ``watch.stragglers.windows.RankWindows``; ``windows_at``:
    when the newest was over. ``open_window``: the one that its steps are in.
    """

    __tablename__ = "training_ranks"

    attempt_id: Mapped[AttemptId] = mapped_column(ForeignKey("attempts.id"), primary_key=True)
    rank: Mapped[int] = mapped_column(primary_key=True)
    tenant_id: Mapped[TenantId]
    node_id: Mapped[NodeId]
    world_size: Mapped[int | None] = mapped_column(default=None)
    step: Mapped[int | None] = mapped_column(BigInteger, default=None)
    loss: Mapped[float | None] = mapped_column(Double, default=None)
    step_s: Mapped[float | None] = mapped_column(Double, default=None)
    outcome: Mapped[str | None] = mapped_column(default=None)
    updated_at: Mapped[datetime]
    history: Mapped[dict[str, Any] | None] = mapped_column(default=None)
    pace: Mapped[dict[str, Any] | None] = mapped_column(default=None)
    warnings: Mapped[dict[str, Any] | None] = mapped_column(default=None)
    windows: Mapped[dict[str, Any] | None] = mapped_column(default=None)
    open_window: Mapped[dict[str, Any] | None] = mapped_column(default=None)
    windows_at: Mapped[datetime | None] = mapped_column(default=None)


class TrainingStep(Base):
    """One step of one attempt as rank 0 reported it; a step trained again after a resume is another attempt's row,
    and after a rollback takes the place of the first.

    ``pace``: of the steps up to this one since rank 0 last reported it, about a second's.
    """

    __tablename__ = "training_steps"
    __table_args__ = (
        Index(None, "job_id", "step"),
        Index(
            "ix_training_steps_at",
            "at",
            postgresql_using="brin",
            postgresql_with={"pages_per_range": 32, "autosummarize": "on"},
        ),
        Index("ix_training_steps_paced", "attempt_id", "step", postgresql_where=text("pace IS NOT NULL")),
    )

    attempt_id: Mapped[AttemptId] = mapped_column(ForeignKey("attempts.id"), primary_key=True)
    step: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    job_id: Mapped[JobId]
    tenant_id: Mapped[TenantId]
    loss: Mapped[float | None] = mapped_column(Double, default=None)
    step_s: Mapped[float | None] = mapped_column(Double, default=None)
    at: Mapped[datetime]
    pace: Mapped[dict[str, Any] | None] = mapped_column(default=None)
