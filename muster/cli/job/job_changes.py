"""``muster job cancel``, ``hold``, ``release`` and ``retry``: of one job, or of all that options select."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from muster.cli.framework.bulk import Expect, JobSelection, change_all, require_one
from muster.cli.framework.names import MaybeJob
from muster.cli.framework.options import unfit
from muster.cli.framework.output import Answer, Done, DryRun, Page, changes
from muster.cli.framework.profile import open_client
from muster.cli.job.files.copies import Follow, Wait, retry_one
from muster.cli.job.job_options import Reason
from muster.cli.job.job_wait import state_line

if TYPE_CHECKING:
    from muster import documents
    from muster.client.rest import RestClient


def add_changes(app: typer.Typer) -> None:
    """Register the verbs."""
    changes(app, "cancel", example="muster job cancel job_… --reason 'wrong data'")(cancel)
    changes(app, "hold", example="muster job hold job_… --reason 'its data is being replaced'")(hold)
    changes(app, "release", example="muster job release job_… --reason 'the data is repaired'")(release)
    changes(app, "retry", example="muster job retry job_…")(retry)


def cancel(
    which: JobSelection,
    job_id: MaybeJob = None,
    reason: Reason = None,
    expect: Expect = None,
    *,
    dry_run: DryRun = False,
) -> Done | Page:
    """Cancel a job: at once while it waits, else after its programs have stopped.

    Without JOB, options such as --tenant select jobs: type it with --dry-run first, which shows them and their number.
    """
    require_one(job_id, which, "JOB")
    if job_id is not None:
        return _one(lambda client: client.cancel_job(job_id, reason, dry_run=dry_run))
    with open_client() as client:
        send = client.cancel_jobs
        return change_all(client, send, which, reason=reason, expect=expect, dry_run=dry_run, done="cancelled")


def hold(
    which: JobSelection,
    job_id: MaybeJob = None,
    reason: Reason = None,
    expect: Expect = None,
    *,
    dry_run: DryRun = False,
) -> Done | Page:
    """Hold a job that waits for GPUs: it is not placed until `muster job release`.

    Without JOB, options such as --tenant select jobs: type it with --dry-run first, which shows them and their number.
    """
    require_one(job_id, which, "JOB")
    if job_id is not None:
        return _one(lambda client: client.hold_job(job_id, reason, dry_run=dry_run))
    with open_client() as client:
        send = client.hold_jobs
        return change_all(client, send, which, reason=reason, expect=expect, dry_run=dry_run, done="held")


def release(
    which: JobSelection,
    job_id: MaybeJob = None,
    reason: Reason = None,
    expect: Expect = None,
    *,
    dry_run: DryRun = False,
) -> Done | Page:
    """Release a job from HELD into the queue; only an operator may release a suspect program.

    Without JOB, options such as --tenant select jobs: type it with --dry-run first, which shows them and their number.
    """
    require_one(job_id, which, "JOB")
    if job_id is not None:
        return _one(lambda client: client.release_job(job_id, reason, dry_run=dry_run))
    with open_client() as client:
        send = client.release_jobs
        return change_all(client, send, which, reason=reason, expect=expect, dry_run=dry_run, done="released")


def retry(
    which: JobSelection,
    job_id: MaybeJob = None,
    reason: Reason = None,
    expect: Expect = None,
    *,
    follow: Follow = False,
    must_wait: Wait = False,
    dry_run: DryRun = False,
) -> Answer:
    """Submit a failed or cancelled job again, as it was. The new job begins at its first step.

    Without JOB, options such as --state select jobs: type it with --dry-run first, which shows them and their number.
    A job of which there is a copy already is left alone.
    """
    require_one(job_id, which, "JOB")
    if job_id is not None:
        for option, is_given in (("--reason", reason is not None), ("--expect", expect is not None)):
            if is_given:
                raise unfit(option, "it is for jobs that options select: leave it out, or leave JOB out")
        return retry_one(job_id, follow=follow, must_wait=must_wait, dry_run=dry_run)
    for option, is_given in (("--follow", follow), ("--wait", must_wait)):
        if is_given:
            raise unfit(option, "it is for one job: name JOB")
    with open_client() as client:
        send = client.retry_jobs
        return change_all(client, send, which, reason=reason, expect=expect, dry_run=dry_run, done="submitted again")


def _one(change: "Callable[[RestClient], documents.ChangedJob]") -> Done:
    with open_client() as client:
        job = change(client)
    return Done(job, state_line(job))
