"""Page that finds the slow rank of a job: step times, collectives, data and memory of each rank."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final
from urllib.parse import urlencode

import numpy as np
from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse
from numpy.typing import NDArray
from starlette.responses import Response

from api.dependencies import dependencies_of
from api.reading import reading, require_id
from console import job_debug, job_texts
from console.paging import page_of, place_in
from console.rendering import csv_answer, pages_of
from console.session import Viewer, sees
from control.core.unit_of_work import UnitOfWork
from control.jobs import gang_hosts, gang_times, jobs, rank_figures, rank_spreads
from control.jobs import read as job_reads
from control.jobs.gang_times import GangTimes
from control.jobs.rank_figures import AttemptShown, Order, RankFigure, RankRow
from control.policy.policies import active_policy
from control.watch.memory_lines import LINES_SHOWN, memory_lines_of
from muster.domain.errors import NotFoundError
from muster.domain.ids import JobId
from muster.domain.principals import Permission

router = APIRouter()
A_PAGE: Final = 50
NUMBERS_SHOWN: Final = 8
NAMED: Final = 5
"""Slow ranks, silent ones, and ones without any report, that are named above the table."""
HOSTS_NAMED: Final = 10
RANKS_A_PIECE: Final = 2_000
"""Ranks of a file that are read at once."""
JobReader = Annotated[Viewer, sees(Permission.JOB_READ)]
Number = Annotated[int | None, Query(ge=1, le=2**31 - 1)]
Rank = Annotated[int | None, Query(ge=0, le=2**31 - 1)]


class Only(StrEnum):
    """The ranks of the table."""

    ALL = "all"
    SLOW = "slow"
    SILENT = "silent"
    FAULTY = "faulty"


@dataclass(frozen=True, slots=True)
class DebugQuery:
    """``attempt``: by default the newest that has reported. ``rank``: whose steps are drawn with the steps of all.

    ``only`` and ``host``: which ranks the table has; ``host``: its place in the gang.
    """

    attempt: Number = None
    sort: Annotated[RankFigure, Query()] = RankFigure.RATIO
    order: Annotated[Order, Query()] = Order.DOWN
    rank: Rank = None
    only: Annotated[Only, Query()] = Only.ALL
    host: Rank = None
    cursor: Annotated[str | None, Query(max_length=1024)] = None

    @property
    def filters(self) -> dict[str, Any]:
        """Everything but the place in the table."""
        own = {"attempt": self.attempt, "sort": self.sort.value, "order": self.order.value, "rank": self.rank}
        return {**own, "only": self.only.value, "host": self.host}

    def query(self, **changed: Any) -> str:
        """Return the query of the table's first page with other values; what is as by default is left out."""
        wanted = {**self.filters, **changed}
        shown = {name: value for name, value in wanted.items() if value not in (None, Only.ALL)}
        return urlencode(shown)


Chosen = Annotated[DebugQuery, Depends()]


@router.get("/jobs/{job_id}/debug")
def debug_page(request: Request, viewer: JobReader, job_id: str, chosen: Chosen) -> Response:
    """Show which rank is slow and where, the ranks with their figures a page at a time, and short memory."""
    found_id = JobId(require_id("job", job_id))
    dependencies = dependencies_of(request)
    path = f"/console/jobs/{found_id}/debug"
    after = place_in(dependencies.secret_key, chosen.filters, chosen.cursor, length=2)

    def read(unit: UnitOfWork) -> dict[str, Any]:
        attempt = rank_figures.attempt_of(unit, found_id, chosen.attempt)
        shown = {"job": job_reads.get(unit, found_id), "attempt": attempt}
        if attempt is None:
            return {**shown, "gang": None, "rows": (), "memory": None, "numbers": ()}
        may_read = viewer.may(Permission.LOG_READ)
        memory = memory_lines_of(unit, attempt.id, gang_hosts.MOST_FAULTY) if may_read else None
        faults = gang_hosts.faults_of(unit, found_id, attempt, memory)
        return {
            **shown,
            "numbers": rank_figures.numbers_of(unit, found_id, most=NUMBERS_SHOWN),
            "memory": memory,
            "faults": faults.of_ranks,
            "has_more_faults": faults.has_more,
            "limits": (gang_hosts.MOST_FAULTY, gang_hosts.VERDICTS_READ),
            "lines_days": active_policy(unit.session).retention.logs_days,
            **_gang(unit, attempt, chosen, after, faults.of_ranks),
        }

    shown = reading(dependencies.units, viewer.principal, jobs.READ, read)
    page = page_of(
        dependencies.secret_key,
        chosen.filters,
        shown.pop("rows"),
        size=A_PAGE,
        path=path,
        place=lambda row: gang_times.position_of(row, chosen.sort),
    )
    return pages_of(request).page(
        request,
        "job_debug.html",
        viewer,
        place="jobs",
        page=page,
        chosen=chosen,
        only=Only,
        back=f"/console/jobs/{found_id}",
        debug=job_debug,
        figures=RankFigure,
        words=job_texts,
        lines_shown=LINES_SHOWN,
        nothing=job_debug.nothing_in_words(shown["attempt"], shown["gang"]),
        **shown,
    )


