"""Tenants' secrets: of their values only envelopes are stored, under keys that are not in the database (I17)."""

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from muster.db.base import Base
from muster.domain.ids import JobId, SecretId, TenantId


class Secret(Base):
    """A secret without its value. ``jobs``: names of the jobs that may use it; empty: all jobs of its tenant.

    ``version``: of its newest value. A tenant's secrets are removed with the tenant.
    """

    __tablename__ = "secrets"
    __table_args__ = (UniqueConstraint("tenant_id", "name"), CheckConstraint("version > 0", name="version"))

    id: Mapped[SecretId] = mapped_column(primary_key=True)
    tenant_id: Mapped[TenantId] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"))
    name: Mapped[str]
    jobs: Mapped[list[str]]
    version: Mapped[int]
    created_at: Mapped[datetime]
    created_by: Mapped[str]
    rotated_at: Mapped[datetime | None] = mapped_column(default=None)


class SecretVersion(Base):
    """The envelope of one value: ``sealed`` under a data key of its own, which is ``wrapped_key`` under ``key_id``."""

    __tablename__ = "secret_versions"
    __table_args__ = (CheckConstraint("version > 0", name="version"),)

    secret_id: Mapped[SecretId] = mapped_column(ForeignKey("secrets.id", ondelete="CASCADE"), primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True)
    key_id: Mapped[str] = mapped_column(index=True)
    wrapped_key: Mapped[bytes]
    nonce: Mapped[bytes]
    sealed: Mapped[bytes]
    num_bytes: Mapped[int]
    created_at: Mapped[datetime]
    created_by: Mapped[str]


class JobSecret(Base):
    """A secret of its tenant that a job names, as it stood when the job was submitted.

    Other names of the job's are of files that an operator keeps on the hosts.
    """

    __tablename__ = "job_secrets"

    job_id: Mapped[JobId] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
