"""Page of the list of jobs: each with its state, its hosts, and why it waits."""

from datetime import datetime
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from api.cursors import make_cursor, read_cursor
from api.dependencies import dependencies_of
from api.reading import STORABLE, reading
from console.rendering import is_fragment, pages_of
from console.session import Viewer, sees
from control.core.unit_of_work import UnitOfWork
from control.jobs import jobs
from control.jobs.listing import JobFilter, ListedJob, list_jobs
from control.jobs.read import known_tiers
from muster.domain.errors import ValidationFailedError
from muster.domain.ids import JobId
from muster.domain.principals import Permission
from muster.domain.states import JobState

router = APIRouter()
A_PAGE: Final = 50


def _states(text: str) -> list[JobState]:
    """Return the states. Raises ``ValidationFailedError``: no state of a job."""
    if not text:
        return []
    try:
        return [JobState(text)]
    except ValueError:
        accepted = ", ".join(each.value for each in JobState)
        raise ValidationFailedError.at("/state", "unknown", f"is one of: {accepted}") from None


@router.get("/jobs")
def list_page(
    request: Request,
    viewer: Annotated[Viewer, sees(Permission.JOB_READ)],
    state: Annotated[str, Query(max_length=20)] = "",
    tier: Annotated[str, Query(max_length=64)] = "",
    name: Annotated[str, Query(max_length=128, pattern=STORABLE)] = "",
    cursor: Annotated[str | None, Query(max_length=1024)] = None,
) -> Response:
    """Show jobs, the newest first, a page at a time."""
    dependencies = dependencies_of(request)
    tier, name = tier.strip(), name.strip()
    states = _states(state)
    filters = {"console": "jobs", "state": states, "tier": tier, "name": name}
    before = None
    if cursor is not None:
        moment, job_id = read_cursor(dependencies.secret_key, filters, cursor, length=2)
        before = (datetime.fromisoformat(moment), JobId(job_id))
    wanted = JobFilter(states=states, tier=tier or None, name_part=name or None, before=before)

    def read(unit: UnitOfWork) -> tuple[list[ListedJob], list[str]]:
        return list(list_jobs(unit, wanted, limit=A_PAGE + 1)), list(known_tiers(unit))

    found, tiers = reading(dependencies.units, viewer.principal, jobs.READ, read)
    shown, next_cursor = found[:A_PAGE], None
    if len(found) > A_PAGE:
        last = shown[-1].job
        next_cursor = make_cursor(dependencies.secret_key, filters, [last.created_at.isoformat(), last.id])
    return pages_of(request).page(
        request,
        "parts/jobs_table.html" if is_fragment(request) else "jobs.html",
        viewer,
        place="jobs",
        found=shown,
        next_cursor=next_cursor,
        is_first=cursor is None,
        state=states[0] if states else "",
        tier=tier,
        name=name,
        states=list(JobState),
        tiers=tiers,
        shows_tenant=viewer.principal.sees_all_tenants,
    )
