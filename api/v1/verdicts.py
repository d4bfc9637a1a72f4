"""Routes of verdicts on running jobs, and their dismissal."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse
from pydantic import Field

from api.bodies import described_by, json_body
from api.changes import Answer, Changing
from api.dependencies import dependencies_of
from api.lists import Cursor, OfTenant, PageRequest, Within
from api.permissions import requires
from api.reading import PRINTABLE, Limit, reading, require_id
from api.verdict_views import rules_view, verdict_view
from control.watch import learning, read, verdicts
from control.watch.read import VerdictFilter
from muster import documents
from muster.domain.ids import JobId, NodeId, TenantId, VerdictId
from muster.domain.job.verdicts import VerdictKind, VerdictState
from muster.domain.principals import Permission, Principal
from muster.domain.strict import StrictModel, Text

router = APIRouter(tags=["jobs"])
Reader = Annotated[Principal, requires(Permission.JOB_READ)]


Reason = Annotated[Text, Field(min_length=1, max_length=500, pattern=r"\S")]


class VerdictDismissal(StrictModel):
    reason: Reason


class VerdictRulesReset(StrictModel):
    reason: Reason


@router.get("/verdicts")
def list_verdicts(
    request: Request,
    principal: Reader,
    within: Annotated[Within, Depends()],
    job: Annotated[str | None, Query(max_length=64, pattern=PRINTABLE, description="the id of a job")] = None,
    node: Annotated[str | None, Query(max_length=64, pattern=PRINTABLE, description="the id of a node")] = None,
    tenant_id: OfTenant = None,
    kind: Annotated[list[VerdictKind] | None, Query(max_length=10)] = None,
    state: Annotated[VerdictState | None, Query()] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> documents.VerdictPage:
    """Return verdicts on running jobs, the newest first unless ``order`` says otherwise.

    ``since`` and ``until`` are about the time at which they were made.
    """
    kinds = sorted(kind or [])
    wanted = VerdictFilter(
        job_id=None if job is None else JobId(job),
        node_id=None if node is None else NodeId(node),
        tenant_id=None if tenant_id is None else TenantId(tenant_id),
        kinds=kinds,
        state=state,
        span=within.span,
    )
    return PageRequest(request, principal, read.SORTS[within.order], cursor, limit).answer(
        read.READ,
        {"path": "verdicts", "job": job, "node": node, "kinds": kinds, "state": state},
        lambda unit, part: read.list_verdicts(unit, wanted, part),
        verdict_view,
        newer={"tenant_id": tenant_id, **within.conditions},
    )


@router.get("/verdicts/rules")
def verdict_rules(
    request: Request,
    principal: Reader,
    job: Annotated[str | None, Query(max_length=64, pattern=PRINTABLE, description="the id of a job")] = None,
) -> documents.VerdictRules:
    """Return how often each rule gave a verdict and was dismissed, and which rules only notify of a job."""
    job_id = None if job is None else JobId(job)
    units = dependencies_of(request).units
    return rules_view(reading(units, principal, read.READ, lambda unit: learning.rules(unit, job_id=job_id)))


@router.get("/verdicts/{verdict_id}")
def show_verdict(verdict_id: str, request: Request, principal: Reader) -> documents.Verdict:
    """Return one verdict with its evidence."""
    found_id = VerdictId(require_id("verdict", verdict_id))
    units = dependencies_of(request).units
    return verdict_view(reading(units, principal, read.READ, lambda unit: read.get(unit, found_id)))


@router.post(
    "/verdicts/{verdict_id}/dismiss",
    response_model=documents.ChangedVerdict,
    openapi_extra=described_by(VerdictDismissal),
)
def dismiss_verdict(
    verdict_id: str,
    principal: Annotated[Principal, requires(Permission.INCIDENT_WRITE)],
    requested: Annotated[VerdictDismissal, json_body(VerdictDismissal)],
    change: Changing,
) -> JSONResponse:
    """Dismiss a verdict as a false alarm: it blames no host any more. Twice is the same as once."""
    found_id = VerdictId(require_id("verdict", verdict_id))
    return change.run(
        principal,
        verdicts.DISMISS,
        lambda unit: verdicts.dismiss(unit, found_id, reason=requested.reason),
        lambda row: Answer(verdict_view(row)),
    )


@router.post(
    "/jobs/{job_id}/verdict-rules/reset",
    response_model=documents.ChangedVerdictRules,
    openapi_extra=described_by(VerdictRulesReset),
)
def reset_verdict_rules(
    job_id: str,
    principal: Annotated[Principal, requires(Permission.INCIDENT_WRITE)],
    requested: Annotated[VerdictRulesReset, json_body(VerdictRulesReset)],
    change: Changing,
) -> JSONResponse:
    """Let earlier dismissals mute no rule of the job any more. Verdicts stay dismissed. Twice is the same as once."""
    found_id = JobId(require_id("job", job_id))
    return change.run(
        principal,
        learning.RESET,
        lambda unit: learning.reset(unit, found_id, reason=requested.reason),
        lambda found: Answer(rules_view(found)),
    )
