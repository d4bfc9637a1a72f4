"""GPUs, every move of their standing, and the standings that persons set over them."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Identity, Index, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column, relationship

from muster.db.base import Base, EnumText, one_of
from muster.db.models.nodes import Node
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.states import Standing


class Gpu(Base):
    """One device by its NVML UUID. ``origin_standing`` is where SUSPECT or QUARANTINED came from.

    ``standing_since``: its newest move; None before the first. ``attributes``: what its agent reports of it, by the
    names of ``domain.gpu.cohort_attributes``; what stands in columns of its own is not repeated there.
    """

    __tablename__ = "gpus"
    __table_args__ = (
        UniqueConstraint("node_id", "slot_index"),
        CheckConstraint("score BETWEEN 0 AND 100", name="score"),
        CheckConstraint("slot_index >= 0", name="slot_index"),
        CheckConstraint("memory_bytes > 0", name="memory_bytes"),
        Index("ix_gpus_serial", "serial", postgresql_where=text("serial IS NOT NULL")),
        Index("ix_gpus_score", text("COALESCE(score, 101)"), "uuid"),
        Index("ix_gpus_judge_at", "judge_at", postgresql_where=text("judge_at IS NOT NULL")),
    )

    uuid: Mapped[GpuUuid] = mapped_column(primary_key=True)
    node_id: Mapped[NodeId] = mapped_column(ForeignKey("nodes.id"))
    slot_index: Mapped[int]
    serial: Mapped[str | None] = mapped_column(default=None)
    model: Mapped[str]
    memory_bytes: Mapped[int] = mapped_column(BigInteger)
    compute_capability: Mapped[str]
    driver_version: Mapped[str]
    standing: Mapped[Standing] = mapped_column(EnumText(Standing), one_of("standing", Standing), index=True)
    origin_standing: Mapped[Standing | None] = mapped_column(
        EnumText(Standing), one_of("origin_standing", Standing), default=None
    )
    standing_since: Mapped[datetime | None] = mapped_column(default=None)
    score: Mapped[int | None] = mapped_column(default=None)
    score_valid_until: Mapped[datetime | None] = mapped_column(default=None)
    judge_at: Mapped[datetime | None] = mapped_column(default=None)
    is_mig_enabled: Mapped[bool] = mapped_column(default=False)
    is_simulated: Mapped[bool] = mapped_column(default=False)
    cohort_key: Mapped[str] = mapped_column(index=True)
    attributes: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'"), default_factory=dict)
    version: Mapped[int] = mapped_column(default=1, init=False)
    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012  # SQLAlchemy reads this plain class attribute

    node: Mapped[Node] = relationship(lazy="raise", init=False)


class GpuStandingChange(Base):
    """One move of one GPU's standing: from, to, time, reason, actor and policy."""

    __tablename__ = "gpu_standing_changes"
    __table_args__ = (
        Index(None, "gpu_uuid", "id"),
        Index("ix_gpu_standing_changes_quarantined", "at", "gpu_uuid", postgresql_where=text("target = 'QUARANTINED'")),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True, init=False)
    gpu_uuid: Mapped[GpuUuid] = mapped_column(ForeignKey("gpus.uuid"))
    origin: Mapped[Standing | None] = mapped_column(EnumText(Standing), one_of("origin", Standing), default=None)
    target: Mapped[Standing] = mapped_column(EnumText(Standing), one_of("target", Standing))
    at: Mapped[datetime]
    reason: Mapped[str]
    actor: Mapped[str]
    policy_version: Mapped[int | None] = mapped_column(ForeignKey("policy_versions.version"), default=None)
    move_reason: Mapped[str | None] = mapped_column(default=None)
    evidence_ids: Mapped[list[str]] = mapped_column(default_factory=list)

    gpu: Mapped[Gpu] = relationship(lazy="raise", init=False)


class GpuOverride(Base):
    """A person's standing for a GPU until a stated time. It changes no evidence and never hides any."""

    __tablename__ = "gpu_overrides"
    __table_args__ = (
        Index("ix_gpu_overrides_open", "gpu_uuid", postgresql_where=text("ended_at IS NULL")),
        CheckConstraint("until > created_at", name="until"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    gpu_uuid: Mapped[GpuUuid] = mapped_column(ForeignKey("gpus.uuid"))
    standing: Mapped[Standing] = mapped_column(EnumText(Standing), one_of("standing", Standing))
    reason: Mapped[str]
    actor: Mapped[str]
    until: Mapped[datetime]
    created_at: Mapped[datetime]
    ended_at: Mapped[datetime | None] = mapped_column(default=None)

    gpu: Mapped[Gpu] = relationship(lazy="raise", init=False)
