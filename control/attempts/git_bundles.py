"""The bundle of a job that names a git commit: what it is made from, and when it is there."""

from typing import Final

from sqlalchemy import select

from control.attempts.mapping import job_request, replace_request
from control.attempts.open_preflights import end_open_preflight
from control.content.uses import pin_folder
from control.core.unit_of_work import SCHEDULER_CHANNEL, UnitOfWork
from muster.db.models import Job, StoredFolder
from muster.domain.errors import ValidationFailedError
from muster.domain.job.git_spec import GitSource, is_allowed
from muster.domain.policy.document import Policy
from muster.domain.stored_content import FolderKind, FolderState

_MOST_LISTED: Final = 10


def git_of(unit: UnitOfWork, job: Job) -> GitSource | None:
    """Return the commit that the job names, without the rest of its program, which may be long."""
    found = unit.session.scalars(select(Job.spec["program"]["git"]).where(Job.id == job.id)).one()
    return None if found is None else GitSource.model_validate(found, strict=False)


def refusal_of(git: GitSource, policy: Policy) -> str | None:
    """Return why hosts do not fetch from this repository; None: the operator allows it."""
    hosts = policy.content.git_hosts
    if is_allowed(git.url, hosts):
        return None
    if not hosts:
        return "is on no host that the operator allows: `content.git_hosts` of the policy is empty. Ask the operator"
    shown = ", ".join(hosts[:_MOST_LISTED]) + (" and others" if len(hosts) > _MOST_LISTED else "")
    return f"is on no host that the operator allows by `content.git_hosts` of the policy: {shown}"


def require_allowed(git: GitSource, policy: Policy) -> None:
    """Raise ValidationFailedError if the operator does not name the repository's host."""
    why = refusal_of(git, policy)
    if why is not None:
        raise ValidationFailedError.at("/program/git/url", "git_host_not_allowed", why)


def take_bundle(unit: UnitOfWork, job: Job, folder: StoredFolder) -> None:
    """Make the folder the bundle of the job, which is locked: its hosts fetch it like one that was uploaded."""
    pin_folder(unit, job.id, folder)
    if job_request(job).awaits_bundle:
        replace_request(job, bundle=folder.digest, awaits_bundle=False)


def await_damaged_again(unit: UnitOfWork, job: Job) -> bool:
    """Have the bundle of a locked job made again, if the store lacks a part of it. Return whether it is made again."""
    digest = job_request(job).bundle
    if digest is None or git_of(unit, job) is None:
        return False
    is_whole = select(StoredFolder.id).where(
        StoredFolder.tenant_id == job.tenant_id,
        StoredFolder.kind == FolderKind.BUNDLE,
        StoredFolder.digest == digest,
        StoredFolder.state == FolderState.COMPLETE,
    )
    if unit.session.scalars(is_whole).first() is not None:
        return False
    replace_request(job, bundle=None, awaits_bundle=True)
    end_open_preflight(unit, job)  # it may fetch the damaged one
    unit.wake(SCHEDULER_CHANNEL)
    return True
