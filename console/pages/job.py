"""Page of one job in full: reason of its state, its attempts, its GPUs on the topology, its training and its end."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from api.dependencies import dependencies_of
from api.reading import reading, require_id
from console import job_texts, plan_texts
from console.job_bar import is_spoilt, life_of
from console.job_curves import charts_of
from console.job_place import place_words
from console.pages.job_logs import LAST_BYTES, Search, filter_in, joined, searched, shown_chunk, value_of
from console.plan_texts import PlanShown
from console.rendering import is_fragment, pages_of
from console.session import Viewer, sees
from console.words import TONES
from control.attempts.types import JobRecord
from control.checkpoints.types import CheckpointRecord
from control.core.events import EventRecord
from control.core.unit_of_work import UnitOfWork
from control.incidents.read import IncidentRecord, list_incidents
from control.jobs import job_plans, jobs, training_views
from control.jobs import read as job_reads
from control.jobs.job_details import ATTEMPTS_SHOWN, JobDetail, detail_of, events_of
from control.jobs.job_logs import LogChunkRecord, LogStream, last_chunks, streams_of
from control.jobs.job_placement import Placement, placement_of
from control.jobs.training_views import TrainingRankRecord
from control.placement.hold_occupants import occupants_of
from muster.domain.errors import ConflictError, NotFoundError
from muster.domain.evidence.incidents import IncidentState
from muster.domain.ids import JobId
from muster.domain.job.pace import UNSEEN_EXCHANGE, pace_of
from muster.domain.principals import Permission
from muster.domain.states import TERMINAL_JOB_STATES, JobState

router = APIRouter()
RANKS_SHOWN: Final = 128
ALL_ATTEMPTS: Final = 200
WAITING_STATES: Final = frozenset({JobState.QUEUED, JobState.HELD, JobState.RECOVERING})
POINTS: Final = 1_600
CURVES: Final = 8
PACES: Final = 240
CHECKPOINTS_SHOWN: Final = 100
INCIDENTS_SHOWN: Final = 10
JobReader = Annotated[Viewer, sees(Permission.JOB_READ)]
PAGE_PARTS: Final = {
    "attempts": "parts/job_history.html",
    "story": "parts/job_history.html",  # the former name, which open pages of the release before request: until 0.2.0
    "tables": "parts/job_tables.html",
}


@dataclass(frozen=True, slots=True)
class _Shown:
    """Everything on the page, read in one transaction."""

    detail: JobDetail
    spec: dict[str, Any] | None
    placement: Placement | None
    checkpoints: Sequence[CheckpointRecord]
    ranks: Sequence[TrainingRankRecord]
    events: Sequence[EventRecord]
    incidents: Sequence[IncidentRecord]
    streams: Sequence[LogStream]
    log: Sequence[LogChunkRecord]
    search: Search | None


@router.get("/jobs/{job_id}")
def job_page(
    request: Request,
    viewer: JobReader,
    job_id: str,
    attempt: Annotated[int | None, Query(ge=1, le=2**31 - 1)] = None,
    attempts: Annotated[str, Query(pattern="^(newest|all)$")] = "newest",
    part: Annotated[str, Query(pattern="^(attempts|story|tables)$")] = "attempts",
    log: Annotated[str, Query(max_length=80)] = "",
    find: Annotated[str, Query(max_length=200)] = "",
    begin: Annotated[str, Query(max_length=160)] = "",
) -> Response:
    """Show the whole page, or the part of it that has changed.

    ``attempt``: whose placement is shown; ``log``: which stream. ``find``: text to search in all logs, from ``begin``
    on.
    """
    found_id = JobId(require_id("job", job_id))
    wanted = filter_in(log)

    def read(unit: UnitOfWork) -> _Shown:
        reads_logs = viewer.may(Permission.LOG_READ) and not is_fragment(request)
        return _Shown(
            spec=None if is_fragment(request) else job_reads.submitted(unit, found_id).spec,
            detail=detail_of(unit, found_id, limit=ALL_ATTEMPTS if attempts == "all" else ATTEMPTS_SHOWN),
            placement=placement_of(unit, found_id, number=attempt),
            checkpoints=training_views.checkpoints_of(unit, found_id, newest=CHECKPOINTS_SHOWN),
            ranks=training_views.ranks_of(unit, found_id, limit=RANKS_SHOWN + 1),
            events=events_of(unit, found_id) if viewer.may(Permission.EVENT_READ) else (),
            incidents=_needs(unit, found_id) if viewer.may(Permission.INCIDENT_READ) else (),
            streams=streams_of(unit, found_id) if reads_logs else (),
            log=last_chunks(unit, found_id, wanted, max_bytes=LAST_BYTES) if reads_logs and not find else (),
            search=searched(unit, found_id, wanted, find, begin) if reads_logs and find else None,
        )

    shown = reading(dependencies_of(request).units, viewer.principal, jobs.READ, read)
    if attempt is not None and shown.placement is None:
        raise NotFoundError("the job has no such attempt")
    template = PAGE_PARTS[part] if is_fragment(request) else "job.html"
    shows_attempts = template != PAGE_PARTS["tables"]
    waits = _waits(request, viewer, shown.detail.job) if shows_attempts else None
    context = {**_context(viewer, shown, log), "waits": waits, "find": find}
    return pages_of(request).page(request, template, viewer, place="jobs", **context)


def _needs(unit: UnitOfWork, job_id: JobId) -> Sequence[IncidentRecord]:
    return list_incidents(unit, state=IncidentState.OPEN, subject_id=job_id, limit=INCIDENTS_SHOWN)


def _waits(request: Request, viewer: Viewer, job: JobRecord) -> PlanShown | None:
    """Return why it waits, by a new plan; None: it does not, or was placed just now."""
    if job.state not in WAITING_STATES:
        return None

    def read(unit: UnitOfWork) -> PlanShown:
        plan = job_plans.explain_job(unit, job.id)
        there = occupants_of(unit, plan_texts.place_of(plan))
        return plan_texts.shown(viewer, plan, since=job.created_at, occupants=there)

    try:
        return reading(dependencies_of(request).units, viewer.principal, job_plans.EXPLAIN, read)
    except ConflictError:
        return None


def _context(viewer: Viewer, shown: _Shown, log: str) -> dict[str, Any]:
    detail, job = shown.detail, shown.detail.job
    asked = job.requested()
    return {
        "job": job,
        "asked": asked,
        "datasets": (shown.spec or {}).get("datasets", ()),
        "detail": detail,
        "why": job_texts.why(detail),
        "place_requests": list(place_words(asked)),
        "life": life_of(detail, shown.checkpoints, datetime.now(UTC)),
        "placement": shown.placement,
        "placed_numbers": [each.attempt.number for each in detail.attempts],
        "checkpoints": shown.checkpoints,
        "is_spoilt": is_spoilt,
        "ranks": shown.ranks[:RANKS_SHOWN],
        "pace": pace_of([row.pace for row in shown.ranks[:RANKS_SHOWN]]),
        "has_more_ranks": len(shown.ranks) > RANKS_SHOWN,
        "events": shown.events,
        "incidents": shown.incidents,
        "streams": shown.streams,
        "log": joined(shown_chunk(chunk, shown.streams) for chunk in shown.log),
        "log_choice": log,
        "search": shown.search,
        "value_of": value_of,
        "words": job_texts,
        "unseen_exchange": UNSEEN_EXCHANGE,
        "tones": TONES,
        "spec_text": json.dumps(shown.spec, indent=2, ensure_ascii=False),
        "is_over": job.state in TERMINAL_JOB_STATES,
        "is_waiting": job.state in WAITING_STATES,
        "shows_slots": viewer.principal.sees_all_tenants,
        "back": f"/console/jobs/{job.id}",
    }


@router.get("/jobs/{job_id}/training.json")
def training(request: Request, viewer: JobReader, job_id: str) -> Response:
    """Return loss and step time over the steps of each attempt and rank, and the pace, for the page's charts."""
    found_id = JobId(require_id("job", job_id))

    def read(unit: UnitOfWork) -> dict[str, Any]:
        return charts_of(
            job_reads.get(unit, found_id),
            training_views.curves_of(unit, found_id, points=POINTS, attempts=CURVES),
            training_views.ranks_of(unit, found_id, limit=RANKS_SHOWN),
            training_views.paces_of(unit, found_id, points=PACES),
            training_views.checkpoints_of(unit, found_id, newest=CHECKPOINTS_SHOWN),
        )

    return JSONResponse(reading(dependencies_of(request).units, viewer.principal, jobs.READ, read))
