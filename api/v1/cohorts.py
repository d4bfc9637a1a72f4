"""Cohorts: GPUs that may be mixed in one gang."""

from typing import Annotated

from fastapi import APIRouter, Request

from api.dependencies import dependencies_of
from api.permissions import requires
from api.reading import reading
from muster.db.repositories.cohorts import Spread
from muster.documents import cohorts as documents
from muster.domain.errors import NotFoundError
from muster.domain.principals import Permission, Principal
from muster.services import cohort_views
from muster.services.cohort_views import Cohort

router = APIRouter(tags=["fleet"])
Reader = Annotated[Principal, requires(Permission.GPU_READ)]


@router.get("/cohorts")
def list_cohorts(request: Request, principal: Reader) -> documents.CohortPage:
    """By key, with what is equal of their GPUs and where these stand."""
    found = reading(dependencies_of(request).units, principal, cohort_views.READ, cohort_views.list_cohorts)
    return {"items": [_cohort_view(cohort) for cohort in found], "next_cursor": None}


@router.get("/cohorts/{key}")
def show_cohort(key: str, request: Request, principal: Reader) -> documents.CohortDetail:
    """One by its whole key, percent-encoded: with the least, median and greatest of its GPUs' newest burn-ins."""
    if "\x00" in key:
        raise NotFoundError
    units = dependencies_of(request).units
    found = reading(units, principal, cohort_views.READ, lambda unit: cohort_views.detail_of(unit, key))
    return {
        **_cohort_view(found.cohort),
        "tolerance": found.tolerance,
        "measures": [spread_view(spread) for spread in found.spreads],
    }


def _cohort_view(cohort: Cohort) -> documents.Cohort:
    return {
        "key": cohort.key,
        "attributes": dict(cohort.attributes),
        "num_gpus": cohort.num_gpus,
        "num_nodes": cohort.num_nodes,
        "standings": dict(sorted(cohort.standings.items())),
    }


def spread_view(spread: Spread) -> documents.Spread:
    return {
        "measure": spread.measure,
        "num_gpus": spread.num_gpus,
        "min": spread.least,
        "median": spread.median,
        "max": spread.greatest,
    }
