"""The output of a job's ranks and launchers, in pieces as hosts relay them."""

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, Index, Sequence, text
from sqlalchemy.orm import Mapped, mapped_column

from muster.db.base import Base
from muster.domain.ids import AttemptId, JobId, NodeId, TenantId

_POSITIONS = Sequence("log_chunks_position_seq", metadata=Base.metadata)


class LogChunk(Base):
    """``stream`` is a rank's number or ``launcher``; a piece relayed twice has the same ``byte_offset`` and is one row.

    ``position`` is given at insert: with several writers a reader may see a smaller one commit later.

    Each day of ``received_at`` has its own partition, in which the key is unique (``control.system.log_days``); what
    stores a piece looks for it in the days before. Attempts are never deleted, so no foreign key checks them.
    """

    __tablename__ = "log_chunks"

    attempt_id: Mapped[AttemptId] = mapped_column()
    node_id: Mapped[NodeId] = mapped_column()
    stream: Mapped[str] = mapped_column()
    byte_offset: Mapped[int] = mapped_column(BigInteger)
    tenant_id: Mapped[TenantId]
    job_id: Mapped[JobId]
    content: Mapped[bytes]
    received_at: Mapped[datetime]
    position: Mapped[int] = mapped_column(
        BigInteger, server_default=text(f"nextval('{_POSITIONS.name}'::regclass)"), init=False
    )
    __table_args__ = (
        Index(None, "job_id", "position"),
        CheckConstraint("byte_offset >= 0", name="byte_offset"),
        {"postgresql_partition_by": "RANGE (received_at)"},
    )
    __mapper_args__ = {"primary_key": (attempt_id, node_id, stream, byte_offset)}  # noqa: RUF012  # as SQLAlchemy reads it
