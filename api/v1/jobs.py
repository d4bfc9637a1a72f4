"""Routes of jobs: submit, list, show, cancel, events, logs."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Annotated, Any, Final
from zlib import crc32

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from api.authorized_query import AuthorizedQuery, answer, authorize_query
from api.bodies import described_by, json_body
from api.changes import Answer, Changing, etag_of, version_in
from api.dependencies import AppDependencies, dependencies_of
from api.job_views import attempt_view, job_plan_view, job_view, log_view
from api.log_news import LogNews
from api.permissions import requires
from api.reading import PRINTABLE, After, Limit, id_in, reading, reading_plan, require_id
from api.refusals import refusing_also
from api.streams import COMMENT, LastEventId, Pulse, frame, position_in, sse, streaming
from api.views import event_view, stretch_of
from control.attempts.types import SubmittedJob
from control.core.unit_of_work import UnitOfWork
from control.jobs import holding, job_details, job_plans, jobs, read
from control.jobs.job_logs import LogChunkRecord, LogFilter, LogMark, chunks_after, end_of
from control.jobs.read import JOB
from control.placement import resizing
from muster import documents
from muster.domain.errors import ConflictError
from muster.domain.ids import JobId, TenantId
from muster.domain.job.spec import LauncherKind, Program
from muster.domain.job.submission import JobSubmission
from muster.domain.principals import Permission, Principal
from muster.domain.states import JobState
from muster.domain.strict import Name, StrictModel, Text

router = APIRouter(tags=["jobs"])
FOLLOW_PAGE: Final = 100


class JobQuestion(JobSubmission):
    """A job as it might be submitted, with or without name and program.

    With a name, its expected run time is that of earlier jobs of the name.
    """

    name: Name = "plan"
    program: Program = Field(default_factory=lambda: Program(argv=("true",), launcher=LauncherKind.COMMAND))


class Cancellation(StrictModel):
    reason: Annotated[Text, Field(max_length=500)] | None = None


class Resizing(StrictModel):
    """A new size."""

    nodes: Annotated[int, Field(ge=1, le=12_500)]
    reason: Annotated[Text, Field(max_length=500)] | None = None


class JobRelease(StrictModel):
    reason: Annotated[Text, Field(max_length=500)] | None = None


class JobHold(StrictModel):
    reason: Annotated[Text, Field(max_length=500)] | None = None


def _answer(job: SubmittedJob, status: int = 200) -> Answer:
    location = f"/v1/jobs/{job.id}" if status == 201 else None
    return Answer(job_view(job), status, etag_of(job.version), location, members_kept=frozenset({"spec"}))


def _kept(unit: UnitOfWork, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the specification of the job of a stored answer: it may have a megabyte, and never changes."""
    return {"spec": read.submitted(unit, JobId(body["id"])).spec}


@router.post("/jobs", response_model=documents.ChangedJob, status_code=201, openapi_extra=described_by(JobSubmission))
def submit_job(
    request: Request,
    principal: Annotated[Principal, requires(Permission.JOB_SUBMIT)],
    submission: Annotated[JobSubmission, json_body(JobSubmission)],
    change: Changing,
) -> JSONResponse:
    """Accept a job: after the 201 it is never lost."""
    tenant_id = None if submission.tenant_id is None else TenantId(submission.tenant_id)
    copied_from = None if submission.copied_from is None else JobId(submission.copied_from)
    spec, store = submission.spec, dependencies_of(request).store_place
    return change.run(
        principal,
        jobs.SUBMIT,
        lambda unit: jobs.submit(unit, spec, tenant_id=tenant_id, copied_from=copied_from, store=store),
        lambda job: _answer(job, 201),
        _kept,
    )


@router.post("/job-plans", openapi_extra=described_by(JobQuestion))
def plan_job(
    request: Request,
    principal: Annotated[Principal, requires(Permission.JOB_SUBMIT)],
    question: Annotated[JobQuestion, json_body(JobQuestion)],
) -> documents.JobPlan:
    """Return what would become of a job if it were submitted now: its hosts, its victims, or why it would wait.

    The scheduler's own planner answers, on what its next cycle would see. Nothing is stored, and nothing is guaranteed.
    """
    tenant_id = None if question.tenant_id is None else TenantId(question.tenant_id)
    spec, dependencies = question.spec, dependencies_of(request)
    units, store = dependencies.units, dependencies.store_place
    found = reading_plan(
        units, principal, job_plans.PLAN, lambda unit: job_plans.plan_job(unit, spec, tenant_id=tenant_id, store=store)
    )
    return job_plan_view(found, principal)


