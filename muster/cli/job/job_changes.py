"""``muster job cancel``, ``hold``, ``release`` and ``retry``: of one job, or of all that options select."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import typer

from muster.cli.framework.bulk import Expect, JobSelection, Send, change_all, require_one
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


@dataclass(frozen=True)
class ChangeOptions(JobSelection):
    """The job to change, or the conditions of many jobs, and why."""

    job_id: MaybeJob = None
    reason: Reason = None
    expect: Expect = None
    dry_run: DryRun = False


def cancel(wanted: ChangeOptions) -> Done | Page:
    """Cancel a job: at once while it waits, else after its programs have stopped.

    Without JOB, options such as --tenant select jobs: type it with --dry-run first, which shows them and their number.
    """
    return _changed(wanted, lambda client: (client.cancel_job, client.cancel_jobs), "cancelled")


def hold(wanted: ChangeOptions) -> Done | Page:
    """Hold a job that waits for GPUs: it is not placed until `muster job release`.

    Without JOB, options such as --tenant select jobs: type it with --dry-run first, which shows them and their number.
    """
    return _changed(wanted, lambda client: (client.hold_job, client.hold_jobs), "held")


def release(wanted: ChangeOptions) -> Done | Page:
    """Release a job from HELD into the queue; only an operator may release a suspect program.

    Without JOB, options such as --tenant select jobs: type it with --dry-run first, which shows them and their number.
    """
    return _changed(wanted, lambda client: (client.release_job, client.release_jobs), "released")


def retry(wanted: ChangeOptions, *, follow: Follow = False, must_wait: Wait = False) -> Answer:
    """Submit a failed or cancelled job again, as it was. The new job begins at its first step.

    Without JOB, options such as --state select jobs: type it with --dry-run first, which shows them and their number.
    A job of which there is a copy already is left alone.
    """
    require_one(wanted.job_id, wanted, "JOB")
    if wanted.job_id is not None:
        for option, is_given in (("--reason", wanted.reason is not None), ("--expect", wanted.expect is not None)):
            if is_given:
                raise unfit(option, "it is for jobs that options select: leave it out, or leave JOB out")
        return retry_one(wanted.job_id, follow=follow, must_wait=must_wait, dry_run=wanted.dry_run)
    for option, is_given in (("--follow", follow), ("--wait", must_wait)):
        if is_given:
            raise unfit(option, "it is for one job: name JOB")
    with open_client() as client:
        return _all_changed(client, client.retry_jobs, wanted, "submitted again")


class _ChangeOne(Protocol):
    def __call__(self, job_id: str, reason: str | None, /, *, dry_run: bool) -> "documents.ChangedJob": ...


def _changed(wanted: ChangeOptions, calls: "Callable[[RestClient], tuple[_ChangeOne, Send]]", done: str) -> Done | Page:
    """Change the named job, or all that options select. ``calls``: of one job, and of many."""
    require_one(wanted.job_id, wanted, "JOB")
    with open_client() as client:
        change_one, change_many = calls(client)
        if wanted.job_id is None:
            return _all_changed(client, change_many, wanted, done)
        job = change_one(wanted.job_id, wanted.reason, dry_run=wanted.dry_run)
    return Done(job, state_line(job))


def _all_changed(client: "RestClient", send: Send, wanted: ChangeOptions, done: str) -> Page:
    return change_all(
        client, send, wanted, reason=wanted.reason, expect=wanted.expect, dry_run=wanted.dry_run, done=done
    )
