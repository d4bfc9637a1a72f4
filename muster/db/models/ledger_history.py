"""History that the ledger reads, and of which other rows state the present alone.

Each row is written by the unit of work that makes the change, at the unit's time. It does not change after that,
except that a spare gets its end.
"""

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Identity, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from muster.db.base import Base, EnumText, one_of
from muster.domain.ids import GpuUuid, JobId, NodeId
from muster.domain.states import Contact


class NodeContactChange(Base):
    """From ``at`` on the node's contact was ``contact``."""

    __tablename__ = "node_contact_changes"
    __table_args__ = (Index(None, "node_id", "at"), Index(None, "at"))

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True, init=False)
    node_id: Mapped[NodeId] = mapped_column(ForeignKey("nodes.id"))
    at: Mapped[datetime]
    contact: Mapped[Contact] = mapped_column(EnumText(Contact), one_of("contact", Contact))


class GpuHoldSpan(Base):
    """A hold that has ended: a hold that stands is a ``GpuHold``."""

    __tablename__ = "gpu_hold_spans"
    __table_args__ = (CheckConstraint("began_at <= ended_at", name="ended_at"), Index(None, "ended_at"))

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True, init=False)
    gpu_uuid: Mapped[GpuUuid]
    job_id: Mapped[JobId]
    began_at: Mapped[datetime]
    ended_at: Mapped[datetime]


class GpuSpare(Base):
    """A GPU that the scheduler keeps as a spare, or kept until ``ended_at``."""

    __tablename__ = "gpu_spares"
    __table_args__ = (
        CheckConstraint("began_at <= ended_at", name="ended_at"),
        Index(None, "ended_at"),
        Index("uq_gpu_spares_kept", "gpu_uuid", unique=True, postgresql_where=text("ended_at IS NULL")),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True, init=False)
    gpu_uuid: Mapped[GpuUuid]
    began_at: Mapped[datetime]
    ended_at: Mapped[datetime | None] = mapped_column(default=None)


class JobWaitChange(Base):
    """From ``at`` on the job waited by the reason ``binding``, as ``db.stored_values`` stores it.

    ``binding`` empty: QUEUED, and no cycle has considered it yet. None: it does not wait for GPUs. A job also waits
    from its submission on, and waits no more once an attempt is placed; these two have no row.
    """

    __tablename__ = "job_wait_changes"
    __table_args__ = (Index(None, "job_id", "at"), Index(None, "at"))

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True, init=False)
    job_id: Mapped[JobId]
    at: Mapped[datetime]
    binding: Mapped[str | None]
