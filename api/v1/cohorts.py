"""Routes of cohorts: GPUs that may be mixed in one gang."""

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Request

from api.dependencies import dependencies_of
from api.permissions import requires
from api.reading import reading
from control.fleet import cohort_views
from control.fleet.cohort_spreads import Spread
from control.fleet.cohort_views import Cohort
from control.fleet.drift import drift_report
from health.cohort.drift import Drift, Other
from health.compute_capability import dtypes_of
from muster.documents import cohorts as documents
from muster.domain.errors import NotFoundError
from muster.domain.ids import NodeId
from muster.domain.principals import Permission, Principal

router = APIRouter(tags=["fleet"])
Reader = Annotated[Principal, requires(Permission.GPU_READ)]


@router.get("/cohorts")
def list_cohorts(request: Request, principal: Reader) -> documents.CohortPage:
    """Return cohorts in order of their keys, with the attributes that their GPUs share and the GPUs' standings."""
    found = reading(dependencies_of(request).units, principal, cohort_views.READ, cohort_views.list_cohorts)
    return {"items": [_cohort_view(cohort) for cohort in found], "next_cursor": None}


@router.get("/cohorts/drift")
def show_drift(request: Request, principal: Reader) -> documents.DriftPage:
    """Return drift by model and attribute: the value of most GPUs, and the GPUs that differ.

    The drift that keeps the most GPUs out of a gang comes first. It is read from the agents' newest reports, at most
    three hours old for attributes that they report hourly.
    """
    found = reading(dependencies_of(request).units, principal, cohort_views.READ, drift_report)
    return {"items": [_drift_view(each, found.node_names) for each in found.drifts], "next_cursor": None}


@router.get("/cohorts/{key}")
def show_cohort(key: str, request: Request, principal: Reader) -> documents.CohortDetail:
    """Return one by its whole key, percent-encoded, with least, median and greatest of its GPUs' newest burn-ins."""
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
    dtypes = dtypes_of(cohort.attributes.get("compute_capability"))
    return {
        "key": cohort.key,
        "attributes": dict(cohort.attributes),
        "num_gpus": cohort.num_gpus,
        "num_nodes": cohort.num_nodes,
        "num_spare_nodes": cohort.num_spare_nodes,
        "standings": dict(sorted(cohort.standings.items())),
        "effective_standings": dict(sorted(cohort.effective_standings.items())),
        "num_cordoned_gpus": cohort.num_cordoned,
        "dtypes": None if dtypes is None else list(dtypes),
    }


def _drift_view(drift: Drift, node_names: Mapping[NodeId, str]) -> documents.Drift:
    return {
        "model": drift.model,
        "attribute": drift.attribute,
        "majority": drift.majority,
        "num_gpus": drift.num_gpus,
        "num_nodes": drift.num_nodes,
        "num_differing": drift.num_differing,
        "num_kept_out": drift.num_kept_out,
        "is_cohort_attribute": drift.is_cohort,
        "mixed_in": list(drift.mixed_in),
        "others": [_other_view(other, node_names) for other in drift.others],
    }


def _other_view(other: Other, node_names: Mapping[NodeId, str]) -> documents.DriftOther:
    return {
        "value": other.value,
        "num_gpus": other.num_gpus,
        "num_nodes": other.num_nodes,
        "nodes": [{"node_id": each, "name": node_names.get(each, each)} for each in other.nodes],
    }


def spread_view(spread: Spread) -> documents.Spread:
    return {
        "measure": spread.measure,
        "num_gpus": spread.num_gpus,
        "min": spread.least,
        "median": spread.median,
        "max": spread.greatest,
    }
