"""Jobs whose bundle lost a part in the store: they are held, and continue by themselves once it is uploaded again.

A bundle of a git commit is made again without them.
"""

from functools import partial
from typing import Final

from sqlalchemy import and_, or_, select

from control.attempts.attempts import lock_job, step_job
from control.attempts.git_bundles import await_damaged_again, git_of
from control.attempts.mapping import job_request, show_bundle_awaited
from control.content.uses import has_unread_report, note_awaited
from control.core.unit_of_work import UnitOfWorkFactory, declare_action, retrying
from control.policy.policies import active_policy
from muster.db.models import FolderJob, Job, StoredFolder
from muster.domain.ids import JobId
from muster.domain.lifecycle import job as jobs
from muster.domain.principals import system_principal
from muster.domain.state_sets import JOBS_THAT_WAIT_FOR_GPUS
from muster.domain.states import JobState
from muster.domain.stored_content import FolderKind, FolderState

HOLD: Final = declare_action("content.hold_job")
RELEASE: Final = declare_action("content.release_job")
_BATCH: Final = 200
_PRINCIPAL: Final = system_principal("content")


def keep_jobs_once(units: UnitOfWorkFactory) -> bool:
    """Hold pending jobs whose bundle is incomplete, or have it made again, and release those whose bundle is whole.

    A job that was submitted with a whole bundle is pending with an incomplete one only if the store lost a part of it.
    Return whether more is left to do.
    """
    held, released = _to_hold(units), _to_release(units)
    for job_id, digest in held:
        retrying(partial(_hold, units, job_id, digest))
    for job_id in released:
        retrying(partial(_release, units, job_id))
    return max(len(held), len(released)) == _BATCH


def _to_hold(units: UnitOfWorkFactory) -> list[tuple[JobId, str]]:
    query = (
        select(Job.id, StoredFolder.digest)
        .join(FolderJob, FolderJob.job_id == Job.id)
        .join(StoredFolder, StoredFolder.id == FolderJob.folder_id)
        .where(
            StoredFolder.kind == FolderKind.BUNDLE,
            StoredFolder.state == FolderState.UPLOADING,
            Job.state.in_(JOBS_THAT_WAIT_FOR_GPUS),
            # A commit may have had another bundle before, and while it is made again there is none.
            StoredFolder.digest == Job.request["bundle"].astext,
        )
        .order_by(Job.id)
    )
    with units.read() as session:
        return [(JobId(row.id), row.digest) for row in session.execute(query.limit(_BATCH))]


def _to_release(units: UnitOfWorkFactory) -> list[JobId]:
    """Return jobs that await their bundle no longer: it is complete or made from a commit, or the job is not HELD.

    A bundle of which a host reports a lost file counts as incomplete until the control plane has checked that file.
    """
    query = (
        select(FolderJob.job_id)
        .join(StoredFolder, StoredFolder.id == FolderJob.folder_id)
        .join(Job, Job.id == FolderJob.job_id)
        .where(FolderJob.is_awaited)
        .where(
            or_(
                Job.state != JobState.HELD,
                and_(StoredFolder.state == FolderState.COMPLETE, ~has_unread_report()),
                and_(StoredFolder.state != FolderState.COMPLETE, Job.spec["program"]["git"].astext.is_not(None)),
            )
        )
    )
    with units.read() as session:
        return [JobId(job_id) for job_id in session.scalars(query.order_by(FolderJob.job_id).limit(_BATCH))]


def _hold(units: UnitOfWorkFactory, job_id: JobId, digest: str) -> None:
    with units.begin(_PRINCIPAL, HOLD) as unit:
        job = lock_job(unit, job_id)
        if job.state not in JOBS_THAT_WAIT_FOR_GPUS or job_request(job).awaits_bundle:
            return
        lost = f"the content store lost a part of its bundle {digest[:12]}"
        if await_damaged_again(unit, job):
            told = {"reason": f"{lost}: a host makes it from its commit again"}
            unit.emit("job.bundle_lost", "job", job.id, tenant_id=job.tenant_id, payload=told)
            return
        if not note_awaited(unit, job_id, digest, unit.now):
            return
        event = jobs.HoldRequested(f"{lost}: submit the same folder again, and this job continues by itself")
        step_job(unit, job, event, active_policy(unit.session))
        show_bundle_awaited(job)


def _release(units: UnitOfWorkFactory, job_id: JobId) -> None:
    with units.begin(_PRINCIPAL, RELEASE) as unit:
        job = lock_job(unit, job_id)
        rows = select(FolderJob, StoredFolder).join(StoredFolder, StoredFolder.id == FolderJob.folder_id)
        rows = rows.where(FolderJob.job_id == job_id, FolderJob.is_awaited)
        is_of_commit = git_of(unit, job) is not None
        for row, folder in unit.session.execute(rows):
            is_whole = folder.state is FolderState.COMPLETE
            if job.state is JobState.HELD and not is_whole and not is_of_commit:
                continue
            row.is_awaited = False
            if job.state is JobState.HELD:
                what_follows = "is whole again" if is_whole else "is made from its commit again"
                told = {"reason": f"its bundle {folder.digest[:12]} {what_follows}"}
                unit.emit("job.released", "job", job.id, tenant_id=job.tenant_id, payload=told)
                step_job(unit, job, jobs.ReleaseRequested(), active_policy(unit.session))
                await_damaged_again(unit, job)
