"""Lists of jobs, filtered and in order, for the API and the console.

The API's list is one statement together with the check of the key (``newest_jobs``). Pages read in a unit of work
(``list_jobs``). Both have the same conditions, and a test compares them.
"""

import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ARRAY, ColumnElement, Select, String, cast, func, select, text, tuple_
from sqlalchemy.dialects.postgresql import JSONB

from control.attempts.types import AttemptRecord, JobRecord, LabelledJob
from control.core.json_query import JsonQuery
from control.core.records import record_of
from control.core.unit_of_work import UnitOfWork
from control.core.visibility import visible_rows, visible_to_key
from control.jobs.read import JOB_COLUMNS
from muster.db.models import Attempt, AttemptHost, Job, Node, Tenant
from muster.domain.ids import AttemptId, JobId, NodeId, TenantId
from muster.domain.principals import Permission
from muster.domain.states import AttemptState, HostPartState, JobState

HOSTS_NAMED: Final = 2
"""The number of hosts of a live attempt that are named; the others are counted."""


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Conditions on a job; None and empty set no condition. ``name_part``: a part of the name, in any case.

    ``before``: (created_at, id) of the last job of the page before; with ``is_oldest_first`` of the one that is newest.
    ``labels``: its labels have all of these values, and ``label_names`` all of these names. ``node_id``: the host has a
    part of it that is not proved clean; ``rack``: a host of the rack has. ``since``, ``until``: it was submitted at or
    after, and before.
    """

    states: Sequence[JobState] = ()
    tier: str | None = None
    job_class: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    label_names: Sequence[str] = ()
    node_id: NodeId | None = None
    rack: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    is_oldest_first: bool = False
    name: str | None = None
    name_part: str | None = None
    tenant_id: TenantId | None = None
    before: tuple[datetime, JobId] | None = None


@dataclass(frozen=True, slots=True)
class ListedJob:
    """One job.

    ``live``: its attempt that has not ended; ``node_names``: the first hosts; ``num_attempts``: all attempts.
    """

    job: JobRecord
    tenant_name: str
    num_attempts: int
    live: AttemptRecord | None
    node_names: Sequence[str]


def newest_jobs(wanted: JobFilter, *, limit: int) -> tuple[JsonQuery[list[LabelledJob]], dict[str, Any]]:
    """Return the query for a page of jobs as ``list_jobs`` orders and filters them, and its parameters.

    The query runs with the key of its caller.
    """
    given: dict[str, Any] = {
        "states": wanted.states,
        "tier": wanted.tier,
        "job_class": wanted.job_class,
        "name": wanted.name,
        "name_part": wanted.name_part,
        "tenant_id": wanted.tenant_id,
        "labels": json.dumps(dict(wanted.labels)) if wanted.labels else None,
        "label_names": list(wanted.label_names),
        "node_id": wanted.node_id,
        "rack": wanted.rack,
        "since": wanted.since,
        "until": wanted.until,
    }
    if wanted.before is not None:
        given |= dict(
            zip(("after_at" if wanted.is_oldest_first else "before_at", "before_id"), wanted.before, strict=True)
        )
    given = {name: value for name, value in given.items() if value}
    query = _newest(frozenset(given) - {"before_id"}, is_oldest_first=wanted.is_oldest_first)
    return query, {**given, "limit": limit}


_LABELS: Final = "COALESCE(j.labels, j.spec->'labels', '{}')"
"""Release 0.1.0 stored labels in the specification alone."""
_CONDITIONS: Final = {
    "states": "j.state = ANY(%(states)s)",
    "tier": "j.tier = %(tier)s",
    "job_class": "j.job_class = %(job_class)s",
    "name": "j.name = %(name)s",
    "name_part": "strpos(lower(j.name), lower(%(name_part)s)) > 0",
    "tenant_id": "j.tenant_id = %(tenant_id)s",
    "labels": f"{_LABELS} @> CAST(%(labels)s AS jsonb)",
    "label_names": f"jsonb_exists_all({_LABELS}, %(label_names)s)",
    "node_id": """EXISTS (
        SELECT FROM attempt_hosts AS h JOIN attempts AS a ON a.id = h.attempt_id
        WHERE h.node_id = %(node_id)s AND h.state <> 'CLEAN' AND a.job_id = j.id)""",
    "rack": """EXISTS (
        SELECT FROM attempt_hosts AS h JOIN attempts AS a ON a.id = h.attempt_id JOIN nodes AS n ON n.id = h.node_id
        WHERE n.rack = %(rack)s AND h.state <> 'CLEAN' AND a.job_id = j.id)""",
    "since": "j.created_at >= %(since)s",
    "until": "j.created_at < %(until)s",
    "before_at": "(j.created_at, j.id) < (%(before_at)s, %(before_id)s)",
    "after_at": "(j.created_at, j.id) > (%(after_at)s, %(before_id)s)",
}


@functools.cache
def _newest(filters: frozenset[str], *, is_oldest_first: bool) -> JsonQuery[list[LabelledJob]]:
    conditions = [_CONDITIONS[name] for name in sorted(filters)]
    order = "ASC" if is_oldest_first else "DESC"

    def page(is_visible: str) -> str:
        return f"""
            SELECT COALESCE(json_agg(to_json(page)), '[]') FROM (
                SELECT {JOB_COLUMNS}, {_LABELS} AS labels
                FROM jobs AS j WHERE {" AND ".join([is_visible, *conditions])}
                ORDER BY j.created_at {order}, j.id {order} LIMIT %(limit)s
            ) AS page
        """  # noqa: S608  # words of ours; what a caller sends is bound

    return JsonQuery(visible_to_key(page, "j.tenant_id"), list[LabelledJob])


def list_jobs(unit: UnitOfWork, wanted: JobFilter, *, limit: int) -> Sequence[ListedJob]:
    """Return the newest jobs first, each with its live attempt; a tenant reads its own."""
    unit.principal.require(Permission.JOB_READ)
    query = (
        select(Job, Tenant.name)
        .join(Tenant, Tenant.id == Job.tenant_id)
        .where(visible_rows(unit.principal, Job.tenant_id), *_page_conditions(wanted))
    )
    order = (Job.created_at, Job.id) if wanted.is_oldest_first else (Job.created_at.desc(), Job.id.desc())
    rows = unit.session.execute(query.order_by(*order).limit(limit)).all()
    job_ids = [job.id for job, _ in rows]
    numbers, live = _attempts_of(unit, job_ids)
    names = _hosts_of(unit, [attempt.id for attempt in live.values()])
    return [
        ListedJob(
            record_of(job, JobRecord),
            tenant_name,
            numbers.get(job.id, 0),
            live.get(job.id),
            names.get(live[job.id].id, ()) if job.id in live else (),
        )
        for job, tenant_name in rows
    ]


def conditions_on(wanted: JobFilter) -> Iterator[ColumnElement[bool]]:
    """Yield the same conditions as ``_CONDITIONS``, without the page's."""
    given: list[tuple[object, Callable[[], ColumnElement[bool]]]] = [
        (wanted.tenant_id, lambda: Job.tenant_id == wanted.tenant_id),
        (wanted.states, lambda: Job.state.in_(wanted.states)),
        (wanted.tier, lambda: Job.tier == wanted.tier),
        (wanted.job_class, lambda: Job.job_class == wanted.job_class),
        (wanted.name, lambda: Job.name == wanted.name),
        (wanted.name_part, lambda: Job.name.icontains(wanted.name_part or "", autoescape=True)),
        (wanted.labels, lambda: _labels().contains(dict(wanted.labels))),
        (wanted.label_names, lambda: func.jsonb_exists_all(_labels(), cast(list(wanted.label_names), ARRAY(String)))),
        (wanted.node_id, lambda: Job.id.in_(_jobs_on(wanted.node_id))),
        (wanted.rack, lambda: Job.id.in_(_jobs_on(rack=wanted.rack))),
        (wanted.since, lambda: Job.created_at >= wanted.since),
        (wanted.until, lambda: Job.created_at < wanted.until),
    ]
    for value, condition in given:
        if value:
            yield condition()


