"""The agents that answer probes of other hosts."""

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from muster.db.base import Base
from muster.domain.ids import NodeId


class PairProbeResponder(Base):
    """The agent of a node answers at ``port`` of the node's address, by its report of ``reported_at``, in ``boot_id``.

    ``session``: one run of the agent's process, so that datagrams lost during its restart count against no network.
    """

    __tablename__ = "pair_probe_responders"
    __table_args__ = (CheckConstraint("port BETWEEN 1 AND 65535", name="port"),)

    node_id: Mapped[NodeId] = mapped_column(ForeignKey("nodes.id"), primary_key=True)
    session: Mapped[str]
    port: Mapped[int]
    reported_at: Mapped[datetime] = mapped_column("told_at")
    boot_id: Mapped[str | None] = mapped_column(default=None)
