"""Audit entries: each change with its actor, origin and reason; linked by hash within a second of their commit."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, Identity, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from muster.db.base import Base, EnumText, one_of
from muster.domain.ids import KeyId, TenantId
from muster.domain.principals import Role


class AuditEntry(Base):
    """An audit entry. After the insert ``position``, ``prev_hash`` and ``hash`` are written once and together."""

    __tablename__ = "audit_entries"
    __table_args__ = (
        CheckConstraint("(position IS NULL) = (hash IS NULL)", name="sealed_whole"),
        CheckConstraint("(position IS NULL) = (prev_hash IS NULL)", name="linked"),
        Index("ix_audit_entries_unsealed", "serial", postgresql_where=text("position IS NULL")),
        Index("ix_audit_entries_serial", "serial"),
        Index("ix_audit_entries_at", "at"),
        Index("ix_audit_entries_actor", "actor", "serial"),
        Index("ix_audit_entries_action", "action", "serial"),
        Index("ix_audit_entries_subject_id", "subject_id", "serial"),
        Index("ix_audit_entries_tenant", "tenant_id", "serial"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    serial: Mapped[int] = mapped_column(BigInteger, Identity(always=True), init=False)
    position: Mapped[int | None] = mapped_column(BigInteger, unique=True, default=None)
    at: Mapped[datetime]
    actor: Mapped[str]
    actor_key_id: Mapped[KeyId | None] = mapped_column(default=None)
    role: Mapped[Role] = mapped_column(EnumText(Role), one_of("role", Role))
    action: Mapped[str]
    subject_type: Mapped[str]
    subject_id: Mapped[str]
    tenant_id: Mapped[TenantId | None] = mapped_column(default=None)
    reason: Mapped[str | None] = mapped_column(default=None)
    address: Mapped[str | None] = mapped_column(default=None)
    request_id: Mapped[str | None] = mapped_column(default=None)
    detail: Mapped[dict[str, Any]] = mapped_column(default_factory=dict)
    prev_hash: Mapped[bytes | None] = mapped_column(default=None)
    hash: Mapped[bytes | None] = mapped_column(default=None)
