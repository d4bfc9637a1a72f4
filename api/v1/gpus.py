"""One GPU: what is known of it and why, and what an operator does about it."""

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from api.bodies import described_by, json_body
from api.changes import Answer, Change, Changing, etag_of, version_in
from api.cursors import make_cursor, read_cursor
from api.dependencies import dependencies_of
from api.gpu_views import evidence_view, gpu_detail_view
from api.permissions import requires
from api.reading import Limit, page_of, reading, require_gpu_uuid, require_id
from muster import documents
from muster.domain.ids import EvidenceId, GpuUuid
from muster.domain.principals import Permission, Principal
from muster.domain.repairs import RepairAction
from muster.domain.strict import Name, StrictModel, Text
from muster.services import fleet, gpu_details
from muster.services.gpu_details import GpuDetail
from muster.services.judgement import interventions
from muster.services.unit_of_work import UnitOfWork

router = APIRouter(tags=["fleet"])
Reason = Annotated[Text, Field(min_length=1, max_length=500, pattern=r"\S")]
Reader = Annotated[Principal, requires(Permission.GPU_READ)]
Operator = Annotated[Principal, requires(Permission.GPU_WRITE)]
IfMatch = Annotated[str | None, Header()]


class Asked(StrictModel):
    """Why; whoever looks at the GPU later finds it."""

    reason: Reason


class NewRepair(Asked):
    """``fault_group``: what it is for; by the GPU's evidence where none is named. Attempts count by it."""

    action: Annotated[RepairAction, Field(strict=False)]
    fault_group: Name | None = None


@router.get("/gpus/{uuid}", response_model=documents.GpuDetail)
def show_gpu(uuid: str, request: Request, principal: Reader) -> Response:
    """One GPU: score, evidence, what would bring it back, cordons, who holds it, repairs, moves."""
    found_uuid = require_gpu_uuid(uuid)
    found = reading(
        dependencies_of(request).units, principal, fleet.READ, lambda unit: gpu_details.detail_of(unit, found_uuid)
    )
    return JSONResponse(gpu_detail_view(found), headers={"ETag": etag_of(found.gpu.version)})


@router.get("/gpus/{uuid}/evidence")
def list_evidence(
    uuid: str,
    request: Request,
    principal: Reader,
    cursor: Annotated[str | None, Query(max_length=1024)] = None,
    limit: Limit = 50,
) -> documents.EvidencePage:
    """All that was ever found about it, the newest first; ``points`` is what it takes off the score now."""
    dependencies = dependencies_of(request)
    found_uuid = require_gpu_uuid(uuid)
    filters = {"path": "evidence", "gpu_uuid": uuid}
    before = None
    if cursor is not None:
        (text,) = read_cursor(dependencies.secret_key, filters, cursor, length=1)
        before = EvidenceId(text)
    found = reading(
        dependencies.units,
        principal,
        fleet.READ,
        lambda unit: gpu_details.evidence_about_gpu(unit, found_uuid, limit=limit + 1, before=before),
    )
    return page_of(
        found, limit, evidence_view, lambda last: make_cursor(dependencies.secret_key, filters, [last.row.id])
    )


@router.post(
    "/gpus/{uuid}/evidence/{evidence_id}/dismiss",
    response_model=documents.ChangedGpu,
    openapi_extra=described_by(Asked),
)
def dismiss_evidence(
    uuid: str,
    evidence_id: str,
    principal: Operator,
    asked: Annotated[Asked, json_body(Asked)],
    change: Changing,
    if_match: IfMatch = None,
) -> JSONResponse:
    """Take evidence out of the judgement; a quarantine that stood on it alone ends. Twice is the same as once."""
    found_id = EvidenceId(require_id("evidence", evidence_id))

    def work(unit: UnitOfWork, gpu: GpuUuid, version: int | None) -> None:
        interventions.dismiss(unit, gpu, found_id, reason=asked.reason, expected_version=version)

    return _changed(change, principal, interventions.DISMISS, uuid, if_match, work)


