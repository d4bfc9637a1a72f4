"""Routes of folders that hosts upload for jobs: the chunks go straight to the content store."""

from collections.abc import Callable
from typing import Annotated

import msgspec
from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from api.bodies import described_by_wire, wire_body
from api.dependencies import dependencies_of
from api.manifest_bodies import NODE, described_as_manifest, manifest_body_of_host
from api.refusals import refusing_also
from api.wire_answers import answered, taking
from control.content.manifests import Reading
from control.content.types import Upload
from control.core.unit_of_work import UnitOfWork, retrying
from control.hosts import folder_uploads
from muster.domain.errors import ConflictError, StaleFenceError, TenantLimitError, UpgradeRequiredError
from muster.domain.principals import Principal
from muster.domain.residency import StorePlace
from muster.wire.content import FolderUploadAnswer, FolderUploadsRequest, OutputsNote, OutputsNoteAnswer

router = APIRouter(prefix="/hosts/self/attempts/{attempt_id}", tags=["hosts"])
Node = Annotated[Principal, NODE]
Kind = Annotated[str, Path(description="what the host uploads: `outputs` or `environment`")]
Fence = Annotated[int, Query(ge=1, le=(1 << 63) - 1, description="the attempt's fence, or the preflight's number")]
ProtocolNumber = Annotated[int, Query(ge=1, le=1000, description="of the host protocol")]
_OF_AN_UPLOAD = (ConflictError, StaleFenceError, TenantLimitError, UpgradeRequiredError)


def _described() -> dict[str, object]:
    """Return OpenAPI's description of a manifest as body, and of the answer."""
    of_messages = described_by_wire(FolderUploadsRequest, FolderUploadAnswer)
    return {**of_messages, **described_as_manifest()}


@router.post(
    "/folders/{kind}/{folder}",
    response_model=None,
    openapi_extra=_described(),
    dependencies=[refusing_also(*_OF_AN_UPLOAD)],
)
async def begin_folder(
    attempt_id: str,
    kind: Kind,
    folder: str,
    request: Request,
    node: Node,
    manifest: Annotated[Reading, manifest_body_of_host],
    fence: Fence,
    protocol: ProtocolNumber,
) -> Response:
    """Begin the upload of a folder by its manifest, or continue it; the answer has what the store lacks.

    The kind `outputs` has the names `final`, and `step-N` for a checkpoint; the kind `environment` has the
    environment's key. With an upload that lacks nothing the host confirms an empty list: the folder is complete then.
    """
    return await _answered(
        request,
        node,
        folder_uploads.BEGIN,
        lambda unit, store: folder_uploads.begin(
            unit, attempt_id, kind, folder, fence=fence, protocol=protocol, manifest=manifest, store=store
        ),
    )


@taking(router, "/folders/{kind}/{folder}/uploads", FolderUploadsRequest, FolderUploadAnswer, *_OF_AN_UPLOAD)
async def confirm_folder(
    attempt_id: str,
    kind: Kind,
    folder: str,
    request: Request,
    node: Node,
    message: Annotated[FolderUploadsRequest, wire_body(FolderUploadsRequest)],
) -> Response:
    """Confirm what the store has taken, and get the next uploads. With the last one the folder is complete."""
    return await _answered(
        request,
        node,
        folder_uploads.CONFIRM,
        lambda unit, store: folder_uploads.confirm(unit, attempt_id, kind, folder, message, store=store),
    )


@taking(router, "/output-notes", OutputsNote, OutputsNoteAnswer, StaleFenceError)
async def note_outputs(
    attempt_id: str, request: Request, node: Node, message: Annotated[OutputsNote, wire_body(OutputsNote)]
) -> Response:
    """Note on the job's timeline what this host could not collect; the same note again has no effect."""
    return await answered(
        request, node, folder_uploads.NOTE, lambda unit: folder_uploads.note(unit, attempt_id, message), quiet=True
    )


async def _answered(
    request: Request, node: Principal, action: str, work: Callable[[UnitOfWork, StorePlace], Upload]
) -> Response:
    """Return the answer, from a thread of everybody: a manifest's rows take seconds, and heartbeats must not wait."""
    dependencies = dependencies_of(request)

    def body() -> bytes:
        # Before the change: without a store there is nothing to begin.
        store = dependencies.required_store()

        def once() -> Upload:
            with dependencies.units.begin(node, action, quiet=True) as unit:
                return work(unit, store.place)

        return msgspec.json.encode(folder_uploads.answer_of(retrying(once), store, dependencies.units.clock()))

    return Response(await run_in_threadpool(body), media_type="application/json")
