"""Lists of jobs, filtered and in order."""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from api.authorized_query import AuthorizedQuery, answer, authorize_query
from api.cursors import make_cursor, read_cursor
from api.dependencies import dependencies_of
from api.job_views import listed_job_view
from api.reading import PRINTABLE, Limit, page_of
from control.jobs.listing import JobFilter, newest_jobs
from control.telemetry.history import read_moment
from muster import documents
from muster.domain.errors import ValidationFailedError
from muster.domain.ids import JobId, NodeId, TenantId
from muster.domain.principals import Permission
from muster.domain.states import JobState
from muster.domain.strict import Name

router = APIRouter(tags=["jobs"])


class JobOrder(StrEnum):
    """The order of a list of jobs, by the time of submission."""

    NEWEST = "newest"
    OLDEST = "oldest"


@router.get("/jobs", response_model=documents.JobPage)
def list_jobs(
    request: Request,
    authorized_query: Annotated[AuthorizedQuery, authorize_query(Permission.JOB_READ)],
    state: Annotated[list[JobState] | None, Query(max_length=10)] = None,
    tenant_id: Annotated[str | None, Query(max_length=64, pattern=PRINTABLE)] = None,
    name: Annotated[Name | None, Query(description="Only jobs of this name.")] = None,
    tier: Annotated[Name | None, Query(description="Only jobs of this tier.")] = None,
    label: Annotated[
        list[str] | None,
        Query(max_length=10, description="`name=value`, or `name` for any value; a job must have all of them."),
    ] = None,
    node: Annotated[
        str | None, Query(max_length=64, pattern=PRINTABLE, description="Only jobs with a part on this host now.")
    ] = None,
    since: Annotated[
        str | None, Query(max_length=40, description="RFC 3339; only jobs that were submitted then or later.")
    ] = None,
    until: Annotated[
        str | None, Query(max_length=40, description="RFC 3339; only jobs that were submitted before.")
    ] = None,
    order: Annotated[JobOrder, Query(description="By the time of submission.")] = JobOrder.NEWEST,
    cursor: Annotated[str | None, Query(max_length=1024)] = None,
    limit: Limit = 50,
) -> Response:
    """Return jobs, the newest first unless ``order`` says otherwise; ``next_cursor`` is null on the last page."""
    secret_key = dependencies_of(request).secret_key
    filters: dict[str, Any] = {
        "states": sorted(state or []),
        "tenant_id": tenant_id,
        "name": name,
        "tier": tier,
        "labels": sorted(label or []),
        "node": node,
        "since": since,
        "until": until,
        "order": order,
    }
    # As release 0.1.0 made cursors: a list that is read while the control plane is upgraded continues.
    filters = {key: value for key, value in filters.items() if key in _OLDEST_FILTERS or value not in _UNSET}
    before = None
    if cursor is not None:
        of_whom = {**filters, "who": authorized_query.principal().tenant_id}
        moment, job_id = read_cursor(secret_key, of_whom, cursor, length=2)
        before = (datetime.fromisoformat(moment), JobId(job_id))
    values, names = _labels_in(label or [])
    wanted = JobFilter(
        states=sorted(state or []),
        tenant_id=None if tenant_id is None else TenantId(tenant_id),
        name=name,
        tier=tier,
        labels=values,
        label_names=names,
        node_id=None if node is None else NodeId(node),
        since=read_moment("since", since),
        until=read_moment("until", until),
        is_oldest_first=order is JobOrder.OLDEST,
        before=before,
    )
    answered = authorized_query.ask(*newest_jobs(wanted, limit=limit + 1))
    of_whom = {**filters, "who": answered.principal.tenant_id}
    page = page_of(
        answered.found or [],
        limit,
        listed_job_view,
        lambda last: make_cursor(secret_key, of_whom, [last.created_at.isoformat(), last.id]),
    )
    return answer(page)


_OLDEST_FILTERS = frozenset({"states", "tenant_id", "name"})
_UNSET: Sequence[Any] = (None, [], JobOrder.NEWEST)


def _labels_in(texts: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return labels with values, and names alone. Raises ValidationFailedError: a name is empty, or has two values."""
    values: dict[str, str] = {}
    names: list[str] = []
    for text in texts:
        name, has_value, value = text.partition("=")
        if not name or values.get(name, value) != value:
            raise ValidationFailedError.at(
                "label", "invalid", f"{text[:80]!r}: write `name=value` or `name`, each once"
            )
        if has_value:
            values[name] = value
        else:
            names.append(name)
    return values, names
