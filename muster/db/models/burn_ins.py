"""Burn-ins: orders, what they measured, and what was made of it."""

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from muster.db.base import Base, EnumText, one_of
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.states import BurnInOutcome, BurnInState


class BurnIn(Base):
    """One order for one GPU, open or done. ``tries``: how often it was given; ``began_at``: when its last try began.

    ``earlier_tries``: from when to when each ran that was given back (RFC 3339). While it waits for the next one,
    ``began_at`` is None; the release before left it.
    ``operation``: a suspect one that it repeats (``muster.wire.operations``). ``last_fault``: why a try has no figures.
    ``comparison_key``: GPUs with equal ones are compared. ``open_bands``: bands that too few peers have voted on; they
    are judged again when there are more than ``num_peers``.
    """

    __tablename__ = "burn_ins"
    __table_args__ = (
        CheckConstraint(
            "(state IN ('MEASURED', 'JUDGED')) = (figures IS NOT NULL)"
            " AND (figures IS NULL) = (comparison_key IS NULL)",
            name="measured",
        ),
        CheckConstraint("(state = 'JUDGED') = (outcome IS NOT NULL)", name="judged"),
        CheckConstraint("(state IN ('ORDERED', 'RUNNING')) = (ended_at IS NULL)", name="ended"),
        Index(
            "uq_burn_ins_open",
            "gpu_uuid",
            unique=True,
            postgresql_where=text("state IN ('ORDERED', 'RUNNING', 'MEASURED')"),
        ),
        Index(None, "gpu_uuid", "ordered_at"),
        Index(None, "ordered_at", "id"),
        Index("ix_burn_ins_waiting", "node_id", postgresql_where=text("state IN ('ORDERED', 'RUNNING')")),
        Index("ix_burn_ins_unjudged", "ended_at", postgresql_where=text("state = 'MEASURED'")),
        Index("ix_burn_ins_open_bands", "ended_at", postgresql_where=text("state = 'JUDGED' AND open_bands <> '[]'")),
        Index(
            "ix_burn_ins_comparison_key_ended_at",
            "comparison_key",
            "ended_at",
            postgresql_where=text("comparison_key IS NOT NULL"),
        ),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    gpu_uuid: Mapped[GpuUuid] = mapped_column(ForeignKey("gpus.uuid"))
    node_id: Mapped[NodeId] = mapped_column(ForeignKey("nodes.id"))
    state: Mapped[BurnInState] = mapped_column(EnumText(BurnInState), one_of("state", BurnInState))
    reason: Mapped[str]
    ordered_by: Mapped[str]
    ordered_at: Mapped[datetime]
    operation: Mapped[dict[str, Any] | None] = mapped_column(default=None, kw_only=True)
    tries: Mapped[int] = mapped_column(default=0)
    earlier_tries: Mapped[list[list[str]]] = mapped_column(
        JSONB, server_default=text("'[]'"), default_factory=list, kw_only=True
    )
    began_at: Mapped[datetime | None] = mapped_column(default=None)
    deadline_at: Mapped[datetime | None] = mapped_column(default=None)
    ended_at: Mapped[datetime | None] = mapped_column(default=None)
    last_fault: Mapped[str | None] = mapped_column(default=None)
    comparison_key: Mapped[str | None] = mapped_column(default=None)
    figures: Mapped[dict[str, Any] | None] = mapped_column(default=None)
    outcome: Mapped[BurnInOutcome | None] = mapped_column(
        EnumText(BurnInOutcome), one_of("outcome", BurnInOutcome), default=None
    )
    reasons: Mapped[list[str]] = mapped_column(default_factory=list)
    open_bands: Mapped[list[str]] = mapped_column(default_factory=list)
    num_peers: Mapped[int] = mapped_column(default=0)
    judged_at: Mapped[datetime | None] = mapped_column(default=None)
    policy_version: Mapped[int | None] = mapped_column(ForeignKey("policy_versions.version"), default=None)
