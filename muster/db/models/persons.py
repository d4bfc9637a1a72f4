"""Persons who sign in to the console, and their sessions there."""

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from muster.db.base import Base, EnumText, one_of
from muster.domain.ids import KeyId, TenantId
from muster.domain.principals import Role


class Person(Base):
    """``password_hash`` is argon2id with its parameters and salt (I17)."""

    __tablename__ = "persons"
    __table_args__ = (
        CheckConstraint("(role IN ('tenant_member', 'tenant_admin')) = (tenant_id IS NOT NULL)", name="tenant_by_role"),
        CheckConstraint("role NOT IN ('node', 'service')", name="a_persons_role"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    role: Mapped[Role] = mapped_column(EnumText(Role), one_of("role", Role))
    password_hash: Mapped[str]
    created_at: Mapped[datetime]
    tenant_id: Mapped[TenantId | None] = mapped_column(ForeignKey("tenants.id"), index=True, default=None)
    disabled_at: Mapped[datetime | None] = mapped_column(default=None)
    version: Mapped[int] = mapped_column(default=1, init=False)
    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012  # SQLAlchemy reads this plain class attribute


class ConsoleSession(Base):
    """One browser signed in, by a person's password or by an API key. Of its token only the SHA-256 is stored."""

    __tablename__ = "console_sessions"
    __table_args__ = (
        CheckConstraint("(person_id IS NULL) <> (key_id IS NULL)", name="one_holder"),
        CheckConstraint("expires_at > created_at", name="expires_at"),
        Index("ix_console_sessions_live", "expires_at", postgresql_where=text("ended_at IS NULL")),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    prefix: Mapped[str] = mapped_column(unique=True)
    secret_sha256: Mapped[bytes]
    created_at: Mapped[datetime]
    last_seen_at: Mapped[datetime]
    expires_at: Mapped[datetime]
    person_id: Mapped[str | None] = mapped_column(ForeignKey("persons.id"), index=True, default=None)
    key_id: Mapped[KeyId | None] = mapped_column(ForeignKey("api_keys.id"), index=True, default=None)
    address: Mapped[str | None] = mapped_column(default=None)
    ended_at: Mapped[datetime | None] = mapped_column(default=None)