def _page_conditions(wanted: JobFilter) -> Iterator[ColumnElement[bool]]:
    yield from conditions_on(wanted)
    if wanted.before is not None:
        place, last = tuple_(Job.created_at, Job.id), tuple_(*wanted.before)
        yield place > last if wanted.is_oldest_first else place < last


def _labels() -> ColumnElement[Any]:
    return func.coalesce(Job.labels, Job.spec["labels"], text("'{}'"), type_=JSONB)


def _jobs_on(node_id: NodeId | None = None, *, rack: str | None = None) -> Select[JobId]:
    parts = select(Attempt.job_id).join(AttemptHost, AttemptHost.attempt_id == Attempt.id)
    parts = parts.where(AttemptHost.state != HostPartState.CLEAN)
    if rack is None:
        return parts.where(AttemptHost.node_id == node_id)
    return parts.join(Node, Node.id == AttemptHost.node_id).where(Node.rack == rack)


def _attempts_of(unit: UnitOfWork, job_ids: Sequence[JobId]) -> tuple[dict[JobId, int], dict[JobId, AttemptRecord]]:
    counted = select(Attempt.job_id, func.max(Attempt.number)).where(Attempt.job_id.in_(job_ids))
    numbers = {JobId(job_id): number for job_id, number in unit.session.execute(counted.group_by(Attempt.job_id))}
    query = select(Attempt).where(Attempt.job_id.in_(job_ids), Attempt.state != AttemptState.ENDED)
    return numbers, {row.job_id: record_of(row, AttemptRecord) for row in unit.session.scalars(query)}


def _hosts_of(unit: UnitOfWork, attempt_ids: Sequence[AttemptId]) -> dict[AttemptId, list[str]]:
    query = (
        select(AttemptHost.attempt_id, Node.name)
        .join(Node, Node.id == AttemptHost.node_id)
        .where(AttemptHost.attempt_id.in_(attempt_ids), AttemptHost.node_rank < HOSTS_NAMED)
        .order_by(AttemptHost.attempt_id, AttemptHost.node_rank)
    )
    names: dict[AttemptId, list[str]] = {}
    for attempt_id, name in unit.session.execute(query):
        names.setdefault(attempt_id, []).append(name)
    return names
