"""Routes of rate cards: what an hour of a GPU costs, by model and tier, and since when."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse
from pydantic import Field

from api.bodies import described_by, json_body
from api.changes import Answer, Changing
from api.dependencies import dependencies_of
from api.lists import Cursor, PageRequest, Within
from api.permissions import requires
from api.reading import Limit, reading, require_version
from api.views import time_of, version_view
from control.core.versions import VersionRecord
from control.ledger import rates
from muster.documents import money as documents
from muster.domain.principals import Permission, Principal
from muster.domain.rates import RateCards
from muster.domain.strict import StrictModel, Text

router = APIRouter(tags=["money"])


class NewRates(StrictModel):
    """Rate cards to set, whole: a card that is left out ends.

    ``corrects_past``: also where prices or credits of hours change that have begun; without it, that is refused.
    """

    document: RateCards
    reason: Annotated[Text, Field(min_length=1, max_length=500, pattern=r"\S")]
    corrects_past: bool = False


@router.get("/rates")
def show_rates(request: Request, principal: Annotated[Principal, requires(Permission.TENANT_READ)]) -> documents.Rates:
    """Return the rate cards in force."""
    found = reading(dependencies_of(request).units, principal, rates.READ, rates.show)
    return _view(found, principal)


@router.post("/rates", status_code=201, response_model=documents.ChangedRates, openapi_extra=described_by(NewRates))
def set_rates(
    principal: Annotated[Principal, requires(Permission.TENANT_WRITE)],
    wanted: Annotated[NewRates, json_body(NewRates)],
    change: Changing,
) -> JSONResponse:
    """Set the rate cards. A card begins with a whole hour of UTC; hours before it keep their price."""
    return change.run(
        principal,
        rates.SET,
        lambda unit: rates.set_rates(unit, wanted.document, reason=wanted.reason, corrects_past=wanted.corrects_past),
        lambda found: Answer({**_view(found, principal)}, 201, location=f"/v1/rate-versions/{found.version}"),
    )


@router.get("/rate-versions")
def list_rate_versions(
    request: Request,
    principal: Annotated[Principal, requires(Permission.POLICY_READ)],
    within: Annotated[Within, Depends()],
    cursor: Cursor = None,
    limit: Limit = 50,
) -> documents.RateVersionPage:
    """Return versions without documents, the newest first unless ``order`` says otherwise."""
    span = within.span
    return PageRequest(request, principal, rates.SORTS[within.order], cursor, limit).answer(
        rates.READ,
        {"path": "rate-versions"},
        lambda unit, part: rates.list_versions(unit, part, span=span),
        _version_view,
        newer=within.conditions,
    )


@router.get("/rate-versions/{version}")
def show_rate_version(
    version: str, request: Request, principal: Annotated[Principal, requires(Permission.POLICY_READ)]
) -> documents.Rates:
    """Return one version with its document."""
    number, units = require_version(version), dependencies_of(request).units
    return _view(reading(units, principal, rates.READ, lambda unit: rates.get(unit, number)), principal)


def _version_view(row: VersionRecord) -> documents.RateVersion:
    return {**version_view(row)}


def _view(row: VersionRecord | None, principal: Principal) -> documents.Rates:
    """Return the rate cards. Author and reason are for principals that see every tenant."""
    is_shown = principal.sees_all_tenants
    return {
        "version": None if row is None else row.version,
        "is_active": row is None or row.is_active,
        "created_at": None if row is None else time_of(row.created_at),
        "created_by": row.created_by if row is not None and is_shown else None,
        "reason": row.reason if row is not None and is_shown else None,
        "document": None if row is None else row.document,
    }
