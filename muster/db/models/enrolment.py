"""The enrolment of hosts: one-time join tokens, and the identity of each enrolled host's agent."""

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey
from sqlalchemy.orm import Mapped, mapped_column, relationship

from muster.db.base import Base
from muster.db.models.nodes import Node
from muster.domain.ids import NodeId


class JoinToken(Base):
    """Bound to one host name and a short time, used once. Of the secret only its SHA-256 is stored (I17)."""

    __tablename__ = "join_tokens"
    __table_args__ = (CheckConstraint("expires_at > created_at", name="expires_at"),)

    prefix: Mapped[str] = mapped_column(primary_key=True)
    secret_sha256: Mapped[bytes]
    host_name: Mapped[str]
    address: Mapped[str | None] = mapped_column(default=None)
    rack: Mapped[str | None] = mapped_column(default=None)
    created_by: Mapped[str]
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]
    used_at: Mapped[datetime | None] = mapped_column(default=None)


class NodeIdentity(Base):
    """``instance`` is a random word of the agent's running process: two that alternate are a cloned disk.

    ``challenge_ms`` is the newest signed time; only later ones are taken, so a recorded request opens nothing.
    """

    __tablename__ = "node_identities"
    __table_args__ = (CheckConstraint("octet_length(public_key) = 32", name="public_key"),)

    node_id: Mapped[NodeId] = mapped_column(ForeignKey("nodes.id"), primary_key=True)
    public_key: Mapped[bytes] = mapped_column(unique=True)
    enrolled_at: Mapped[datetime]
    joined_by: Mapped[str]
    instance: Mapped[str | None] = mapped_column(default=None)
    boot_id: Mapped[str | None] = mapped_column(default=None)
    past_instances: Mapped[list[str]] = mapped_column(default_factory=list)
    challenge_ms: Mapped[int] = mapped_column(BigInteger, default=0)
    token_issued_at: Mapped[datetime | None] = mapped_column(default=None)
    cloned_at: Mapped[datetime | None] = mapped_column(default=None)

    node: Mapped[Node] = relationship(lazy="raise", init=False)
