"""The state of the cluster itself: its epoch and fences, the heads of its sequences, its published edges."""

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, Double, text
from sqlalchemy.orm import Mapped, mapped_column

from muster.db.base import Base


class Cluster(Base):
    """One row. ``epoch`` rises with each restore from a backup; ``fence_serial`` with each fence.

    ``num_failures``: attempts that the infrastructure ended, in ``gpu_hours`` of the attempts that ran
    (``failure_rates``). ``api_alive_at``: the API's last own beat; ``accepts_heartbeats_since``: since when it takes
    heartbeats without a gap (R15).
    """

    __tablename__ = "cluster"
    __table_args__ = (CheckConstraint("id = 1", name="only_one"),)

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    epoch: Mapped[int]
    fence_serial: Mapped[int] = mapped_column(BigInteger)
    api_alive_at: Mapped[datetime | None] = mapped_column(default=None)
    accepts_heartbeats_since: Mapped[datetime | None] = mapped_column("accepting_since", default=None)
    num_failures: Mapped[int] = mapped_column(default=0, server_default=text("0"))
    gpu_hours: Mapped[float] = mapped_column(Double, default=0.0, server_default=text("0"))


class SequenceHead(Base):
    """The last position given out in ``events`` or ``audit``. For audit it also holds the last hash: the anchor."""

    __tablename__ = "sequence_heads"

    name: Mapped[str] = mapped_column(primary_key=True)
    position: Mapped[int] = mapped_column(BigInteger)
    hash: Mapped[bytes | None] = mapped_column(default=None)
    updated_at: Mapped[datetime]


class StateEdge(Base):
    """The edges of ``muster.domain.states``, as the database's own triggers read them (I21)."""

    __tablename__ = "state_edges"

    machine: Mapped[str] = mapped_column(primary_key=True)
    origin: Mapped[str] = mapped_column(primary_key=True)
    target: Mapped[str] = mapped_column(primary_key=True)
