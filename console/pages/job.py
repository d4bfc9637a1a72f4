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
from api.reading import reading, reading_plan, require_id
from console import job_spread, job_texts, plan_texts
from console.job_bar import is_spoilt, life_of
from console.job_curves import charts_of
from console.job_place import place_words
from console.job_ranks import grid_of
from console.job_readings import charts_over_time
from console.pages import job_logs, job_outputs
from console.plan_texts import PlanShown
from console.rendering import is_fragment, pages_of
from console.session import Viewer, sees
from console.words import TONES
from control.attempts.types import JobRecord
from control.checkpoints.types import CheckpointRecord
from control.core.events import EventRecord
from control.core.paging import Part
from control.core.unit_of_work import UnitOfWork
from control.incidents.read import IncidentFilter, IncidentRecord, list_incidents
from control.jobs import job_plans, jobs, training_views
from control.jobs import read as job_reads
from control.jobs.gpu_readings import readings_of_attempt
from control.jobs.job_details import ATTEMPTS_SHOWN, JobDetail, detail_of, events_of
from control.jobs.job_logs import LogChunkRecord, LogStream, last_chunks, streams_of
from control.jobs.job_placement import Placement, placement_of
from control.jobs.rank_views import (
    MOST_RANKS,
    GpuNow,
    RankTimes,
    figures_of_gpus,
    figures_of_ranks,
    gpus_now,
    rank_times_of,
)
from control.jobs.training_views import TrainingRankRecord
from control.placement.hold_occupants import occupants_of
from control.watch import lines
from control.watch.read import VerdictFilter, list_verdicts, reports_about
from control.watch.types import VerdictRecord
from muster.domain.errors import ConflictError, NotFoundError, TenantLimitError
from muster.domain.evidence.incidents import IncidentState
from muster.domain.ids import JobId
from muster.domain.job.pace import UNSEEN_EXCHANGE, pace_of
from muster.domain.job.placement_spec import ParallelLayout
from muster.domain.job.rank_places import places_of
from muster.domain.job.verdicts import REACTION_WORDS, VerdictKind, VerdictState
from muster.domain.principals import Permission
from muster.domain.spread import odd_ranks, spread
from muster.domain.states import TERMINAL_JOB_STATES, JobState
from watch.reports import HostReport

