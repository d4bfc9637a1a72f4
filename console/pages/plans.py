"""Pages before and while a job waits: the plan of a job that is not submitted, and the queue in its order."""

from collections.abc import Sequence
from typing import Annotated, Final, NamedTuple

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from api.dependencies import dependencies_of
from api.reading import reading, reading_plan
from api.v1.jobs import JobQuestion
from console import plan_form, plan_texts
from console.rendering import is_fragment, pages_of
from console.session import Viewer, sees
from control.core.unit_of_work import UnitOfWork
from control.jobs import job_plans, queue_views
from control.jobs.job_plans import JobPlan
from control.jobs.read import known_levels, known_tiers
from control.tenants.read import TenantRecord, list_tenants
from muster.domain.errors import ValidationFailedError
from muster.domain.ids import TenantId
from muster.domain.principals import Permission
from muster.domain.residency import StorePlace

router = APIRouter()
A_PAGE: Final = 100


@router.get("/queue")
def queue_page(request: Request, viewer: Annotated[Viewer, sees(Permission.JOB_READ)]) -> Response:
    """Show the queue in the order in which the scheduler tries the jobs."""
    found = reading(
        dependencies_of(request).units,
        viewer.principal,
        queue_views.READ,
        lambda unit: queue_views.queue_of(unit, limit=A_PAGE),
    )
    return pages_of(request).page(
        request,
        "parts/queue_table.html" if is_fragment(request) else "queue.html",
        viewer,
        place="jobs",
        found=found,
        words=plan_texts,
        shows_tenant=viewer.principal.sees_all_tenants,
    )


@router.get("/plan")
def plan_page(
    request: Request,
    viewer: Annotated[Viewer, sees(Permission.JOB_SUBMIT)],
    typed: Annotated[plan_form.PlanForm, Query()],
) -> Response:
    """Show a form; with a size in it, though empty, also its answer. Nothing is stored."""
    asked = {name: value.strip() for name, value in typed.model_dump().items()}
    units, principal = dependencies_of(request).units, viewer.principal
    store = dependencies_of(request).store_place
    choices = reading(units, principal, queue_views.READ, _choices)
    found, fault = None, None
    if typed.model_fields_set & plan_form.SIZE_FIELDS:
        try:
            question = plan_form.question_of(asked)
            found = reading_plan(units, principal, job_plans.PLAN, lambda unit: _planned(unit, question, store))
        except ValidationFailedError as error:
            fault = error
    faults = [] if fault is None else plan_form.faults_of(fault)
    return pages_of(request).page(
        request,
        "plan.html",
        viewer,
        status=200 if fault is None else fault.status,
        place="jobs",
        asked=asked,
        options=plan_form.options_of(asked),
        labels=plan_form.LABELS,
        choices=choices,
        faults=faults,
        faulty={each.field for each in faults},
        is_unfolded=any(asked[name] for name in plan_form.FOLDED),
        plan=None if found is None else plan_texts.shown(viewer, found, since=None),
        shows_hosts=principal.sees_all_tenants,
    )


class _Choices(NamedTuple):
    tiers: Sequence[str]
    levels: Sequence[str]
    tenants: Sequence[TenantRecord]


def _choices(unit: UnitOfWork) -> _Choices:
    owners = list_tenants(unit) if unit.principal.sees_all_tenants else ()
    return _Choices(known_tiers(unit), known_levels(unit), owners)


def _planned(unit: UnitOfWork, question: JobQuestion, store: StorePlace | None) -> JobPlan:
    owner = None if question.tenant_id is None else TenantId(question.tenant_id)
    return job_plans.plan_job(unit, question.spec, tenant_id=owner, store=store)
