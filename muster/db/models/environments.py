"""Builds of environments and of bundles of git commits, by tenant and key, and the jobs that asked for each."""

from datetime import datetime
from typing import Final

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Identity, Index, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from muster.db.base import Base, EnumText, one_of
from muster.domain.ids import JobId, NodeId, TenantId
from muster.domain.job.environment_builds import BuildState

_KEY: Final = r"key ~ '^[0-9a-f]{64}$'"


class EnvironmentBuild(Base):
    """An environment of a tenant, or a bundle. ``key``: of recipe, lock file, interpreter and platform.

    ``source``: the commit that a bundle is made from, as ``URL COMMIT``; None: it is an environment.
    ``part_id``, ``node_id``: the attempt or preflight, and its host, that builds or built it last. ``lease_until``: how
    long the one that builds has the claim. ``words``, ``line``, ``log``: of the newest failure.
    """

    __tablename__ = "environment_builds"
    __table_args__ = (
        UniqueConstraint("tenant_id", "key"),
        CheckConstraint(_KEY, name="key"),
        CheckConstraint("(state = 'building') = (lease_until IS NOT NULL)", name="lease"),
        CheckConstraint("(state = 'built') = (folder_id IS NOT NULL)", name="folder"),
        Index(None, "state", "changed_at"),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True, init=False)
    tenant_id: Mapped[TenantId] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"))
    key: Mapped[str]
    interpreter: Mapped[str]
    platform: Mapped[str]
    state: Mapped[BuildState] = mapped_column(EnumText(BuildState), one_of("state", BuildState))
    created_at: Mapped[datetime]
    changed_at: Mapped[datetime]
    part_id: Mapped[str | None] = mapped_column(default=None)
    node_id: Mapped[NodeId | None] = mapped_column(ForeignKey("nodes.id"), default=None)
    lease_until: Mapped[datetime | None] = mapped_column(default=None)
    folder_id: Mapped[int | None] = mapped_column(
        BigInteger, ForeignKey("stored_folders.id", ondelete="CASCADE"), index=True, default=None
    )
    words: Mapped[str] = mapped_column(default="")
    line: Mapped[int | None] = mapped_column(default=None)
    log: Mapped[str] = mapped_column(default="")
    source: Mapped[str | None] = mapped_column(default=None)


class EnvironmentJob(Base):
    """A job asked for an environment."""

    __tablename__ = "environment_jobs"

    job_id: Mapped[JobId] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    build_id: Mapped[int] = mapped_column(
        BigInteger, ForeignKey("environment_builds.id", ondelete="CASCADE"), primary_key=True, index=True
    )
