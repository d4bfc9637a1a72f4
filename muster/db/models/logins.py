"""Sign-ins of the command, confirmed in the console."""

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from muster.db.base import Base
from muster.domain.ids import KeyId


class CommandLogin(Base):
    """One code that a command shows and a person confirms or denies, once. Of its token only the SHA-256 is stored.

    ``device``: as the command names itself. ``person_id`` or ``holder_key_id``: whose session decided. ``key_id``: the
    key that was made, when the command fetched it.
    """

    __tablename__ = "command_logins"
    __table_args__ = (
        CheckConstraint("expires_at > created_at", name="expires_at"),
        CheckConstraint("(decided_at IS NULL) = (is_confirmed IS NULL)", name="decided"),
        CheckConstraint("(decided_at IS NULL) = (person_id IS NULL AND holder_key_id IS NULL)", name="holder"),
        CheckConstraint("person_id IS NULL OR holder_key_id IS NULL", name="one_holder"),
        CheckConstraint("key_id IS NULL OR is_confirmed", name="key_id"),
        Index("ix_command_logins_without_a_key", "expires_at", postgresql_where=text("key_id IS NULL")),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    code: Mapped[str] = mapped_column(unique=True)
    prefix: Mapped[str] = mapped_column(unique=True)
    secret_sha256: Mapped[bytes]
    device: Mapped[str]
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]
    address: Mapped[str | None] = mapped_column(default=None)
    decided_at: Mapped[datetime | None] = mapped_column(default=None)
    is_confirmed: Mapped[bool | None] = mapped_column(default=None)
    person_id: Mapped[str | None] = mapped_column(ForeignKey("persons.id"), index=True, default=None)
    holder_key_id: Mapped[KeyId | None] = mapped_column(ForeignKey("api_keys.id"), index=True, default=None)
    key_id: Mapped[KeyId | None] = mapped_column(ForeignKey("api_keys.id"), unique=True, default=None)
