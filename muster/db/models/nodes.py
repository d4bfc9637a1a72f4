"""GPU hosts: place, contact and leases. Heartbeats write with Core updates, which leave ``version`` alone."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, text
from sqlalchemy.orm import Mapped, mapped_column

from muster.db.base import Base, EnumText, one_of
from muster.domain.ids import NodeId, TenantId
from muster.domain.states import Contact


class Node(Base):
    """``address`` is where ranks meet; ``lease_renewed_at`` is when the server last received a heartbeat in time.

    ``capabilities``: of ``wire.host.HOST_CAPABILITIES``, by its host worker's last heartbeat.
    ``rdma_ports``: names of the ports that it enrolled with, sorted.
    ``repair_verbs``: the repairs that its agent may do on a GPU, by its last report, sorted.
    """

    __tablename__ = "nodes"
    __table_args__ = (CheckConstraint("num_gpus >= 0", name="num_gpus"),)

    id: Mapped[NodeId] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    contact: Mapped[Contact] = mapped_column(EnumText(Contact), one_of("contact", Contact), index=True)
    boot_id: Mapped[str | None] = mapped_column(default=None)
    past_boot_ids: Mapped[list[str]] = mapped_column(default_factory=list)
    heartbeat_seq: Mapped[int] = mapped_column(BigInteger, default=0)
    last_heartbeat_at: Mapped[datetime | None] = mapped_column(default=None)
    lease_renewed_at: Mapped[datetime | None] = mapped_column(default=None)
    address: Mapped[str]
    num_gpus: Mapped[int]
    is_simulated: Mapped[bool] = mapped_column(default=False)
    rack: Mapped[str | None] = mapped_column(default=None, index=True)
    labels: Mapped[dict[str, Any]] = mapped_column(default_factory=dict)
    capabilities: Mapped[list[str]] = mapped_column("knows", default_factory=list, server_default=text("'[]'::jsonb"))
    rdma_ports: Mapped[list[str]] = mapped_column(default_factory=list, server_default=text("'[]'::jsonb"))
    repair_verbs: Mapped[list[str]] = mapped_column(default_factory=list, server_default=text("'[]'::jsonb"))
    agent_version: Mapped[str | None] = mapped_column(default=None)
    created_at: Mapped[datetime]
    version: Mapped[int] = mapped_column(default=1, init=False)
    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012  # SQLAlchemy reads this plain class attribute


class NodeBundle(Base):
    """A node holds a whole copy of a tenant's bundle, by its last report.

    ``digest``: 32 bytes, of the bundle's manifest. ``tenant_id``: as reported; a host may name a tenant that the
    control plane, restored to an earlier day, does not know.
    """

    __tablename__ = "node_bundles"
    __table_args__ = (CheckConstraint("octet_length(digest) = 32", name="digest"),)

    node_id: Mapped[NodeId] = mapped_column(ForeignKey("nodes.id"), primary_key=True)
    tenant_id: Mapped[TenantId] = mapped_column(primary_key=True)
    digest: Mapped[bytes] = mapped_column(primary_key=True, index=True)
