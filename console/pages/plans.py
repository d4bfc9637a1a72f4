"""Before and while a job waits: what would become of one that nobody submitted, and the queue in its order."""

import json
import math
from collections.abc import Sequence
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from api.dependencies import dependencies_of
from api.reading import reading
from api.strict_json import read_model
from console import plan_words
from console.rendering import is_fragment, pages_of
from console.session import Viewer, sees
from muster.db.models import Tenant
from muster.domain.errors import MalformedRequestError, MusterError, ValidationFailedError
from muster.domain.ids import TenantId
from muster.domain.job_spec import JobSpec
from muster.domain.principals import Permission
from muster.services import job_plans, queue_views, tenants
from muster.services.job_lists import known_tiers
from muster.services.job_plans import JobPlan
from muster.services.unit_of_work import UnitOfWork

router = APIRouter()
A_PAGE: Final = 100
MAX_DEPTH: Final = 8
MINUTE_S: Final = 60
Count = Annotated[str, Query(max_length=6)]
Word = Annotated[str, Query(max_length=64, pattern=r"^[^\x00]*$")]
_COUNTS: Final = ("nodes", "gpus_per_node", "min_nodes", "max_nodes")


@router.get("/queue")
def queue_page(request: Request, viewer: Annotated[Viewer, sees(Permission.JOB_READ)]) -> Response:
    """In the order in which the scheduler tries them."""
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
        words=plan_words,
        shows_tenant=viewer.principal.sees_all_tenants,
    )


@router.get("/plan")
def plan_page(
    request: Request,
    viewer: Annotated[Viewer, sees(Permission.JOB_SUBMIT)],
    nodes: Count = "",
    gpus_per_node: Count = "",
    min_nodes: Count = "",
    max_nodes: Count = "",
    tier: Word = "",
    within: Word = "",
    wall_minutes: Annotated[str, Query(max_length=12)] = "",
    tenant: Word = "",
) -> Response:
    """A form; with a size in it also its answer. Nothing is stored."""
    asked = {"nodes": nodes, "gpus_per_node": gpus_per_node, "min_nodes": min_nodes, "max_nodes": max_nodes}
    asked |= {"tier": tier, "within": within, "wall_minutes": wall_minutes, "tenant": tenant}
    asked = {name: value.strip() for name, value in asked.items()}
    units, principal = dependencies_of(request).units, viewer.principal
    tiers, owners = reading(units, principal, queue_views.READ, _choices)
    found, fault = None, None
    if asked["nodes"] or asked["gpus_per_node"]:
        try:
            spec, owner = _spec(asked), TenantId(asked["tenant"]) if asked["tenant"] else None
            found = reading(units, principal, job_plans.PLAN, lambda unit: _planned(unit, spec, owner))
        except (ValidationFailedError, MalformedRequestError) as error:
            fault = error
    return pages_of(request).page(
        request,
        "plan.html",
        viewer,
        status=200 if fault is None else fault.status,
        place="jobs",
        asked=asked,
        tiers=tiers,
        tenants=owners,
        fault=fault,
        faults=_told(fault),
        plan=None if found is None else plan_words.shown(viewer, found, since=None),
        shows_hosts=principal.sees_all_tenants,
    )


def _choices(unit: UnitOfWork) -> tuple[Sequence[str], Sequence[Tenant]]:
    owners = tenants.list_tenants(unit) if unit.principal.sees_all_tenants else ()
    return known_tiers(unit), owners


def _planned(unit: UnitOfWork, spec: JobSpec, owner: TenantId | None) -> JobPlan:
    return job_plans.plan_job(unit, spec, tenant_id=owner)


def _spec(asked: dict[str, str]) -> JobSpec:
    """Raises ``ValidationFailedError``: a field is no number, or no job is like that."""
    shape = {name: _number(name, asked[name], int) for name in _COUNTS if asked[name]}
    question: dict[str, Any] = {"name": "plan", "program": {"launcher": "command", "argv": ["true"]}, "shape": shape}
    if asked["tier"]:
        question["tier"] = asked["tier"]
    if asked["within"]:
        question["topology"] = {"required": asked["within"]}
    if asked["wall_minutes"]:
        question["wall_time_s"] = _number("wall_minutes", asked["wall_minutes"], float) * MINUTE_S
    return read_model(json.dumps(question).encode(), JobSpec, max_depth=MAX_DEPTH)


def _number(name: str, text: str, kind: type[int] | type[float]) -> float:
    try:
        number = kind(text)
        if math.isfinite(number) and text.isascii() and "_" not in text:
            return number
    except ValueError:
        pass
    message = f"is a {'whole ' if kind is int else ''}number, such as 2"
    raise ValidationFailedError.at(f"/{name}", "not_a_number", message)


def _told(fault: MusterError | None) -> Sequence[str]:
    """Field by field, without the document's path."""
    if not isinstance(fault, ValidationFailedError):
        return ()
    told = [(each.pointer.rpartition("/")[2].replace("_", " "), each.detail) for each in fault.faults]
    return [f"{field}: {words}".replace("`", "") for field, words in told]
