"""Routes that change all nodes or jobs that a selector matches: tried with ``dry_run`` first, then with its count."""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Final, TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import Field

from api.bodies import described_by, json_body
from api.changes import Answer, Change, Changing
from api.dependencies import dependencies_of
from api.lists import holder_in, place_in
from api.permissions import requires
from control.core.bulk import MOST, BulkOutcome, BulkRequest, BulkResult
from control.core.unit_of_work import UnitOfWork
from control.hosts import bulk_changes as node_changes
from control.hosts.node_lists import NodeFilter
from control.jobs import bulk_changes as job_changes
from control.jobs.listing import JobFilter
from muster import documents
from muster.domain.errors import ValidationFailedError
from muster.domain.ids import NodeId, TenantId
from muster.domain.principals import Permission, Principal
from muster.domain.states import Contact, JobState
from muster.domain.strict import Moment, Name, StrictModel, Text

router = APIRouter(tags=["bulk changes"])
F = TypeVar("F", NodeFilter, JobFilter)
WEEK_S: Final = 604_800
Reason = Annotated[Text, Field(min_length=1, max_length=500, pattern=r"\S")]
Word = Annotated[Text, Field(min_length=1, max_length=253, pattern=r"^[!-~]+$")]
Label = Annotated[Text, Field(min_length=1, max_length=512)]


class NodeSelector(StrictModel):
    """Conditions on nodes; all of them hold, and at least one is given."""

    contact: Annotated[list[Annotated[Contact, Field(strict=False)]], Field(max_length=3)] | None = None
    name: Word | None = None
    """A part of its name."""
    rack: Word | None = None
    label: Annotated[list[Label], Field(max_length=10)] | None = None
    """`name=value`, or `name` for any value; all of them hold."""
    tenant_id: Word | None = None
    """Only nodes on which a job of this tenant has GPUs now."""
    tier: Name | None = None
    """Only nodes on which a job of this tier has GPUs now."""
    cordoned: bool | None = None
    """Only nodes with a cordon of their own, or without one."""

    @property
    def wanted(self) -> NodeFilter:
        """The filter. Raises ValidationFailedError: a label is none."""
        place, holder = place_in(self.rack, self.label), holder_in(None, self.tenant_id, self.tier)
        return NodeFilter(tuple(self.contact or ()), self.name, self.cordoned, place, holder)


class JobSelector(StrictModel):
    """Conditions on jobs; all of them hold, and at least one is given."""

    state: Annotated[list[Annotated[JobState, Field(strict=False)]], Field(max_length=10)] | None = None
    tenant_id: Word | None = None
    name: Name | None = None
    tier: Name | None = None
    job_class: Name | None = None
    """Only jobs of this class."""
    label: Annotated[list[Label], Field(max_length=10)] | None = None
    """`name=value`, or `name` for any value; all of them hold."""
    node: Word | None = None
    """The id of a host: only jobs with a part there now."""
    rack: Word | None = None
    """Only jobs with a part in this rack now."""
    since: Moment | None = None
    """Only jobs that were submitted then or later."""
    until: Moment | None = None
    """Only jobs that were submitted before."""

    @property
    def wanted(self) -> JobFilter:
        """The filter. Raises ValidationFailedError: a label is none."""
        place = place_in(None, self.label)
        return JobFilter(
            states=tuple(self.state or ()),
            tenant_id=None if self.tenant_id is None else TenantId(self.tenant_id),
            name=self.name,
            tier=self.tier,
            job_class=self.job_class,
            labels=place.labels,
            label_names=place.label_names,
            node_id=None if self.node is None else NodeId(self.node),
            rack=self.rack,
            since=self.since,
            until=self.until,
        )


class BulkChange(StrictModel):
    """A change of all matching objects.

    ``after``: `next_after` of the answer before, to continue. ``limit``: how many are changed by one request.
    """

    reason: Reason
    expected: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    after: Annotated[Text, Field(min_length=1, max_length=64, pattern=r"^[!-~]+$")] | None = None
    limit: Annotated[int, Field(ge=1, le=MOST)] = MOST

    def requested(self, change: Change) -> BulkRequest:
        """Return the request. Raises ValidationFailedError: it is no dry run, and expects no number."""
        if self.expected is None and not change.is_dry_run:
            words = "send `num_matched` of the same request with `dry_run=true`: no more and no fewer are changed"
            raise ValidationFailedError.at("/expected", "missing", words)
        return BulkRequest(self.reason, self.expected, self.after, self.limit)


class NodesChange(BulkChange):
    """A change of nodes."""

    selector: NodeSelector


class NodesCordon(NodesChange):
    """Cordons on nodes; without ``until`` they stand until they are released."""

    until: Moment | None = None


class NodesDrain(NodesChange):
    """Drains of nodes."""

    until: Moment | None = None
    deadline_s: Annotated[float, Field(gt=0, le=WEEK_S)] | None = None
    despite_budget: Annotated[Text, Field(min_length=1, max_length=500, pattern=r"\S")] | None = None


class JobsChange(BulkChange):
    """A change of jobs."""

    selector: JobSelector


