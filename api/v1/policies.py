"""Routes of the policy: the active one, its versions, a candidate compared with it, and activating one."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from api.bodies import described_by, json_body
from api.changes import Answer, Changing, etag_of, version_in
from api.dependencies import dependencies_of
from api.lists import Cursor, PageRequest, Within
from api.permissions import requires
from api.reading import Limit, reading, require_version
from api.views import time_of, version_view
from control.policy import policies, read
from control.policy.activation import Activated, activate
from control.policy.read import Comparison, PolicyView
from muster.documents import policies as documents
from muster.domain.errors import FieldFault, ValidationFailedError
from muster.domain.policy.differences import Difference
from muster.domain.policy.document import Policy
from muster.domain.principals import Permission, Principal
from muster.domain.strict import StrictModel, Text
from muster.domain.validation import validated

router = APIRouter(tags=["policy"])
Reader = Annotated[Principal, requires(Permission.POLICY_READ)]


class Candidate(StrictModel):
    """A candidate. ``document``: a policy, whole or in part; a missing field has its default."""

    document: dict[str, Any]


class NewPolicy(StrictModel):
    """A policy to activate. ``document``: whole or in part; a missing field has its default, not its active value."""

    document: Policy
    reason: Annotated[Text, Field(min_length=1, max_length=500, pattern=r"\S")]
    despite_budget: Annotated[Text, Field(min_length=1, max_length=500, pattern=r"\S")] | None = None


@router.get("/policy", response_model=documents.PolicyDetail)
def show_policy(request: Request, principal: Reader) -> Response:
    """Return the active policy with every default filled in. ``version`` is null while the built-in one is in force."""
    found = reading(dependencies_of(request).units, principal, read.READ, read.active)
    headers = {} if found.version is None else {"ETag": etag_of(found.version)}
    return JSONResponse(_policy_view(found), headers=headers)


@router.post("/policy/check", openapi_extra=described_by(Candidate))
def check_policy(
    request: Request, principal: Reader, candidate: Annotated[Candidate, json_body(Candidate)]
) -> documents.PolicyCheck:
    """Return whether a document is a policy, field by field, and what it would change. Nothing is stored.

    ``obstacles`` prevent a valid one from becoming active now.
    """
    try:
        policy = validated(Policy, candidate.document)
    except ValidationFailedError as refused:
        return {"is_valid": False, "errors": [_fault_view(fault) for fault in refused.faults]}
    units = dependencies_of(request).units
    found = reading(units, principal, read.READ, lambda unit: read.compare(unit, policy))
    return _comparison_view(found)


@router.post(
    "/policies", status_code=201, response_model=documents.ActivatedPolicy, openapi_extra=described_by(NewPolicy)
)
def activate_policy(
    principal: Annotated[Principal, requires(Permission.POLICY_WRITE)],
    wanted: Annotated[NewPolicy, json_body(NewPolicy)],
    change: Changing,
    if_match: Annotated[str | None, Header()] = None,
) -> JSONResponse:
    """Activate a new version, from the commit on; every decision names the version that it was made under."""
    version = version_in(if_match, is_required=False)

    def render(made: Activated) -> Answer:
        body = {**_policy_view(made.view), "differences": [_difference_view(each) for each in made.differences]}
        number = made.view.version or 0
        return Answer(body, 201, etag_of(number), f"/v1/policies/{number}")

    return change.run(
        principal,
        policies.ACTIVATE,
        lambda unit: activate(
            unit,
            wanted.document,
            reason=wanted.reason,
            expected_version=version,
            despite_budget=wanted.despite_budget,
        ),
        render,
    )


@router.get("/policies")
def list_policies(
    request: Request,
    principal: Reader,
    within: Annotated[Within, Depends()],
    cursor: Cursor = None,
    limit: Limit = 50,
) -> documents.PolicyPage:
    """Return versions without documents, the newest first unless ``order`` says otherwise."""
    span = within.span
    return PageRequest(request, principal, read.SORTS[within.order], cursor, limit).answer(
        read.READ,
        {"path": "policies"},
        lambda unit, part: read.list_versions(unit, part, span=span),
        version_view,
        newer=within.conditions,
    )


@router.get("/policies/{version}")
def show_policy_version(version: str, request: Request, principal: Reader) -> documents.PolicyDetail:
    """Return one version with its document."""
    number, units = require_version(version), dependencies_of(request).units
    return _policy_view(reading(units, principal, read.READ, lambda unit: read.get(unit, number)))


def _policy_view(found: PolicyView) -> documents.PolicyDetail:
    """Return the policy.

    ``is_usable`` is false for a stored document that this release rejects: the defaults hold then.
    """
    row, policy = found.row, found.policy
    stored = {} if row is None else row.document
    return {
        "version": found.version,
        "is_active": row is None or row.is_active,
        "created_at": None if row is None else time_of(row.created_at),
        "created_by": None if row is None else row.created_by,
        "reason": None if row is None else row.reason,
        "is_usable": policy is not None,
        "document": stored if policy is None else policy.model_dump(mode="json"),
    }


def _comparison_view(found: Comparison) -> documents.PolicyCheck:
    return {
        "is_valid": True,
        "errors": [],
        "active_version": found.active_version,
        "obstacles": [_fault_view(fault) for fault in found.obstacles],
        "differences": [_difference_view(each) for each in found.differences],
    }


def _difference_view(difference: Difference) -> documents.Difference:
    return {"path": difference.path, "from": difference.before, "to": difference.after}


def _fault_view(fault: FieldFault) -> documents.PolicyFault:
    return {"pointer": fault.pointer, "code": fault.code, "detail": fault.detail}
