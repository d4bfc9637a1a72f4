"""Uses of stored folders by jobs: a folder stays while a job that has not ended uses it."""

from datetime import datetime

from sqlalchemy import ColumnElement, and_, delete, exists, or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from control.content import rows
from control.core.unit_of_work import UnitOfWork
from muster.db.models import Checkpoint, FolderJob, FolderObject, Job, ObjectReport, StoredFolder
from muster.db.models.jobs import IS_OPEN
from muster.domain.errors import ConflictError, ValidationFailedError
from muster.domain.ids import JobId, TenantId
from muster.domain.states import CheckpointStatus
from muster.domain.stored_content import FolderKind, FolderState

_POINTER = "/program/bundle"
_NAMED = 3
_WITHOUT_FILES = (CheckpointStatus.WRITING, CheckpointStatus.REJECTED, CheckpointStatus.EXPIRED)


def usable_bundle(unit: UnitOfWork, tenant_id: TenantId, digest: str) -> StoredFolder:
    """Return the bundle, locked. Raise ValidationFailedError: the tenant has no such bundle, or it is not complete."""
    folder = rows.lock_bundle(unit, tenant_id, digest)
    if folder is None:
        words = f"the tenant has no bundle {digest[:12]}…: it was never uploaded, or was deleted"
        raise ValidationFailedError.at(_POINTER, "unknown_bundle", f"{words}. Submit with the folder again")
    if folder.state is not FolderState.COMPLETE:
        words = f"the bundle {digest[:12]}… is not complete: its upload was broken off"
        raise ValidationFailedError.at(_POINTER, "incomplete_bundle", f"{words}. Submit with the folder again")
    return folder


def pin_folder(unit: UnitOfWork, job_id: JobId, folder: StoredFolder) -> None:
    """Keep the folder while the job has not ended, and let its hosts read it."""
    folder.active_at = unit.now
    row = {"job_id": job_id, "folder_id": folder.id}
    unit.session.execute(insert(FolderJob).values(row).on_conflict_do_nothing())


def note_awaited(unit: UnitOfWork, job_id: JobId, digest: str | None, since: datetime) -> bool:
    """Note that a job is HELD until its bundle is complete again. Return whether a part of it lacks, or did ``since``.

    A job's part on a host may end because a file of the bundle is lost. Until then the bundle may have been stored
    again, or the control plane may not have checked that file yet. The job continues by itself in these cases too.
    """
    was_restored = and_(StoredFolder.created_at < since, StoredFolder.completed_at > since)
    lacking = select(StoredFolder.id).where(
        StoredFolder.kind == FolderKind.BUNDLE,
        StoredFolder.digest == digest,
        or_(StoredFolder.state == FolderState.UPLOADING, was_restored, has_unread_report()),
    )
    row = unit.session.scalar(select(FolderJob).where(FolderJob.job_id == job_id, FolderJob.folder_id.in_(lacking)))
    if row is None:
        return False
    row.is_awaited = True
    return True


def has_unread_report() -> ColumnElement[bool]:
    """Return the condition that a host could not read a part of the folder, and the control plane has yet to try."""
    return exists().where(
        FolderObject.folder_id == StoredFolder.id,
        ObjectReport.object_id == FolderObject.object_id,
        ObjectReport.checked_at.is_(None),
        ObjectReport.node_id.is_not(None),
    )


def await_no_bundle(unit: UnitOfWork, job_id: JobId) -> bool:
    """Note that a HELD job stays so, also once its bundle is whole again. Return whether it waited for that."""
    query = select(FolderJob).where(FolderJob.job_id == job_id, FolderJob.is_awaited)
    rows = unit.session.scalars(query).all()
    for row in rows:
        row.is_awaited = False
    return bool(rows)


def environments_of(session: Session, job_id: JobId) -> tuple[str, ...]:
    """Return the digests of the environments that hosts of a job got."""
    query = (
        select(StoredFolder.digest)
        .join(FolderJob, FolderJob.folder_id == StoredFolder.id)
        .where(FolderJob.job_id == job_id, StoredFolder.kind == FolderKind.ENVIRONMENT)
        .order_by(StoredFolder.id)
    )
    return tuple(session.scalars(query))


def require_unused(unit: UnitOfWork, folder: StoredFolder) -> None:
    """Raise ConflictError, which names jobs, while a job that has not ended uses the folder."""
    query = select(FolderJob.job_id).join(Job, Job.id == FolderJob.job_id)
    query = query.where(FolderJob.folder_id == folder.id, IS_OPEN).order_by(FolderJob.job_id)
    job_ids = unit.session.scalars(query.limit(_NAMED + 1)).all()
    if job_ids:
        named = ", ".join(job_ids[:_NAMED]) + (" and others" if len(job_ids) > _NAMED else "")
        message = f"the bundle {folder.digest[:12]}… is used by jobs that have not ended: {named}"
        raise ConflictError(message, suggestion="Wait until they have ended, or cancel them with `muster job cancel`.")


def remove_ended_uses(unit: UnitOfWork, folder: StoredFolder) -> None:
    """Forget the jobs that used the folder and have ended. A row of any other job refuses the folder's deletion."""
    ended = select(Job.id).where(Job.id == FolderJob.job_id, ~IS_OPEN)
    statement = delete(FolderJob).where(FolderJob.folder_id == folder.id, exists(ended))
    unit.session.execute(statement.execution_options(synchronize_session=False))


def keeps(cutoff: datetime) -> ColumnElement[bool]:
    """Return the condition that a job's use keeps its folder from retention.

    It has not ended before ``cutoff``, or a checkpoint of it is kept, from which another job may continue.
    """
    kept = exists().where(Checkpoint.job_id == FolderJob.job_id, Checkpoint.status.not_in(_WITHOUT_FILES))
    return (
        exists()
        .where(FolderJob.folder_id == StoredFolder.id, Job.id == FolderJob.job_id)
        .where(or_(IS_OPEN, Job.finished_at > cutoff, kept))
    )