OfNodes = Annotated[Principal, requires(Permission.NODE_WRITE)]


@router.post("/nodes/cordon", response_model=documents.BulkAnswer, openapi_extra=described_by(NodesCordon))
def cordon_nodes(
    principal: OfNodes, wanted: Annotated[NodesCordon, json_body(NodesCordon)], change: Changing
) -> JSONResponse:
    """Keep all matching nodes out of new placements that have no cordon by a person; running jobs stay."""
    return _run(
        change,
        principal,
        node_changes.CORDON,
        wanted,
        wanted.selector.wanted,
        partial(node_changes.cordon, until=wanted.until),
    )


@router.post("/nodes/uncordon", response_model=documents.BulkAnswer, openapi_extra=described_by(NodesChange))
def uncordon_nodes(
    principal: OfNodes, wanted: Annotated[NodesChange, json_body(NodesChange)], change: Changing
) -> JSONResponse:
    """End all cordons that persons set on matching nodes, also by a drain; cordons of rules and windows stand."""
    return _run(change, principal, node_changes.UNCORDON, wanted, wanted.selector.wanted, node_changes.uncordon)


@router.post("/nodes/drain", response_model=documents.BulkAnswer, openapi_extra=described_by(NodesDrain))
def drain_nodes(
    principal: OfNodes, wanted: Annotated[NodesDrain, json_body(NodesDrain)], change: Changing
) -> JSONResponse:
    """Cordon all matching nodes that are not being drained, and ask every job on them to leave for maintenance."""
    drain = partial(
        node_changes.drain,
        until=wanted.until,
        deadline_s=wanted.deadline_s,
        despite_budget=wanted.despite_budget,
    )
    return _run(change, principal, node_changes.DRAIN, wanted, wanted.selector.wanted, drain)


@router.post("/jobs/cancel", response_model=documents.BulkAnswer, openapi_extra=described_by(JobsChange))
def cancel_jobs(
    principal: Annotated[Principal, requires(Permission.JOB_CANCEL)],
    wanted: Annotated[JobsChange, json_body(JobsChange)],
    change: Changing,
) -> JSONResponse:
    """Cancel all matching jobs that have not ended; of a tenant its own."""
    return _run(change, principal, job_changes.CANCEL, wanted, wanted.selector.wanted, job_changes.cancel)


@router.post("/jobs/release", response_model=documents.BulkAnswer, openapi_extra=described_by(JobsChange))
def release_jobs(
    principal: Annotated[Principal, requires(Permission.JOB_SUBMIT)],
    wanted: Annotated[JobsChange, json_body(JobsChange)],
    change: Changing,
) -> JSONResponse:
    """Release all matching jobs from HELD into the queue; of a tenant its own."""
    return _run(change, principal, job_changes.RELEASE, wanted, wanted.selector.wanted, job_changes.release)


@router.post("/jobs/hold", response_model=documents.BulkAnswer, openapi_extra=described_by(JobsChange))
def hold_jobs(
    principal: Annotated[Principal, requires(Permission.JOB_SUBMIT)],
    wanted: Annotated[JobsChange, json_body(JobsChange)],
    change: Changing,
) -> JSONResponse:
    """Hold all matching jobs that wait for GPUs, until they are released; of a tenant its own."""
    return _run(change, principal, job_changes.HOLD, wanted, wanted.selector.wanted, job_changes.hold)


@router.post("/jobs/retry", response_model=documents.BulkAnswer, openapi_extra=described_by(JobsChange))
def retry_jobs(
    request: Request,
    principal: Annotated[Principal, requires(Permission.JOB_SUBMIT)],
    wanted: Annotated[JobsChange, json_body(JobsChange)],
    change: Changing,
) -> JSONResponse:
    """Submit all matching jobs again that failed or were cancelled and have no copy yet; of a tenant its own."""
    work = partial(job_changes.retry, store=dependencies_of(request).store_place)
    return _run(change, principal, job_changes.RETRY, wanted, wanted.selector.wanted, work)


def _run(
    change: Change,
    principal: Principal,
    action: str,
    wanted: BulkChange,
    selected: F,
    work: Callable[[UnitOfWork, F, BulkRequest], BulkResult],
) -> JSONResponse:
    requested = wanted.requested(change)
    return change.run(
        principal, action, lambda unit: work(unit, selected, requested), lambda found: Answer(_view(found))
    )


def _view(found: BulkResult) -> dict[str, Any]:
    return {
        "num_matched": found.num_matched,
        "num_changed": len(found.outcomes) - found.num_refused,
        "num_refused": found.num_refused,
        "num_unchanged": found.num_unchanged,
        "num_left": found.num_left,
        "next_after": found.next_after,
        "items": [_outcome_view(each) for each in found.outcomes],
    }


def _outcome_view(found: BulkOutcome) -> documents.BulkItem:
    refusal = found.refusal
    return {
        "id": found.id,
        "name": found.name,
        "outcome": "changed" if refusal is None else "refused",
        "code": None if refusal is None else refusal.code,
        "why": None if refusal is None else str(refusal),
    }
