"""Changes of a job by a person: cancel it, hold it, release it, change its size, submit the same again."""

from collections.abc import Mapping
from typing import Annotated, Final, Protocol

from fastapi import APIRouter, Request
from starlette.responses import Response

from api.dependencies import dependencies_of
from api.reading import require_id
from console.actions import act, reason_in
from console.forms import Form
from console.session import Viewer, changes
from control.attempts.types import SubmittedJob
from control.core.unit_of_work import UnitOfWork
from control.jobs import holding, jobs, read
from control.placement import resizing
from control.watch import verdicts
from muster.domain.errors import ValidationFailedError
from muster.domain.ids import JobId, VerdictId
from muster.domain.principals import Permission

router = APIRouter()
BACK: Final = "/console/jobs/{job_id}"
MAX_DIGITS: Final = 6
Submitter = Annotated[Viewer, changes(Permission.JOB_SUBMIT)]


@router.post("/jobs/{job_id}/cancel")
def cancel(
    request: Request, viewer: Annotated[Viewer, changes(Permission.JOB_CANCEL)], fields: Form, job_id: str
) -> Response:
    return _change(request, viewer, fields, job_id, jobs.CANCEL, jobs.cancel, done="It is being cancelled.")


@router.post("/jobs/{job_id}/release")
def release(request: Request, viewer: Submitter, fields: Form, job_id: str) -> Response:
    done = "Released: it waits to be placed."
    return _change(request, viewer, fields, job_id, jobs.RELEASE, jobs.release, done=done)


@router.post("/jobs/{job_id}/hold")
def hold(request: Request, viewer: Submitter, fields: Form, job_id: str) -> Response:
    done = "Held: it is not placed until it is released."
    return _change(request, viewer, fields, job_id, holding.HOLD, holding.hold, done=done)


@router.post("/jobs/{job_id}/verdicts/{verdict_id}/dismiss")
def dismiss_verdict(
    request: Request,
    viewer: Annotated[Viewer, changes(Permission.INCIDENT_WRITE)],
    fields: Form,
    job_id: str,
    verdict_id: str,
) -> Response:
    found_id, reason = VerdictId(require_id("verdict", verdict_id)), reason_in(fields)
    return act(
        request,
        viewer,
        fields,
        verdicts.DISMISS,
        lambda unit: verdicts.dismiss(unit, found_id, reason=reason),
        back_to=BACK.format(job_id=require_id("job", job_id)),
        done="The verdict is dismissed.",
    )


@router.post("/jobs/{job_id}/resize")
def resize(request: Request, viewer: Submitter, fields: Form, job_id: str) -> Response:
    """Set the number of hosts that the job is to have from then on, and no more."""
    nodes = _nodes_in(fields)

    def work(unit: UnitOfWork, found_id: JobId, *, reason: str) -> SubmittedJob:
        return resizing.resize(unit, found_id, nodes, reason=reason)

    done = f"It is to have {nodes} {'host' if nodes == 1 else 'hosts'} from now on."
    return _change(request, viewer, fields, job_id, resizing.RESIZE, work, done=done)


class _Work(Protocol):
    def __call__(self, unit: UnitOfWork, job_id: JobId, /, *, reason: str) -> object: ...


def _change(
    request: Request,
    viewer: Viewer,
    fields: Mapping[str, str],
    job_id: str,
    action: str,
    work: _Work,
    *,
    done: str,
) -> Response:
    """Show the effect of a change of this job, or do it, and return to its page."""
    found_id, reason = JobId(require_id("job", job_id)), reason_in(fields)
    return act(
        request,
        viewer,
        fields,
        action,
        lambda unit: work(unit, found_id, reason=reason),
        back_to=BACK.format(job_id=found_id),
        done=done,
    )


def _nodes_in(fields: Mapping[str, str]) -> int:
    """Return the number. Raises ``ValidationFailedError``: no whole number. The service checks the job's sizes."""
    text = fields.get("nodes", "").strip()
    if not text.isascii() or not text.isdigit() or len(text) > MAX_DIGITS:
        raise ValidationFailedError.at("/nodes", "needed", "give the number of hosts, as a whole number")
    return int(text)


@router.post("/jobs/{job_id}/copy")
def submit_copy(request: Request, viewer: Submitter, fields: Form, job_id: str) -> Response:
    """Submit the same specification as a new job of the same tenant."""
    found_id, reason = JobId(require_id("job", job_id)), reason_in(fields)
    store = dependencies_of(request).store_place

    def work(unit: UnitOfWork) -> SubmittedJob:
        job = read.submitted(unit, found_id)
        return jobs.submit(unit, job.specification(), tenant_id=job.tenant_id, reason=reason, store=store)

    done = "A copy is submitted: it is the newest in the list."
    return act(request, viewer, fields, jobs.SUBMIT, work, back_to="/console/jobs", done=done)
