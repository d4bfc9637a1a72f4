"""Stored content: folders, the objects that they consist of, and the jobs that use them."""

from datetime import datetime
from typing import Final

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Identity, Index, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from muster.db.base import Base, EnumText, one_of
from muster.domain.ids import AttemptId, CheckpointId, JobId, NodeId, TenantId
from muster.domain.stored_content import FolderKind, FolderState, ObjectKind, ObjectState

_DIGEST: Final = r"digest ~ '^[0-9a-f]{64}$'"


class StoredFolder(Base):
    """A folder of a tenant. ``digest``: of its manifest. ``num_bytes``: of its files.

    ``active_at``: when it was last submitted with a job; of an upload, when it last made progress.
    """

    __tablename__ = "stored_folders"
    __table_args__ = (
        UniqueConstraint("tenant_id", "kind", "digest"),
        CheckConstraint(_DIGEST, name="digest"),
        CheckConstraint("num_bytes >= 0 AND num_files >= 0", name="sizes"),
        CheckConstraint("(state = 'complete') = (completed_at IS NOT NULL)", name="completed"),
        Index(None, "state", "active_at"),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True, init=False)
    tenant_id: Mapped[TenantId] = mapped_column(ForeignKey("tenants.id"))
    kind: Mapped[FolderKind] = mapped_column(EnumText(FolderKind), one_of("kind", FolderKind))
    digest: Mapped[str]
    num_bytes: Mapped[int] = mapped_column(BigInteger)
    num_files: Mapped[int]
    state: Mapped[FolderState] = mapped_column(EnumText(FolderState), one_of("state", FolderState))
    created_by: Mapped[str]
    created_at: Mapped[datetime]
    active_at: Mapped[datetime]
    completed_at: Mapped[datetime | None] = mapped_column(default=None)


class StoredObject(Base):
    """A chunk or manifest of a tenant, whether or not the store has it yet.

    ``idle_at``: since when no folder names it; None: one does. ``doomed_at``: when its newest deletion was decided.
    ``gone_at``: when the store had answered that deletion. ``num_stored``: how often the store has taken it.
    """

    __tablename__ = "stored_objects"
    __table_args__ = (
        UniqueConstraint("tenant_id", "kind", "digest"),
        CheckConstraint("octet_length(digest) = 32", name="digest"),
        CheckConstraint("num_bytes > 0", name="num_bytes"),
        CheckConstraint("(state = 'doomed') = (doomed_at IS NOT NULL)", name="doomed"),
        CheckConstraint("gone_at IS NULL OR state = 'doomed'", name="gone"),
        Index("ix_stored_objects_absent", "tenant_id", "id", postgresql_where=text("state <> 'present'")),
        Index("ix_stored_objects_idle", "idle_at", postgresql_where=text("idle_at IS NOT NULL")),
        Index("ix_stored_objects_doomed", "doomed_at", postgresql_where=text("doomed_at IS NOT NULL")),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True, init=False)
    tenant_id: Mapped[TenantId] = mapped_column(ForeignKey("tenants.id"))
    kind: Mapped[ObjectKind] = mapped_column(EnumText(ObjectKind), one_of("kind", ObjectKind))
    digest: Mapped[bytes]
    num_bytes: Mapped[int] = mapped_column(BigInteger)
    state: Mapped[ObjectState] = mapped_column(EnumText(ObjectState), one_of("state", ObjectState))
    idle_at: Mapped[datetime | None] = mapped_column(default=None)
    doomed_at: Mapped[datetime | None] = mapped_column(default=None)
    gone_at: Mapped[datetime | None] = mapped_column(default=None)
    num_stored: Mapped[int] = mapped_column(default=0, server_default=text("0"))


