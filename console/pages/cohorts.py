"""Page of cohorts: the GPUs that may be mixed in one gang, and the GPUs that differ from most of their model."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Request
from starlette.responses import Response

from api.dependencies import dependencies_of
from api.reading import reading
from console.rendering import pages_of
from console.session import Viewer, sees
from control.core.unit_of_work import UnitOfWork
from control.fleet import cohort_views
from control.fleet.cohort_views import Cohort
from control.fleet.drift import DriftReport, drift_report
from health.compute_capability import dtypes_of
from muster.domain.principals import Permission

router = APIRouter()


@router.get("/cohorts")
def cohorts_page(request: Request, viewer: Annotated[Viewer, sees(Permission.GPU_READ)]) -> Response:
    """Show all on one page: a fleet has tens of cohorts, and differing GPUs come first."""

    def read(unit: UnitOfWork) -> tuple[Sequence[Cohort], DriftReport]:
        return cohort_views.list_cohorts(unit), drift_report(unit)

    found, drifted = reading(dependencies_of(request).units, viewer.principal, cohort_views.READ, read)
    return pages_of(request).page(
        request,
        "cohorts.html",
        viewer,
        place="fleet",
        cohorts=[(cohort, dtypes_of(cohort.attributes.get("compute_capability"))) for cohort in found],
        drifts=drifted.drifts,
        node_names=drifted.node_names,
    )
