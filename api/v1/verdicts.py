"""Routes of verdicts on running jobs, and their dismissal."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse
from pydantic import Field

from api.bodies import described_by, json_body
from api.changes import Answer, Changing
from api.cursors import make_cursor, read_cursor
from api.dependencies import dependencies_of
from api.permissions import requires
from api.reading import PRINTABLE, Limit, page_of, reading, require_id
from api.verdict_views import rules_view, verdict_view
from control.watch import learning, read, verdicts
from muster import documents
from muster.domain.ids import JobId, NodeId, VerdictId
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
    job: Annotated[str | None, Query(max_length=64, pattern=PRINTABLE, description="the id of a job")] = None,
    node: Annotated[str | None, Query(max_length=64, pattern=PRINTABLE, description="the id of a node")] = None,
    kind: Annotated[list[VerdictKind] | None, Query(max_length=10)] = None,
    state: Annotated[VerdictState | None, Query()] = None,
    cursor: Annotated[str | None, Query(max_length=1024)] = None,
    limit: Limit = 50,
) -> documents.VerdictPage:
    """Return verdicts on running jobs, the newest first; ``next_cursor`` is null on the last page."""
    dependencies = dependencies_of(request)
    kinds = sorted(kind or [])
    filters = {"path": "verdicts", "job": job, "node": node, "kinds": kinds, "state": state}
    before = None
    if cursor is not None:
        (before,) = read_cursor(dependencies.secret_key, filters, cursor, length=1)
    found = reading(
        dependencies.units,
        principal,
        read.READ,
        lambda unit: read.list_verdicts(
            unit,
            job_id=None if job is None else JobId(job),
            node_id=None if node is None else NodeId(node),
            kinds=kinds,
            state=state,
            before=before,
            limit=limit + 1,
        ),
    )
    return page_of(found, limit, verdict_view, lambda last: make_cursor(dependencies.secret_key, filters, [last.id]))


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
