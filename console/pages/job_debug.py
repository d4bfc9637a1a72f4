"""Page that finds the slow rank of a job: step times, collectives, data and memory of each rank."""

from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from api.dependencies import dependencies_of
from api.reading import reading, require_id
from console import job_debug, job_texts
from console.pages.figures import csv_answer
from console.paging import page_of, place_in
from console.rendering import pages_of
from console.session import Viewer, sees
from control.core.unit_of_work import UnitOfWork
from control.jobs import jobs, rank_figures, rank_spreads
from control.jobs import read as job_reads
from control.jobs.rank_figures import AttemptShown, Order, RankFigure
from control.policy.policies import active_policy
from control.watch.memory_lines import LINES_SHOWN, memory_lines_of
from muster.domain.errors import NotFoundError
from muster.domain.ids import JobId
from muster.domain.principals import Permission

router = APIRouter()
A_PAGE: Final = 50
NUMBERS_SHOWN: Final = 8
JobReader = Annotated[Viewer, sees(Permission.JOB_READ)]
Number = Annotated[int | None, Query(ge=1, le=2**31 - 1)]


@dataclass(frozen=True, slots=True)
class DebugQuery:
    """``attempt``: by default the newest that has reported. ``rank``: whose steps are drawn with the steps of all."""

    attempt: Number = None
    sort: Annotated[RankFigure, Query()] = RankFigure.RATIO
    order: Annotated[Order, Query()] = Order.DOWN
    rank: Annotated[int | None, Query(ge=0, le=2**31 - 1)] = None
    cursor: Annotated[str | None, Query(max_length=1024)] = None


Chosen = Annotated[DebugQuery, Depends()]


@router.get("/jobs/{job_id}/debug")
def debug_page(request: Request, viewer: JobReader, job_id: str, chosen: Chosen) -> Response:
    """Show which rank is slow and where, the ranks with their figures a page at a time, and short memory."""
    found_id = JobId(require_id("job", job_id))
    dependencies = dependencies_of(request)
    path = f"/console/jobs/{found_id}/debug"
    filters = {"attempt": chosen.attempt, "sort": chosen.sort.value, "order": chosen.order.value, "rank": chosen.rank}
    after = place_in(dependencies.secret_key, filters, chosen.cursor, length=2)

    def read(unit: UnitOfWork) -> dict[str, Any]:
        attempt = rank_figures.attempt_of(unit, found_id, chosen.attempt)
        shown = {"job": job_reads.get(unit, found_id), "attempt": attempt}
        if attempt is None:
            return {**shown, "gang": None, "rows": (), "memory": None, "numbers": ()}
        rows = rank_figures.list_ranks(unit, attempt, chosen.sort, chosen.order, limit=A_PAGE + 1, after=after)
        gang = rank_figures.gang_of(unit, attempt)
        is_slowest_first = (chosen.sort, chosen.order, after) == (RankFigure.RATIO, Order.DOWN, None)
        return {
            **shown,
            "numbers": rank_figures.numbers_of(unit, found_id, most=NUMBERS_SHOWN),
            "gang": gang,
            "slow": rank_figures.slow_ranks_of(unit, attempt, gang, rows if is_slowest_first else ()),
            "rows": rank_figures.with_kept_steps(unit, attempt, rows),
            "memory": memory_lines_of(unit, attempt.id) if viewer.may(Permission.LOG_READ) else None,
            "lines_days": active_policy(unit.session).retention.logs_days,
        }

    shown = reading(dependencies.units, viewer.principal, jobs.READ, read)
    page = page_of(
        dependencies.secret_key,
        filters,
        shown.pop("rows"),
        size=A_PAGE,
        path=path,
        place=lambda row: rank_figures.position_of(row, chosen.sort, chosen.order),
    )
    return pages_of(request).page(
        request,
        "job_debug.html",
        viewer,
        place="jobs",
        page=page,
        chosen=chosen,
        back=f"/console/jobs/{found_id}",
        debug=job_debug,
        figures=RankFigure,
        words=job_texts,
        lines_shown=LINES_SHOWN,
        nothing=job_debug.nothing_in_words(shown["attempt"], shown["gang"]),
        **shown,
    )


@router.get("/jobs/{job_id}/debug.json")
def debug_charts(
    request: Request,
    viewer: JobReader,
    job_id: str,
    attempt: Number = None,
    rank: Annotated[int | None, Query(ge=0, le=2**31 - 1)] = None,
) -> Response:
    """Return the histograms of the page's charts. ``rank``: whose steps are drawn with the steps of all."""
    found_id = JobId(require_id("job", job_id))

    def read(unit: UnitOfWork) -> dict[str, Any]:
        shown = _reported(unit, found_id, attempt)
        num_ranks = rank_figures.num_ranks_of(unit, shown)
        steps = rank_spreads.spread_of_steps(unit, shown, num_ranks=num_ranks, chosen=rank)
        return job_debug.charts_of(steps, rank_spreads.spreads_of_ranks(unit, shown, job_debug.DRAWN), num_ranks, rank)

    return JSONResponse(reading(dependencies_of(request).units, viewer.principal, jobs.READ, read))


@router.get("/jobs/{job_id}/debug.csv")
def debug_csv(request: Request, viewer: JobReader, job_id: str, attempt: Number = None) -> Response:
    """Return the figures of all ranks of an attempt as CSV, in the order of their numbers."""
    found_id = JobId(require_id("job", job_id))

    def read(unit: UnitOfWork) -> tuple[int, str]:
        shown = _reported(unit, found_id, attempt)
        rows = rank_figures.list_ranks(unit, shown, RankFigure.RANK, Order.UP, limit=None)
        return shown.number, "".join(job_debug.csv_of(rows))

    number, text = reading(dependencies_of(request).units, viewer.principal, jobs.READ, read)
    return csv_answer(f"{found_id}-attempt-{number}-ranks", text)


def _reported(unit: UnitOfWork, job_id: JobId, number: int | None) -> AttemptShown:
    attempt = rank_figures.attempt_of(unit, job_id, number)
    if attempt is None:
        raise NotFoundError("the job has no attempt yet")
    return attempt