@router.get("/jobs/{job_id}/explanation", dependencies=[refusing_also(ConflictError)])
def explain_job(
    request: Request, principal: Annotated[Principal, requires(Permission.JOB_READ)], job_id: str
) -> documents.JobPlan:
    """Return why a job waits: tokens with counts, the one that binds, jobs before it, start forecast, useful changes.

    The scheduler's own planner answers, on what its next cycle would see; 409 for a job that does not wait.
    """
    found_id, units = JobId(require_id("job", job_id)), dependencies_of(request).units
    found = reading_plan(units, principal, job_plans.EXPLAIN, lambda unit: job_plans.explain_job(unit, found_id))
    return job_plan_view(found, principal)


@router.get(
    "/jobs/{job_id}", response_model=documents.JobDetail, responses={304: {"description": "As If-None-Match says"}}
)
def show_job(
    job_id: str,
    authorized_query: Annotated[AuthorizedQuery, authorize_query(Permission.JOB_READ)],
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    """Return the job with every attempt, its hosts, GPUs, cause and proof."""
    answered = authorized_query.ask(JOB, {"job_id": id_in("job", job_id)})
    found = read.seen_by(answered.principal, answered.found)
    etag = _detail_etag_of(found)
    if if_none_match == etag:
        return Response(status_code=304, headers={"ETag": etag})
    return answer({**job_view(found.job), "attempts": [attempt_view(view) for view in found.attempts]}, etag)


def _detail_etag_of(found: read.JobView) -> str:
    # The attempts and their hosts' parts change on their own: they are part of what the tag stands for.
    moved = sum(view.attempt.version for view in found.attempts)
    moments = sum(view.num_moments for view in found.attempts)
    # Its wait reasons are counted again in each cycle of the scheduler, which is no new version of the job.
    waits = crc32(f"{found.job.state_reason}{found.job.wait_verdict}".encode())
    return f'"v{found.job.version}.{moved}.{moments}.{waits}"'


@router.post("/jobs/{job_id}/cancel", response_model=documents.ChangedJob, openapi_extra=described_by(Cancellation))
def cancel_job(
    job_id: str,
    principal: Annotated[Principal, requires(Permission.JOB_CANCEL)],
    cancellation: Annotated[Cancellation, json_body(Cancellation)],
    change: Changing,
    if_match: Annotated[str | None, Header()] = None,
) -> JSONResponse:
    """Cancel: at once while it waits, else when its programs have stopped. Twice is the same as once."""
    found_id = JobId(require_id("job", job_id))
    version = version_in(if_match, is_required=False)
    return change.run(
        principal,
        jobs.CANCEL,
        lambda unit: jobs.cancel(unit, found_id, reason=cancellation.reason, expected_version=version),
        _answer,
        _kept,
    )


@router.post("/jobs/{job_id}/release", response_model=documents.ChangedJob, openapi_extra=described_by(JobRelease))
def release_job(
    job_id: str,
    principal: Annotated[Principal, requires(Permission.JOB_SUBMIT)],
    wanted: Annotated[JobRelease, json_body(JobRelease)],
    change: Changing,
) -> JSONResponse:
    """Release a HELD job to the queue; a suspect program is released by an operator alone."""
    found_id = JobId(require_id("job", job_id))
    return change.run(
        principal, jobs.RELEASE, lambda unit: jobs.release(unit, found_id, reason=wanted.reason), _answer, _kept
    )


@router.post("/jobs/{job_id}/hold", response_model=documents.ChangedJob, openapi_extra=described_by(JobHold))
def hold_job(
    job_id: str,
    principal: Annotated[Principal, requires(Permission.JOB_SUBMIT)],
    wanted: Annotated[JobHold, json_body(JobHold)],
    change: Changing,
) -> JSONResponse:
    """Hold a job that waits for GPUs until it is released. Twice is the same as once."""
    found_id = JobId(require_id("job", job_id))
    return change.run(
        principal, holding.HOLD, lambda unit: holding.hold(unit, found_id, reason=wanted.reason), _answer, _kept
    )


@router.post("/jobs/{job_id}/resize", response_model=documents.ChangedJob, openapi_extra=described_by(Resizing))
def resize_job(
    job_id: str,
    principal: Annotated[Principal, requires(Permission.JOB_SUBMIT)],
    wanted: Annotated[Resizing, json_body(Resizing)],
    change: Changing,
    if_match: Annotated[str | None, Header()] = None,
) -> JSONResponse:
    """Set the number of hosts of an elastic job from now on.

    If it has more, it saves and continues smaller, at no charge; if it has fewer, it grows as GPUs are idle.
    """
    found_id = JobId(require_id("job", job_id))
    version = version_in(if_match, is_required=False)
    return change.run(
        principal,
        resizing.RESIZE,
        lambda unit: resizing.resize(unit, found_id, wanted.nodes, reason=wanted.reason, expected_version=version),
        _answer,
        _kept,
    )


@router.get("/jobs/{job_id}/events")
def job_events(
    job_id: str,
    request: Request,
    principal: Annotated[Principal, requires(Permission.EVENT_READ)],
    after: After = 0,
    limit: Limit = 50,
) -> documents.EventStretch:
    """Return events of the job itself, in the order of positions."""
    found_id = JobId(require_id("job", job_id))
    units = dependencies_of(request).units
    found = reading(
        units, principal, jobs.READ, lambda unit: job_details.events_behind(unit, found_id, after, limit=limit)
    )
    return stretch_of([event_view(event) for event in found], after)


@router.get(
    "/jobs/{job_id}/logs",
    response_model=documents.LogStretch,
    responses=streaming("With `follow`: each frame `log` holds a LogPiece; the frame `end` ends it."),
)
async def job_logs(
    job_id: str,
    request: Request,
    principal: Annotated[Principal, requires(Permission.LOG_READ)],
    after: After = 0,
    limit: Limit = 100,
    stream: Annotated[str | None, Query(pattern=r"^(launcher|[0-9]{1,7})$")] = None,
    attempt_id: Annotated[str | None, Query(max_length=64, pattern=PRINTABLE)] = None,
    last_event_id: LastEventId = None,
    *,
    follow: bool = False,
) -> Response:
    """Return pieces of the ranks' output; ``follow=true`` streams them until the job has ended and all are sent."""
    wanted = LogFilter(attempt_id=attempt_id, stream=stream)
    follower = _Follower(dependencies_of(request), principal, JobId(require_id("job", job_id)), wanted)
    after = position_in(last_event_id, after)
    first = await run_in_threadpool(follower.page, after, limit)
    if follow:
        return sse(request, principal, follower.frames(after, request.app.state.log_news))
    items = [log_view(chunk) for chunk in first]
    return JSONResponse({"items": items, "next_after": items[-1]["position"] if items else after})


class _Follower:
    def __init__(self, dependencies: AppDependencies, principal: Principal, job_id: JobId, wanted: LogFilter) -> None:
        self._units = dependencies.units
        self._principal = principal
        self._job_id = job_id
        self._wanted = wanted

    def page(self, after: int, limit: int) -> Sequence[LogChunkRecord]:
        return reading(
            self._units,
            self._principal,
            jobs.READ,
            lambda unit: chunks_after(unit, self._job_id, self._wanted, after=after, limit=limit),
        )

    def _end(self) -> JobState | None:
        return reading(self._units, self._principal, jobs.READ, lambda unit: end_of(unit, self._job_id))

    async def frames(self, after: int, news: LogNews) -> AsyncIterator[bytes]:
        pulse = Pulse(asyncio.get_running_loop().time)
        seen: LogMark | None = None
        while True:
            end = await run_in_threadpool(self._end)
            while chunks := await run_in_threadpool(self.page, after, FOLLOW_PAGE):
                for chunk in chunks:
                    after = chunk.position
                    yield frame(log_view(chunk), event="log", position=after)
                pulse.spoke()
            if end is not None:
                yield frame({"state": end}, event="end")
                return
            if pulse.is_due():
                yield COMMENT
            seen = await news.wait(self._job_id, seen)
