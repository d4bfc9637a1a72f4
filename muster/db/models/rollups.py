"""The health and the capacity of groups of GPUs as they were at times: a round, and in it a row a group."""

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, Index, PrimaryKeyConstraint, SmallInteger
from sqlalchemy.orm import Mapped, mapped_column

from muster.db.base import Base, EnumText, one_of
from muster.domain.gpu.rollup_groups import GroupKind, RoundStep


class RollupRound(Base):
    """A round of roll-ups. There is at most one in five minutes, which begin at ``at``.

    ``taken_at``: the instant that its figures are of. ``step``: the longest period of which it is the first.
    ``has_nodes``: its rows by node are still kept.
    """

    __tablename__ = "rollup_rounds"

    at: Mapped[datetime] = mapped_column(primary_key=True)
    taken_at: Mapped[datetime]
    step: Mapped[RoundStep] = mapped_column(EnumText(RoundStep), one_of("step", RoundStep))
    has_nodes: Mapped[bool]


class HealthRollup(Base):
    """One group in one round. ``key``: what names it; empty: the fleet, or GPUs without a rack or a site.

    Scores are in tenths of a point, or whole. It has no foreign key to its round: fourteen thousand rows of a large
    fleet would look it up one by one. A round and its rows are stored and deleted together.
    """

    __tablename__ = "health_rollups"
    __table_args__ = (
        PrimaryKeyConstraint("kind", "at", "key"),
        Index("ix_health_rollups_past", "kind", "key", "at"),
        CheckConstraint("score_tenths BETWEEN 0 AND mean_tenths AND mean_tenths <= 1000", name="scores"),
        CheckConstraint("num_in_use + num_reserved + num_free <= num_gpus AND num_gpus > 0", name="uses"),
    )

    at: Mapped[datetime]
    kind: Mapped[GroupKind] = mapped_column(EnumText(GroupKind), one_of("kind", GroupKind))
    key: Mapped[str]
    score_tenths: Mapped[int] = mapped_column(SmallInteger)
    mean_tenths: Mapped[int] = mapped_column(SmallInteger)
    worst: Mapped[int] = mapped_column(SmallInteger)
    p10: Mapped[int] = mapped_column(SmallInteger)
    num_nodes: Mapped[int]
    num_gpus: Mapped[int]
    num_healthy: Mapped[int]
    num_admitted: Mapped[int]
    num_in_use: Mapped[int]
    num_reserved: Mapped[int]
    num_free: Mapped[int]
    standings: Mapped[dict[str, Any]]
