"""Preflights: checks for a job before it takes GPUs."""

from datetime import datetime

from sqlalchemy import ColumnElement, ForeignKey, Index, text
from sqlalchemy.ext.hybrid import hybrid_method
from sqlalchemy.orm import Mapped, mapped_column

from muster.db.base import Base, EnumText, one_of
from muster.domain.ids import JobId, NodeId
from muster.domain.job.preflight import PreflightState


class PlacementPreflight(Base):
    """The newest one at a job. ``number`` grows with each host that is asked, and fences what an earlier one answers.

    ``tried``: hosts asked without a result since anything was known, and this one. ``after_attempt``: the number of the
    job's last attempt when it was asked; what ends later for want of something makes it out of date.
    """

    __tablename__ = "placement_looks"
    __table_args__ = (Index("ix_placement_looks_node_id_asked", "node_id", postgresql_where=text("state = 'ASKED'")),)

    job_id: Mapped[JobId] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    number: Mapped[int]
    node_id: Mapped[NodeId] = mapped_column(ForeignKey("nodes.id"))
    state: Mapped[PreflightState] = mapped_column(EnumText(PreflightState), one_of("state", PreflightState))
    tried: Mapped[list[str]]
    after_attempt: Mapped[int]
    requested_at: Mapped[datetime] = mapped_column("asked_at")
    deadline_at: Mapped[datetime]
    answered_at: Mapped[datetime | None] = mapped_column(default=None)
    why: Mapped[str] = mapped_column(default="")

    @property
    def preflight_id(self) -> str:
        """Names it to its host, and its folder there."""
        return f"look-{self.number}-{self.job_id}"

    @hybrid_method
    def is_open(self, now: datetime | ColumnElement[datetime]) -> bool:
        """Return whether its host still has to answer; of the class: the condition on rows.

        The preflight of a cancelled or placed job is open until its time is over.
        """
        return (self.state == PreflightState.REQUESTED) & (self.deadline_at > now)  # type: ignore[operator]  # columns