def _gang(
    unit: UnitOfWork,
    attempt: AttemptShown,
    chosen: DebugQuery,
    after: Sequence[str] | None,
    faults: dict[int, gang_hosts.RankFaults],
) -> dict[str, Any]:
    """Return what the page shows of the ranks: all of them are read once."""
    gang = gang_times.gang_times_of(unit, attempt, chosen.sort)
    ranks = gang.sorted_ranks(
        chosen.sort, chosen.order, only=_shown(gang, attempt, chosen, faults), after=after, limit=A_PAGE + 1
    )
    named = {"slow": gang.slowest(NAMED), "silent": gang.longest_silent(NAMED)}
    rows = {row.rank: row for row in gang.rows(unit, attempt, [*{*ranks, *named["slow"], *named["silent"]}])}
    hosts = gang_hosts.hosts_of(attempt, gang, faults) if gang.num_ranks > A_PAGE else None
    missing = gang.missing(NAMED)
    return {
        "gang": gang,
        "medians": rank_figures.medians_of(unit, attempt),
        "num_sampled": min(gang.num_ranks, rank_figures.RANKS_SAMPLED),
        "rows": rank_figures.with_kept_steps(unit, attempt, [rows[rank] for rank in ranks if rank in rows]),
        **{name: [rows[rank] for rank in each if rank in rows] for name, each in named.items()},
        "missing": missing,
        "missing_hosts": gang_hosts.names_of_hosts(unit, attempt, [rank // attempt.ranks_per_node for rank in missing]),
        "num_faulty": int(gang.among(faults).sum()),
        "host_grid": None if hosts is None else job_debug.host_grid(hosts),
        "hosts": () if hosts is None else hosts.worst(unit, attempt, HOSTS_NAMED),
        "host_name": gang_hosts.names_of_hosts(unit, attempt, () if chosen.host is None else (chosen.host,)),
    }


def _shown(
    gang: GangTimes, attempt: AttemptShown, chosen: DebugQuery, faults: dict[int, gang_hosts.RankFaults]
) -> NDArray[np.bool_] | None:
    """Return which ranks the table has; None: all."""
    found: NDArray[np.bool_] | None = None
    if chosen.only is Only.SLOW:
        found = gang.is_slow
    elif chosen.only is Only.SILENT:
        found = gang.is_silent
    elif chosen.only is Only.FAULTY:
        found = gang.among(faults)
    if chosen.host is None:
        return found
    of_host: NDArray[np.bool_] = gang.ranks // attempt.ranks_per_node == chosen.host
    return of_host if found is None else found & of_host


@router.get("/jobs/{job_id}/debug.json")
def debug_charts(
    request: Request, viewer: JobReader, job_id: str, attempt: Number = None, rank: Rank = None
) -> Response:
    """Return the histograms of the page's charts. ``rank``: whose steps are drawn with the steps of all."""
    found_id = JobId(require_id("job", job_id))

    def read(unit: UnitOfWork) -> dict[str, Any]:
        shown = _reported(unit, found_id, attempt)
        num_ranks = rank_figures.num_ranks_of(unit, shown)
        steps = rank_spreads.spread_of_steps(unit, shown, chosen=rank)
        return job_debug.charts_of(steps, rank_spreads.spreads_of_ranks(unit, shown, job_debug.DRAWN), num_ranks, rank)

    return JSONResponse(reading(dependencies_of(request).units, viewer.principal, jobs.READ, read))


@router.get("/jobs/{job_id}/debug.csv")
def debug_csv(request: Request, viewer: JobReader, job_id: str, attempt: Number = None) -> Response:
    """Return the figures of all ranks of an attempt as CSV, in the order of their numbers, a piece at a time."""
    found_id = JobId(require_id("job", job_id))
    units, principal = dependencies_of(request).units, viewer.principal

    def read(unit: UnitOfWork) -> tuple[AttemptShown, GangTimes]:
        shown = _reported(unit, found_id, attempt)
        return shown, gang_times.gang_times_of(unit, shown)

    shown, gang = reading(units, principal, jobs.READ, read)

    def pieces() -> Iterator[Sequence[RankRow]]:
        for first in range(0, gang.num_ranks, RANKS_A_PIECE):
            ranks = gang.ranks[first : first + RANKS_A_PIECE].tolist()
            yield reading(units, principal, jobs.READ, lambda unit, ranks=ranks: gang.rows(unit, shown, ranks))  # type: ignore[misc]  # used at once

    return csv_answer(f"{found_id}-attempt-{shown.number}-ranks", job_debug.csv_of(pieces()))


def _reported(unit: UnitOfWork, job_id: JobId, number: int | None) -> AttemptShown:
    attempt = rank_figures.attempt_of(unit, job_id, number)
    if attempt is None:
        raise NotFoundError("the job has no attempt yet")
    return attempt