@router.post("/gpus/{uuid}/retire", response_model=documents.ChangedGpu, openapi_extra=described_by(Asked))
def retire_gpu(
    uuid: str,
    principal: Operator,
    asked: Annotated[Asked, json_body(Asked)],
    change: Changing,
    if_match: IfMatch = None,
) -> JSONResponse:
    """Take it out of service, from any standing; what runs on it is evacuated."""

    def work(unit: UnitOfWork, gpu: GpuUuid, version: int | None) -> None:
        interventions.retire(unit, gpu, reason=asked.reason, expected_version=version)

    return _changed(change, principal, interventions.RETIRE, uuid, if_match, work)


@router.post("/gpus/{uuid}/reinstate", response_model=documents.ChangedGpu, openapi_extra=described_by(Asked))
def reinstate_gpu(
    uuid: str,
    principal: Operator,
    asked: Annotated[Asked, json_body(Asked)],
    change: Changing,
    if_match: IfMatch = None,
) -> JSONResponse:
    """A retired GPU back to UNPROVEN: its burn-in follows."""

    def work(unit: UnitOfWork, gpu: GpuUuid, version: int | None) -> None:
        interventions.reinstate(unit, gpu, reason=asked.reason, expected_version=version)

    return _changed(change, principal, interventions.REINSTATE, uuid, if_match, work)


@router.post("/gpus/{uuid}/repair", response_model=documents.ChangedGpu, openapi_extra=described_by(NewRepair))
def start_repair(
    uuid: str,
    principal: Operator,
    asked: Annotated[NewRepair, json_body(NewRepair)],
    change: Changing,
    if_match: IfMatch = None,
) -> JSONResponse:
    """Begin a repair of a quarantined GPU that no job holds any more."""

    def work(unit: UnitOfWork, gpu: GpuUuid, version: int | None) -> None:
        interventions.start_repair(
            unit,
            gpu,
            action=asked.action,
            reason=asked.reason,
            fault_group=asked.fault_group,
            expected_version=version,
        )

    return _changed(change, principal, interventions.START_REPAIR, uuid, if_match, work)


@router.post("/gpus/{uuid}/repair/finish", response_model=documents.ChangedGpu, openapi_extra=described_by(Asked))
def finish_repair(
    uuid: str,
    principal: Operator,
    asked: Annotated[Asked, json_body(Asked)],
    change: Changing,
    if_match: IfMatch = None,
) -> JSONResponse:
    """The repair is done: UNPROVEN, its burn-in follows."""

    def work(unit: UnitOfWork, gpu: GpuUuid, version: int | None) -> None:
        interventions.finish_repair(unit, gpu, reason=asked.reason, expected_version=version)

    return _changed(change, principal, interventions.END_REPAIR, uuid, if_match, work)


@router.post("/gpus/{uuid}/repair/fail", response_model=documents.ChangedGpu, openapi_extra=described_by(Asked))
def fail_repair(
    uuid: str,
    principal: Operator,
    asked: Annotated[Asked, json_body(Asked)],
    change: Changing,
    if_match: IfMatch = None,
) -> JSONResponse:
    """The repair failed: back to QUARANTINED."""

    def work(unit: UnitOfWork, gpu: GpuUuid, version: int | None) -> None:
        interventions.fail_repair(unit, gpu, reason=asked.reason, expected_version=version)

    return _changed(change, principal, interventions.END_REPAIR, uuid, if_match, work)


def _changed(
    change: Change,
    principal: Principal,
    action: str,
    uuid: str,
    if_match: str | None,
    work: Callable[[UnitOfWork, GpuUuid, int | None], None],
) -> JSONResponse:
    """Does it, and answers with the GPU as it then is."""
    found_uuid, version = require_gpu_uuid(uuid), version_in(if_match, is_required=False)

    def do(unit: UnitOfWork) -> GpuDetail:
        work(unit, found_uuid, version)
        return gpu_details.detail_of(unit, found_uuid)

    return change.run(
        principal, action, do, lambda found: Answer(gpu_detail_view(found), etag=etag_of(found.gpu.version))
    )
