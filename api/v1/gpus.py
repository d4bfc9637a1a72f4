"""Routes of one GPU: its state with the reasons, and an operator's actions on it."""

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from api.authorized_query import AuthorizedQuery, answer, authorize_query
from api.bodies import described_by, json_body
from api.changes import etag_of
from api.gpu_changes import ChangingGpu
from api.gpu_views import evidence_view, gpu_detail_view, gpu_health_view
from api.lists import Cursor, PageRequest, Within
from api.permissions import requires
from api.reading import Limit, gpu_uuid_in, require_gpu_uuid, require_id
from control.fleet import inventory
from control.fleet.read import GPU
from control.health import gpu_details, interventions
from control.health.gpu_details import EvidenceFilter
from muster import documents
from muster.domain.evidence.repairs import RepairAction, RepairBy
from muster.domain.ids import EvidenceId
from muster.domain.principals import Permission, Principal
from muster.domain.states import EvidenceState
from muster.domain.strict import Name, StrictModel, Text

router = APIRouter(tags=["fleet"])
changes = APIRouter(prefix="/gpus/{uuid}")
"""Changes of one GPU by a person: ``ChangingGpu`` has the caller, the GPU and its version."""
Reason = Annotated[Text, Field(min_length=1, max_length=500, pattern=r"\S")]
Reader = Annotated[Principal, requires(Permission.GPU_READ)]


class ReasonedChange(StrictModel):
    """The reason of a change, which is shown with the GPU later."""

    reason: Reason


class NewRepair(ReasonedChange):
    """A repair to start."""

    action: Annotated[RepairAction, Field(strict=False)] | None = None
    fault_group: Name | None = None
    by: Annotated[RepairBy, Field(strict=False)] = RepairBy.PERSON


Why = Annotated[ReasonedChange, json_body(ReasonedChange)]


@router.get("/gpus/{uuid}", response_model=documents.GpuDetail)
def show_gpu(uuid: str, authorized_query: Annotated[AuthorizedQuery, authorize_query(Permission.GPU_READ)]) -> Response:
    """Return one GPU: score, evidence, admission, conditions of its return, cordons, holder, repairs, moves."""
    answered = authorized_query.ask(GPU, gpu_details.query_of(gpu_uuid_in(uuid)))
    found = gpu_details.detail_from(answered.found, answered.now)
    return answer(gpu_detail_view(found), etag_of(found.gpu.version))


@router.get("/gpus/{uuid}/health", response_model=documents.GpuHealth)
def show_gpu_health(
    uuid: str, authorized_query: Annotated[AuthorizedQuery, authorize_query(Permission.GPU_READ)]
) -> Response:
    """Return why it has its standing: score with the points of each evidence, admission to tiers, due remedy, moves.

    For a tier that does not admit it, the answer has the reasons and the conditions of its return.
    """
    answered = authorized_query.ask(GPU, gpu_details.query_of(gpu_uuid_in(uuid)))
    found = gpu_details.detail_from(answered.found, answered.now)
    return answer(gpu_health_view(found))


@router.get("/gpus/{uuid}/evidence")
def list_evidence(
    uuid: str,
    request: Request,
    principal: Reader,
    within: Annotated[Within, Depends()],
    state: Annotated[list[EvidenceState] | None, Query(max_length=10)] = None,
    detector: Annotated[Name | None, Query()] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> documents.EvidencePage:
    """Return evidence ever found about it, the newest first unless ``order`` says otherwise.

    ``points``: how much it takes off the score now. ``since`` and ``until`` are about the time when it was last seen.
    """
    found_uuid, states = require_gpu_uuid(uuid), sorted(state or [])
    wanted = EvidenceFilter(states, detector, within.span)
    return PageRequest(request, principal, gpu_details.EVIDENCE_SORTS[within.order], cursor, limit).answer(
        inventory.READ,
        {"path": "evidence", "gpu_uuid": uuid},
        lambda unit, part: gpu_details.evidence_about_gpu(unit, found_uuid, wanted, part),
        evidence_view,
        newer={"states": states or None, "detector": detector, **within.conditions},
    )


@changes.post(
    "/evidence/{evidence_id}/dismiss", response_model=documents.ChangedGpu, openapi_extra=described_by(ReasonedChange)
)
def dismiss_evidence(evidence_id: str, gpu: ChangingGpu, requested: Why) -> JSONResponse:
    """Take evidence out of the judgement; a quarantine that stood on it alone ends. Twice is the same as once."""
    found_id = EvidenceId(require_id("evidence", evidence_id))
    return gpu.run(interventions.DISMISS, partial(interventions.dismiss, evidence_id=found_id, reason=requested.reason))


@changes.post("/retire", response_model=documents.ChangedGpu, openapi_extra=described_by(ReasonedChange))
def retire_gpu(gpu: ChangingGpu, requested: Why) -> JSONResponse:
    """Take it out of service, from any standing; its running attempt is evacuated."""
    return gpu.run(interventions.RETIRE, partial(interventions.retire, reason=requested.reason))


@changes.post("/reinstate", response_model=documents.ChangedGpu, openapi_extra=described_by(ReasonedChange))
def reinstate_gpu(gpu: ChangingGpu, requested: Why) -> JSONResponse:
    """Return a retired GPU to UNPROVEN: its burn-in follows."""
    return gpu.run(interventions.REINSTATE, partial(interventions.reinstate, reason=requested.reason))


@changes.post("/repair", response_model=documents.ChangedGpu, openapi_extra=described_by(NewRepair))
def start_repair(gpu: ChangingGpu, requested: Annotated[NewRepair, json_body(NewRepair)]) -> JSONResponse:
    """Begin a repair of a GPU that is quarantined, by its standing or by a person, and that no job holds any more."""
    begin = partial(
        interventions.start_repair,
        action=requested.action,
        reason=requested.reason,
        fault_group=requested.fault_group,
        by=requested.by,
    )
    return gpu.run(interventions.START_REPAIR, begin)


@changes.post("/repair/finish", response_model=documents.ChangedGpu, openapi_extra=described_by(ReasonedChange))
def finish_repair(gpu: ChangingGpu, requested: Why) -> JSONResponse:
    """End a repair that is done: the GPU is UNPROVEN, and its burn-in follows."""
    return gpu.run(interventions.END_REPAIR, partial(interventions.finish_repair, reason=requested.reason))


@changes.post("/repair/fail", response_model=documents.ChangedGpu, openapi_extra=described_by(ReasonedChange))
def fail_repair(gpu: ChangingGpu, requested: Why) -> JSONResponse:
    """End a repair that failed: back to QUARANTINED."""
    return gpu.run(interventions.END_REPAIR, partial(interventions.fail_repair, reason=requested.reason))


router.include_router(changes)
