"""Routes of a job's outputs: what was collected, its files, and addresses by which they are read from the store."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse
from pydantic import Field, StringConstraints

from api.bodies import described_by, json_body
from api.dependencies import AppDependencies, dependencies_of
from api.lists import Cursor, PageRequest
from api.permissions import requires
from api.reading import Limit, PageOf, require_id
from api.refusals import refusing_also
from api.views import time_of
from control.core.unit_of_work import retrying
from control.jobs import output_hosts, outputs
from control.jobs.output_hosts import HostOutputs
from control.jobs.outputs import FileFound, OutputsFilter, OutputsFound, Readable
from muster import documents
from muster.domain.errors import ConflictError, NotFoundError, UnavailableError
from muster.domain.ids import JobId
from muster.domain.principals import Permission, Principal
from muster.domain.strict import StrictModel
from muster.store.keys import chunk_key, manifest_key
from muster.store.objects import SignedRequest
from muster.wire.content import MAX_DOWNLOADS

router = APIRouter(prefix="/jobs/{job_id}", tags=["jobs"])
Lister = Annotated[Principal, requires(Permission.JOB_READ)]
Reader = Annotated[Principal, requires(Permission.LOG_READ)]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
AttemptNumber = Annotated[int | None, Query(ge=1, lt=1 << 31)]
Step = Annotated[
    str | None,
    Query(pattern=r"^(final|0|[1-9][0-9]{0,15})$"),
]
NodeRank = Annotated[int | None, Query(ge=0, lt=1 << 31)]
_NO_GATEWAY = "this control plane has no address that joins the chunks of a file (MUSTER_STORE_GATEWAY_URL)"


class ChunkNames(StrictModel):
    """Digests of the chunks to read; none for the manifest alone."""

    chunks: Annotated[list[Digest], Field(max_length=MAX_DOWNLOADS)]


@router.get("/outputs", response_model=documents.JobOutputsPage)
def list_outputs(
    job_id: str,
    request: Request,
    principal: Lister,
    attempt: AttemptNumber = None,
    step: Step = None,
    node_rank: NodeRank = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> PageOf[documents.JobOutputs]:
    """Return what hosts collected of a job, the newest first."""
    found_id, wanted = JobId(require_id("job", job_id)), OutputsFilter(attempt, step, node_rank)
    return PageRequest(request, principal, outputs.NEWEST, cursor, limit).answer(
        outputs.READ,
        {"outputs": found_id, "attempt": attempt, "step": step, "node_rank": node_rank},
        lambda unit, part: outputs.outputs_of(unit, found_id, wanted, part),
        outputs_view,
    )


@router.get("/output-hosts", response_model=documents.HostOutputsPage)
def list_output_hosts(
    job_id: str,
    request: Request,
    principal: Lister,
    attempt: Annotated[int | None, Query(ge=1, lt=1 << 31, description="its number; by default the newest")] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> PageOf[documents.HostOutputs]:
    """Return the hosts of one attempt, by rank: which outputs of its end were uploaded, and which are missing."""
    found_id = JobId(require_id("job", job_id))
    return PageRequest(request, principal, output_hosts.BY_RANK, cursor, limit).answer(
        outputs.READ,
        {"output_hosts": found_id, "attempt": attempt},
        lambda unit, part: output_hosts.outputs_of_hosts(unit, found_id, attempt, part),
        host_view,
    )


@router.get("/files", response_model=documents.JobFilePage)
def list_files(
    job_id: str,
    request: Request,
    principal: Lister,
    prefix: Annotated[str, Query(max_length=4096)] = "",
    attempt: AttemptNumber = None,
    step: Step = None,
    node_rank: NodeRank = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> PageOf[documents.JobFile]:
    """Return files of a job's outputs: of each collection, the oldest first, by path."""
    found_id, wanted = JobId(require_id("job", job_id)), OutputsFilter(attempt, step, node_rank)
    storable = _storable(prefix)
    return PageRequest(request, principal, outputs.BY_PATH, cursor, limit).answer(
        outputs.READ,
        {"files": found_id, "prefix": prefix, "attempt": attempt, "step": step, "node_rank": node_rank},
        lambda unit, part: outputs.files_of(unit, found_id, wanted, part, prefix=storable),
        file_view,
    )


