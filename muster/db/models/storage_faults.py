"""The places where checkpoints could not be saved."""

from datetime import datetime

from sqlalchemy import BigInteger, ForeignKey, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from muster.db.base import Base
from muster.domain.ids import JobId, NodeId


class StorageFault(Base):
    """Saves of a job that failed on a host at a place. It stands until ``cleared_at``, by saves that succeeded since.

    ``place``: a bucket, the source of a file system that hosts share (``is_shared``), or where a host's own is mounted.
    """

    __tablename__ = "storage_faults"
    __table_args__ = (Index("ix_storage_faults_standing", "node_id", postgresql_where=text("cleared_at IS NULL")),)

    place: Mapped[str] = mapped_column(primary_key=True)
    node_id: Mapped[NodeId] = mapped_column(ForeignKey("nodes.id"), primary_key=True)
    job_id: Mapped[JobId] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    is_shared: Mapped[bool]
    kind: Mapped[str]
    num_failures: Mapped[int] = mapped_column(BigInteger)
    num_saves_since: Mapped[int] = mapped_column(BigInteger)
    first_at: Mapped[datetime]
    last_at: Mapped[datetime]
    cleared_at: Mapped[datetime | None] = mapped_column(default=None)