class ObjectReport(Base):
    """An object that a host could not read from the store. The control plane reads it itself before it acts.

    ``node_id``: the host; None: it is in a folder of which another object is lost. ``checked_at``: when the control
    plane read it and found it right; None: it is to be read.
    """

    __tablename__ = "object_reports"
    __table_args__ = (Index(None, "checked_at", "reported_at"),)

    object_id: Mapped[int] = mapped_column(
        BigInteger, ForeignKey("stored_objects.id", ondelete="CASCADE"), primary_key=True
    )
    node_id: Mapped[NodeId | None] = mapped_column(ForeignKey("nodes.id"))
    reported_at: Mapped[datetime]
    checked_at: Mapped[datetime | None] = mapped_column(default=None)


class FolderObject(Base):
    """A folder names an object: the row of the object stays as long as this one."""

    __tablename__ = "folder_objects"

    folder_id: Mapped[int] = mapped_column(
        BigInteger, ForeignKey("stored_folders.id", ondelete="CASCADE"), primary_key=True
    )
    object_id: Mapped[int] = mapped_column(BigInteger, ForeignKey("stored_objects.id"), primary_key=True, index=True)


class FolderJob(Base):
    """A job uses a folder: the row of the folder stays as long as this one.

    ``is_awaited``: the job is HELD until the folder is whole again.
    """

    __tablename__ = "folder_jobs"
    __table_args__ = (Index("ix_folder_jobs_awaited", "folder_id", postgresql_where=text("is_awaited")),)

    job_id: Mapped[JobId] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    folder_id: Mapped[int] = mapped_column(BigInteger, ForeignKey("stored_folders.id"), primary_key=True, index=True)
    is_awaited: Mapped[bool] = mapped_column(default=False, server_default=text("false"))


class FolderFile(Base):
    """A file of a folder of outputs, so that lists need no manifest. ``number``: by its path, in the order of bytes."""

    __tablename__ = "folder_files"
    __table_args__ = (CheckConstraint("number >= 1 AND num_bytes >= 0", name="numbers"),)

    folder_id: Mapped[int] = mapped_column(
        BigInteger, ForeignKey("stored_folders.id", ondelete="CASCADE"), primary_key=True
    )
    number: Mapped[int] = mapped_column(primary_key=True)
    path: Mapped[str]
    num_bytes: Mapped[int] = mapped_column(BigInteger)


class JobOutput(Base):
    """Files of one host's part of an attempt, that were collected at its end or at a checkpoint.

    ``step``: the checkpoint's; None: at the end. The row of its folder stays as long as this one. ``checkpoint_id``:
    of the checkpoint; None: at the end, or it was not reported, or the step was saved again after a rollback.
    """

    __tablename__ = "job_outputs"
    __table_args__ = (
        UniqueConstraint("attempt_id", "node_rank", "step", postgresql_nulls_not_distinct=True),
        CheckConstraint("node_rank >= 0 AND step >= 0", name="numbers"),
        Index(None, "job_id", "id"),
        Index("ix_job_outputs_checkpoint_id", "checkpoint_id", postgresql_where=text("checkpoint_id IS NOT NULL")),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True, init=False)
    job_id: Mapped[JobId] = mapped_column(ForeignKey("jobs.id"))
    attempt_id: Mapped[AttemptId] = mapped_column(ForeignKey("attempts.id"))
    node_rank: Mapped[int]
    step: Mapped[int | None] = mapped_column(BigInteger)
    folder_id: Mapped[int] = mapped_column(BigInteger, ForeignKey("stored_folders.id"), index=True)
    created_at: Mapped[datetime]
    checkpoint_id: Mapped[CheckpointId | None] = mapped_column(
        ForeignKey("checkpoints.id", ondelete="SET NULL"), default=None
    )


class ContentUse(Base):
    """The bytes of a tenant's objects that a folder names.

    Whatever changes a tenant's folders or objects locks this row first, so that two of one tenant follow each other.
    """

    __tablename__ = "content_use"
    __table_args__ = (CheckConstraint("num_bytes >= 0", name="num_bytes"),)

    tenant_id: Mapped[TenantId] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    num_bytes: Mapped[int] = mapped_column(BigInteger)