@router.get(
    "/files/{path:path}",
    status_code=307,
    response_class=RedirectResponse,
    dependencies=[refusing_also(ConflictError, UnavailableError)],
)
def read_file(
    job_id: str,
    path: str,
    request: Request,
    principal: Reader,
    attempt: AttemptNumber = None,
    step: Step = None,
    node_rank: NodeRank = None,
) -> RedirectResponse:
    """Redirect to the file in the content store, with ranges, for an hour. The read is audited.

    Of several files of this path: of the newest attempt, of its end before that of its checkpoints, of the first host.
    """
    found_id, wanted = JobId(require_id("job", job_id)), OutputsFilter(attempt, step, node_rank)
    url = signed_file(dependencies_of(request), principal, found_id, path, wanted)
    return RedirectResponse(url, status_code=307, headers={"Cache-Control": "no-store"})


def signed_file(
    dependencies: AppDependencies, principal: Principal, job_id: JobId, path: str, wanted: OutputsFilter
) -> str:
    """Return the address of a file in the content store, signed for an hour, and audit the read.

    Raises:
        NotFoundError: the visible job has no such file.
        ConflictError: there is no store, or none that joins the chunks of a file.
    """
    store = dependencies.required_store()
    if not store.has_gateway:
        raise ConflictError(_NO_GATEWAY, suggestion="`muster job get` reads files without it.")

    def once() -> Readable:
        with dependencies.units.begin(principal, outputs.READ) as unit:
            return outputs.read_file(unit, job_id, _storable(path), wanted)

    found = retrying(once)
    return store.file(found.tenant_id, found.digest, path, dependencies.units.clock()).url


@router.post(
    "/outputs/{outputs_id}/downloads",
    openapi_extra=described_by(ChunkNames),
    dependencies=[refusing_also(ConflictError, UnavailableError)],
)
def sign_output_downloads(
    job_id: str,
    outputs_id: int,
    request: Request,
    principal: Reader,
    wanted: Annotated[ChunkNames, json_body(ChunkNames)],
) -> documents.OutputDownloads:
    """Sign downloads of the manifest and of chunks of one collection. The read is audited."""
    dependencies = dependencies_of(request)
    found_id, store = JobId(require_id("job", job_id)), dependencies.required_store()
    if not 0 < outputs_id < 1 << 63:
        raise NotFoundError

    def once() -> Readable:
        with dependencies.units.begin(principal, outputs.READ) as unit:
            return outputs.read_chunks(unit, found_id, outputs_id, wanted.chunks)

    found, now = retrying(once), dependencies.units.clock()
    return {
        "manifest": _download(store.download(manifest_key(found.tenant_id, found.digest), now)),
        "chunks": [_download(store.download(chunk_key(found.tenant_id, one), now)) for one in wanted.chunks],
    }


def outputs_view(found: OutputsFound) -> documents.JobOutputs:
    return {
        "id": found.id,
        "attempt": found.attempt,
        "attempt_id": found.attempt_id,
        "node_rank": found.node_rank,
        "step": found.step,
        "state": found.folder.state,
        "digest": found.folder.digest,
        "num_files": found.folder.num_files,
        "num_bytes": found.folder.num_bytes,
        "created_at": time_of(found.created_at),
        "completed_at": time_of(found.folder.completed_at),
        "checkpoint": None
        if found.checkpoint is None
        else {
            "id": found.checkpoint.id,
            "generation": found.checkpoint.generation,
            "status": found.checkpoint.status,
            "sha256": found.checkpoint.sha256,
        },
    }


def host_view(found: HostOutputs) -> documents.HostOutputs:
    return {
        "attempt": found.attempt,
        "attempt_id": found.attempt_id,
        "node_rank": found.node_rank,
        "node_id": found.node_id,
        "node_name": found.node_name,
        "state": found.state,
        "is_missing": found.is_missing,
        "why": found.why,
        "num_files": found.num_files,
        "num_bytes": found.num_bytes,
    }


def file_view(found: FileFound) -> documents.JobFile:
    return {
        "path": found.path,
        "num_bytes": found.num_bytes,
        "outputs": found.output,
        "attempt": found.attempt,
        "node_rank": found.node_rank,
        "step": found.step,
    }


def _download(request: SignedRequest) -> documents.SignedDownload:
    return {"url": request.url, "headers": dict(request.headers)}


def _storable(path: str) -> str:
    """Return the path. Raises NotFoundError: no path of a manifest has such a character."""
    if not path.isprintable():
        raise NotFoundError
    return path
