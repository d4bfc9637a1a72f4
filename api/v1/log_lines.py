"""Routes of lines of a job's logs: lines that hold a text, lines about faults, and logs of its environments."""

from typing import Annotated

from fastapi import APIRouter, Query, Request

from api.cursors import make_cursor, read_cursor
from api.dependencies import dependencies_of
from api.fault_line_views import fault_lines_view
from api.job_views import log_line_view
from api.permissions import requires
from api.reading import PRINTABLE, Limit, reading, require_id
from api.views import time_of
from control.jobs import environments, jobs
from control.jobs.job_logs import LogFilter
from control.jobs.log_search import Place, search
from control.watch import lines, read
from muster import documents
from muster.domain.ids import JobId
from muster.domain.job.log_search import Sought
from muster.domain.principals import Permission, Principal

router = APIRouter(tags=["jobs"])


@router.get("/jobs/{job_id}/logs/lines")
def log_lines(
    job_id: str,
    request: Request,
    principal: Annotated[Principal, requires(Permission.LOG_READ)],
    contains: Annotated[str, Query(min_length=1, max_length=500)],
    stream: Annotated[str | None, Query(pattern=r"^(launcher|[0-9]{1,7})$")] = None,
    attempt_id: Annotated[str | None, Query(max_length=64, pattern=PRINTABLE)] = None,
    cursor: Annotated[str | None, Query(max_length=1024)] = None,
    limit: Limit = 100,
    *,
    ignore_case: bool = False,
) -> documents.LogLinePage:
    """Return lines by attempt, host and stream.

    ``next_cursor`` is null once all logs were searched; before that, a page may hold no line.
    """
    dependencies = dependencies_of(request)
    found_id = JobId(require_id("job", job_id))
    filters = {"job": found_id, "contains": contains, "case": ignore_case, "stream": stream, "attempt": attempt_id}
    after = None
    if cursor is not None:
        attempt, node, name, chunk, offset = read_cursor(dependencies.secret_key, filters, cursor, length=5)
        after = Place(attempt, node, name, int(chunk), int(offset))
    wanted, sought = LogFilter(attempt_id=attempt_id, stream=stream), Sought(contains, ignores_case=ignore_case)
    found, place = reading(
        dependencies.units,
        principal,
        jobs.READ,
        lambda unit: search(unit, found_id, wanted, sought, after=after, limit=limit),
    )
    behind = None if place is None else make_cursor(dependencies.secret_key, filters, [str(part) for part in place])
    return {"items": [log_line_view(line) for line in found], "next_cursor": behind}


@router.get("/jobs/{job_id}/fault-lines")
def fault_lines(
    job_id: str,
    request: Request,
    principal: Annotated[Principal, requires(Permission.LOG_READ)],
    attempt: Annotated[int | None, Query(ge=1, lt=1 << 31)] = None,
) -> documents.FaultLines:
    """Return what lines about faults of an attempt state, the root first, with what was measured on its hosts."""
    found_id = JobId(require_id("job", job_id))
    units = dependencies_of(request).units
    return fault_lines_view(
        reading(units, principal, read.READ, lambda unit: lines.fault_lines(unit, found_id, number=attempt))
    )


@router.get("/jobs/{job_id}/environments")
def job_environments(
    job_id: str, request: Request, principal: Annotated[Principal, requires(Permission.LOG_READ)]
) -> documents.JobEnvironments:
    """Return the environments that hosts of the job asked for: whether each is built, and the log of a failed build."""
    found_id, units = JobId(require_id("job", job_id)), dependencies_of(request).units
    found = reading(units, principal, jobs.READ, lambda unit: environments.builds_of(unit, found_id))
    return {"items": [_environment_view(build) for build in found]}


def _environment_view(build: environments.BuildFound) -> documents.EnvironmentBuild:
    return {
        "key": build.key,
        "state": build.state,
        "interpreter": build.interpreter,
        "platform": build.platform,
        "node_name": build.node_name,
        "changed_at": time_of(build.changed_at),
        "digest": build.digest,
        "num_bytes": build.num_bytes,
        "words": build.words,
        "line": build.line,
        "log": build.log,
        "source": build.source,
    }
