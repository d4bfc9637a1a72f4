"""The output of a job's ranks and launchers, in pieces as hosts relay them."""

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Identity, Index
from sqlalchemy.orm import Mapped, mapped_column

from muster.db.base import Base
from muster.domain.ids import AttemptId, JobId, NodeId, TenantId


class LogChunk(Base):
    """``stream`` is a rank's number or ``launcher``; a piece relayed twice has the same ``byte_offset`` and is one row.

    ``position`` is given at insert: with several writers a reader may see a smaller one commit later.
    """

    __tablename__ = "log_chunks"
    __table_args__ = (
        Index(None, "job_id", "position"),
        CheckConstraint("byte_offset >= 0", name="byte_offset"),
    )

    attempt_id: Mapped[AttemptId] = mapped_column(ForeignKey("attempts.id"), primary_key=True)
    node_id: Mapped[NodeId] = mapped_column(primary_key=True)
    stream: Mapped[str] = mapped_column(primary_key=True)
    byte_offset: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    tenant_id: Mapped[TenantId]
    job_id: Mapped[JobId]
    content: Mapped[bytes]
    received_at: Mapped[datetime] = mapped_column(index=True)
    position: Mapped[int] = mapped_column(BigInteger, Identity(always=True), init=False)
