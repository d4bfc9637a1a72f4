"""Which process leads, and when each loop of the control plane last advanced."""

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, Double
from sqlalchemy.orm import Mapped, mapped_column

from muster.db.base import Base


class LeaderLeaseRow(Base):
    """The lease of one lead until ``expires_at``, by the database's clock. ``term`` rises with each taking."""

    __tablename__ = "leader_leases"
    __table_args__ = (CheckConstraint("term > 0", name="term"),)

    name: Mapped[str] = mapped_column(primary_key=True)
    holder: Mapped[str]
    term: Mapped[int] = mapped_column(BigInteger)
    taken_at: Mapped[datetime]
    expires_at: Mapped[datetime]


class LoopProgress(Base):
    """A loop of one process, by that process's report of ``reported_at``. ``limit_s``: the age that is a standstill."""

    __tablename__ = "loop_progress"
    __table_args__ = (CheckConstraint("limit_s > 0", name="limit_s"),)

    loop: Mapped[str] = mapped_column(primary_key=True)
    instance: Mapped[str] = mapped_column(primary_key=True)
    component: Mapped[str]
    host: Mapped[str]
    advanced_at: Mapped[datetime]
    reported_at: Mapped[datetime]
    limit_s: Mapped[float] = mapped_column(Double)
