"""Lists of jobs, filtered and in order."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response

from api.authorized_query import AuthorizedQuery, answer, authorize_query
from api.cursors import make_cursor, read_cursor
from api.dependencies import dependencies_of
from api.job_views import listed_job_view
from api.lists import Cursor, Labels, labels_in, order_of
from api.reading import PRINTABLE, Limit, page_of
from control.core.paging import TimeOrder
from control.jobs.listing import JobFilter, newest_jobs
from control.telemetry.history import read_moment
from muster import documents
from muster.domain.ids import JobId, NodeId, TenantId
from muster.domain.principals import Permission, Principal
from muster.domain.states import JobState
from muster.domain.strict import Name

router = APIRouter(tags=["jobs"])


@dataclass(frozen=True, slots=True)
class JobQuery:
    """The query of a list of jobs: its conditions, order and page."""

    state: Annotated[list[JobState] | None, Query(max_length=10)] = None
    tenant_id: Annotated[str | None, Query(max_length=64, pattern=PRINTABLE)] = None
    name: Annotated[Name | None, Query()] = None
    tier: Annotated[Name | None, Query()] = None
    job_class: Annotated[Name | None, Query()] = None
    label: Labels = None
    node: Annotated[str | None, Query(max_length=64, pattern=PRINTABLE)] = None
    rack: Annotated[
        str | None,
        Query(min_length=1, max_length=253, pattern=PRINTABLE),
    ] = None
    since: Annotated[str | None, Query(max_length=40)] = None
    until: Annotated[str | None, Query(max_length=40)] = None
    order: Annotated[TimeOrder, Query()] = TimeOrder.NEWEST
    cursor: Cursor = None
    limit: Limit = 50

    def of_cursor(self, principal: Principal) -> dict[str, Any]:
        """Return what a cursor of the list is bound to: its conditions, and whose list it is.

        Conditions of release 0.1.0 always stand in it, as in that release's cursors: a list that is read while the
        control plane is upgraded continues.
        """
        oldest = {"states": sorted(self.state or []), "tenant_id": self.tenant_id, "name": self.name}
        newer = {
            "tier": self.tier,
            "job_class": self.job_class,
            "labels": sorted(self.label or []),
            "node": self.node,
            "rack": self.rack,
            "since": self.since,
            "until": self.until,
            "order": order_of(self.order, TimeOrder.NEWEST),
        }
        return {**oldest, **{key: value for key, value in newer.items() if value}, "who": principal.tenant_id}

    def filter_after(self, place: tuple[datetime, JobId] | None) -> JobFilter:
        """Return the filter of the page after ``place``. Raises ValidationFailedError: a label or time is none."""
        values, names = labels_in(self.label or [])
        return JobFilter(
            states=sorted(self.state or []),
            tenant_id=None if self.tenant_id is None else TenantId(self.tenant_id),
            name=self.name,
            tier=self.tier,
            job_class=self.job_class,
            labels=values,
            label_names=names,
            node_id=None if self.node is None else NodeId(self.node),
            rack=self.rack,
            since=read_moment("since", self.since),
            until=read_moment("until", self.until),
            is_oldest_first=self.order is TimeOrder.OLDEST,
            before=place,
        )


@router.get("/jobs", response_model=documents.JobPage)
def list_jobs(
    request: Request,
    authorized_query: Annotated[AuthorizedQuery, authorize_query(Permission.JOB_READ)],
    query: Annotated[JobQuery, Depends()],
) -> Response:
    """Return jobs, the newest first unless ``order`` says otherwise; ``next_cursor`` is null on the last page."""
    secret_key = dependencies_of(request).secret_key
    place = None
    if query.cursor is not None:
        of_cursor = query.of_cursor(authorized_query.principal())
        moment, job_id = read_cursor(secret_key, of_cursor, query.cursor, length=2)
        place = (datetime.fromisoformat(moment), JobId(job_id))
    answered = authorized_query.ask(*newest_jobs(query.filter_after(place), limit=query.limit + 1))
    of_cursor = query.of_cursor(answered.principal)
    page = page_of(
        answered.found or [],
        query.limit,
        listed_job_view,
        lambda last: make_cursor(secret_key, of_cursor, [last.created_at.isoformat(), last.id]),
    )
    return answer(page)
