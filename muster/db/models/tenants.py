"""Tenants and the keys by which anyone acts."""

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, Double, ForeignKey, Index, text
from sqlalchemy.orm import Mapped, mapped_column, relationship

from muster.db.base import Base, EnumText, one_of
from muster.db.models.nodes import Node
from muster.domain.ids import KeyId, NodeId, TenantId
from muster.domain.principals import Role


class Tenant(Base):
    """A tenant. ``parent_id``: the department of a team. ``weight``: its share among the tenants of the same parent.

    ``residency``: its own residency rule, as ``muster.domain.residency`` has it; None: none.
    """

    __tablename__ = "tenants"
    __table_args__ = (
        Index("ix_tenants_residency", "id", postgresql_where=text("residency IS NOT NULL")),
        CheckConstraint("parent_id <> id", name="parent"),
        CheckConstraint("weight > 0 AND weight <= 1000000", name="weight"),
    )

    id: Mapped[TenantId] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    created_at: Mapped[datetime]
    parent_id: Mapped[TenantId | None] = mapped_column(ForeignKey("tenants.id"), index=True, default=None)
    weight: Mapped[float] = mapped_column(Double, default=1.0, server_default=text("1"))
    residency: Mapped[dict[str, Any] | None] = mapped_column(default=None)


class TenantSubmissions(Base):
    """The number of jobs that a tenant may submit at once: ``remaining`` at ``at``; it grows by the policy's rate.

    A submission holds the row's lock until its commit, so that two of one tenant count each other. Other tenants have
    rows of their own.
    """

    __tablename__ = "tenant_submissions"

    tenant_id: Mapped[TenantId] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    remaining: Mapped[float] = mapped_column(Double)
    at: Mapped[datetime]


class TenantPlanning(Base):
    """The seconds of CPU that plans and dry runs of a tenant may take at once: ``left_s`` at ``at``.

    It grows by the policy's rate. It is below 0 after a plan that took more than was left.
    """

    __tablename__ = "tenant_planning"

    tenant_id: Mapped[TenantId] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    left_s: Mapped[float] = mapped_column(Double)
    at: Mapped[datetime]


class ApiKey(Base):
    """``prefix`` is public and finds the row; of the secret only its SHA-256 is stored (I17)."""

    __tablename__ = "api_keys"
    __table_args__ = (
        CheckConstraint("(role IN ('tenant_member', 'tenant_admin')) = (tenant_id IS NOT NULL)", name="tenant_by_role"),
        CheckConstraint("(role = 'node') = (node_id IS NOT NULL)", name="node_by_role"),
    )

    id: Mapped[KeyId] = mapped_column(primary_key=True)
    prefix: Mapped[str] = mapped_column(unique=True)
    secret_sha256: Mapped[bytes]
    name: Mapped[str]
    role: Mapped[Role] = mapped_column(EnumText(Role), one_of("role", Role))
    tenant_id: Mapped[TenantId | None] = mapped_column(ForeignKey("tenants.id"), index=True, default=None)
    node_id: Mapped[NodeId | None] = mapped_column(ForeignKey("nodes.id"), index=True, default=None)
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None] = mapped_column(default=None)
    revoked_at: Mapped[datetime | None] = mapped_column(default=None)
    last_used_at: Mapped[datetime | None] = mapped_column(default=None)
    version: Mapped[int] = mapped_column(default=1, init=False)
    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012  # SQLAlchemy reads this plain class attribute

    tenant: Mapped[Tenant | None] = relationship(lazy="raise", init=False)
    node: Mapped[Node | None] = relationship(lazy="raise", init=False)