router = APIRouter()
RANKS_SHOWN: Final = 128
ALL_ATTEMPTS: Final = 200
WAITING_STATES: Final = frozenset({JobState.QUEUED, JobState.HELD, JobState.RECOVERING})
POINTS: Final = 1_600
CURVES: Final = 8
PACES: Final = 240
CHECKPOINTS_SHOWN: Final = 100
INCIDENTS_SHOWN: Final = 10
VERDICTS_SHOWN: Final = 5
VERDICTS_READ: Final = 60
"""Verdicts on the timeline of attempts; the card has the newest of them."""
HOSTS_WITH_STACKS: Final = 4
JobReader = Annotated[Viewer, sees(Permission.JOB_READ)]
LogReader = Annotated[Viewer, sees(Permission.LOG_READ)]
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
    times: Sequence[RankTimes]
    gpus: Sequence[GpuNow]
    events: Sequence[EventRecord]
    incidents: Sequence[IncidentRecord]
    verdicts: Sequence[VerdictRecord]
    stalled: Sequence[HostReport]
    streams: Sequence[LogStream]
    log: Sequence[LogChunkRecord]
    search: job_logs.Search | None
    collected: job_outputs.OutputsShown


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
    wanted = job_logs.filter_in(log)

    def read(unit: UnitOfWork) -> _Shown:
        reads_logs = viewer.may(Permission.LOG_READ) and not is_fragment(request)
        is_whole = not is_fragment(request)
        has_tables = is_whole or part == "tables"
        has_stacks = is_whole or part != "tables"
        return _Shown(
            spec=None if is_fragment(request) else job_reads.submitted(unit, found_id).spec,
            detail=detail_of(unit, found_id, limit=ALL_ATTEMPTS if attempts == "all" else ATTEMPTS_SHOWN),
            placement=placement_of(unit, found_id, number=attempt),
            checkpoints=training_views.checkpoints_of(unit, found_id, newest=CHECKPOINTS_SHOWN),
            ranks=training_views.ranks_of(unit, found_id, limit=RANKS_SHOWN + 1),
            times=rank_times_of(unit, found_id, limit=MOST_RANKS + 1) if has_tables else (),
            gpus=gpus_now(unit, found_id) if has_tables else (),
            events=events_of(unit, found_id) if viewer.may(Permission.EVENT_READ) else (),
            incidents=_needs(unit, found_id) if viewer.may(Permission.INCIDENT_READ) else (),
            verdicts=(stated := list_verdicts(unit, VerdictFilter(job_id=found_id), Part(VERDICTS_READ))),
            stalled=_stacks_of(unit, stated[:VERDICTS_SHOWN]) if has_stacks and viewer.may(Permission.LOG_READ) else (),
            streams=streams_of(unit, found_id) if reads_logs else (),
            log=last_chunks(unit, found_id, wanted, max_bytes=job_logs.LAST_BYTES) if reads_logs and not find else (),
            search=job_logs.searched(unit, found_id, wanted, find, begin) if reads_logs and find else None,
            collected=job_outputs.shown_of(unit, found_id) if has_tables else job_outputs.NOTHING,
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
    return list_incidents(unit, IncidentFilter(IncidentState.OPEN, subject_id=job_id), Part(INCIDENTS_SHOWN))


def _waits(request: Request, viewer: Viewer, job: JobRecord) -> PlanShown | None:
    """Return why it waits, by a new plan; None: it does not, was placed just now, or its tenant may not plan now.

    The page then shows the reason that the newest cycle of the scheduler stored.
    """
    if job.state not in WAITING_STATES:
        return None

    def read(unit: UnitOfWork) -> PlanShown:
        plan = job_plans.explain_job(unit, job.id)
        there = occupants_of(unit, plan_texts.place_of(plan))
        return plan_texts.shown(viewer, plan, since=job.created_at, occupants=there)

    try:
        return reading_plan(dependencies_of(request).units, viewer.principal, job_plans.EXPLAIN, read)
    except (ConflictError, TenantLimitError):
        return None


def _stacks_of(unit: UnitOfWork, verdicts: Sequence[VerdictRecord]) -> Sequence[HostReport]:
    """Return the reports of the newest hang: of the host at fault, and of a few others of maybe thousands."""
    hang = next((each for each in verdicts if each.kind is VerdictKind.HANG), None)
    return () if hang is None else reports_about(unit, hang.attempt_id, first=hang.node_id, limit=HOSTS_WITH_STACKS)


def _context(viewer: Viewer, shown: _Shown, log: str) -> dict[str, Any]:
    detail, job = shown.detail, shown.detail.job
    asked = job.requested()
    return {
        **_of_ranks(shown, asked.layout),
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
        "verdicts": shown.verdicts[:VERDICTS_SHOWN],
        "verdicts_by_attempt": job_texts.by_attempt(shown.verdicts),
        "stalled": shown.stalled,
        "streams": shown.streams[: job_logs.STREAMS_LISTED],
        "num_streams_left": max(len(shown.streams) - job_logs.STREAMS_LISTED, 0),
        "log": job_logs.joined(job_logs.shown_chunks(shown.log, shown.streams)),
        "log_choice": log,
        "search": shown.search,
        "collected": shown.collected,
        "value_of": job_logs.value_of,
        "words": job_texts,
        "reactions": REACTION_WORDS,
        "unseen_exchange": UNSEEN_EXCHANGE,
        "tones": TONES,
        "spec_text": json.dumps(shown.spec, indent=2, ensure_ascii=False),
        "is_over": job.state in TERMINAL_JOB_STATES,
        "is_waiting": job.state in WAITING_STATES,
        "shows_slots": viewer.principal.sees_all_tenants,
        "back": f"/console/jobs/{job.id}",
    }


def _of_ranks(shown: _Shown, layout: ParallelLayout | None) -> dict[str, Any]:
    """Return the ranks side by side, and which of them stand out by which figure."""
    times = shown.times[:MOST_RANKS]
    places = places_of({row.rank: row.place for row in times}, None if layout is None else layout.model_dump())
    of_ranks = spread(figures_of_ranks(times), places)
    has_a_gpu_each = all(gpu.is_rank for gpu in shown.gpus)
    of_gpus = spread(figures_of_gpus(shown.gpus), places if has_a_gpu_each else None)
    judged = (*of_ranks, *of_gpus) if has_a_gpu_each else of_ranks  # else a GPU's number is no rank's
    odd = {rank: job_spread.named(figures) for rank, figures in odd_ranks(judged).items()}
    for rank in _stragglers(shown):
        odd[rank] = f"{odd[rank]}; a verdict" if rank in odd else "a verdict"
    return {
        "grid": grid_of(times, odd),
        "has_more_times": len(shown.times) > MOST_RANKS,
        "spread": job_spread.spread_rows((*of_ranks, *of_gpus), shown.gpus),
        "odd_ranks": odd,
    }


def _stragglers(shown: _Shown) -> set[int]:
    """Return the ranks of the shown attempt on which a verdict stands that they are slow."""
    attempt_id = shown.ranks[0].attempt_id if shown.ranks else None
    return {
        rank
        for each in shown.verdicts
        if each.kind is VerdictKind.STRAGGLER and each.state is VerdictState.STANDING and each.ended_at is None
        if each.attempt_id == attempt_id
        for rank in each.ranks
    }


@router.get("/jobs/{job_id}/fault-lines")
def fault_lines(request: Request, viewer: LogReader, job_id: str) -> Response:
    """Show the lines about faults of the newest attempt: a card by itself, since it reads a day of signals."""
    found_id = JobId(require_id("job", job_id))
    units = dependencies_of(request).units
    found = reading(units, viewer.principal, jobs.READ, lambda unit: lines.fault_lines(unit, found_id))
    return pages_of(request).page(request, "parts/job_fault_lines.html", viewer, place="jobs", fault_lines=found)


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
            training_views.step_times_of(unit, found_id),
        )

    return JSONResponse(reading(dependencies_of(request).units, viewer.principal, jobs.READ, read))


@router.get("/jobs/{job_id}/readings.json")
def readings(request: Request, viewer: JobReader, job_id: str) -> Response:
    """Return readings of the newest attempt's GPUs over the time of its steps, for the page's charts."""
    found_id = JobId(require_id("job", job_id))

    def read(unit: UnitOfWork) -> dict[str, Any]:
        job = job_reads.get(unit, found_id)
        verdicts = list_verdicts(unit, VerdictFilter(job_id=found_id), Part(VERDICTS_SHOWN))
        first = next((each.node_id for each in verdicts if each.node_id is not None), None)
        return charts_over_time(job, readings_of_attempt(unit, found_id, first=first), verdicts)

    return JSONResponse(reading(dependencies_of(request).units, viewer.principal, jobs.READ, read))
