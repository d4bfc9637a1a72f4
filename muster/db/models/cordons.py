"""Cordons: owned, reasoned, expiring records that keep a node or GPU out of new placements."""

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, Index, text
from sqlalchemy.orm import Mapped, mapped_column, relationship

from muster.db.base import Base
from muster.db.models.gpus import Gpu
from muster.db.models.nodes import Node
from muster.domain.ids import GpuUuid, NodeId


class Cordon(Base):
    """A cordon on exactly one of node and GPU. The place is schedulable only when none is in force.

    ``starts_at``: when it comes into force; None: when it was created. ``evacuate_at``: when jobs there are asked to
    leave before it starts; None: they run on.
    """

    __tablename__ = "cordons"
    __table_args__ = (
        CheckConstraint("num_nonnulls(node_id, gpu_uuid) = 1", name="one_place"),
        CheckConstraint("(released_at IS NULL) = (released_by IS NULL)", name="released"),
        CheckConstraint("evacuate_at <= starts_at", name="evacuate"),
        Index("ix_cordons_node_id_open", "node_id", postgresql_where=text("released_at IS NULL")),
        Index("ix_cordons_gpu_uuid_open", "gpu_uuid", postgresql_where=text("released_at IS NULL")),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    node_id: Mapped[NodeId | None] = mapped_column(ForeignKey("nodes.id"), default=None)
    gpu_uuid: Mapped[GpuUuid | None] = mapped_column(ForeignKey("gpus.uuid"), default=None)
    reason_code: Mapped[str]
    reason: Mapped[str]
    owner: Mapped[str]
    starts_at: Mapped[datetime | None] = mapped_column(default=None)
    evacuate_at: Mapped[datetime | None] = mapped_column(default=None)
    until: Mapped[datetime | None] = mapped_column(default=None)
    created_at: Mapped[datetime]
    released_at: Mapped[datetime | None] = mapped_column(default=None)
    released_by: Mapped[str | None] = mapped_column(default=None)

    node: Mapped[Node | None] = relationship(lazy="raise", init=False)
    gpu: Mapped[Gpu | None] = relationship(lazy="raise", init=False)
