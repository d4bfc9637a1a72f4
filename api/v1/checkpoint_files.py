"""Routes of a checkpoint's files: addresses by which they are read from the folder that hosts share with the store."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse
from pydantic import Field, StringConstraints

from api.bodies import described_by, json_body
from api.dependencies import AppDependencies, dependencies_of
from api.permissions import requires
from api.reading import require_id
from api.refusals import refusing_also
from control.core.unit_of_work import retrying
from control.jobs import checkpoint_reads
from control.jobs.checkpoint_reads import ReadableCheckpoint
from muster import documents
from muster.domain.errors import ConflictError, UnavailableError
from muster.domain.ids import CheckpointId, JobId
from muster.domain.principals import Permission, Principal
from muster.domain.strict import StrictModel
from muster.store.objects import ObjectStore, SignedRequest
from muster.wire.content import MAX_DOWNLOADS

router = APIRouter(prefix="/jobs/{job_id}/checkpoints/{checkpoint_id}", tags=["jobs"])
Reader = Annotated[Principal, requires(Permission.LOG_READ)]
Unverified = Annotated[
    bool, Query(description="also one that was not read back, did not verify, or may have wrong results")
]
FileName = Annotated[str, StringConstraints(pattern=r"^(MANIFEST\.json|rank-[0-9]{5,9}\.pt)$")]
_OPERATORS_WORDS = (
    "Copy it from a machine that has this folder, into a folder of the same two last names, and try it by `muster ckpt "
    "verify`. `muster ckpt get` works once the operator names the folder in store_checkpoint_dirs "
    "(docs/operator/content-store.md)."
)


class CheckpointFileNames(StrictModel):
    """Files of the checkpoint to read: its manifest, or any file that the manifest names."""

    files: Annotated[list[FileName], Field(min_length=1, max_length=MAX_DOWNLOADS)]
    unverified: bool = False


@router.get(
    "/archive",
    status_code=307,
    response_class=RedirectResponse,
    dependencies=[refusing_also(ConflictError, UnavailableError)],
)
def read_checkpoint_archive(
    job_id: str,
    checkpoint_id: str,
    request: Request,
    principal: Reader,
    *,
    unverified: Unverified = False,
) -> RedirectResponse:
    """Redirect to the checkpoint as a tar, with ranges, for an hour. The read is audited."""
    found = JobId(require_id("job", job_id)), CheckpointId(require_id("checkpoint", checkpoint_id))
    url = signed_archive(dependencies_of(request), principal, *found, has_doubtful=unverified)
    return RedirectResponse(url, status_code=307, headers={"Cache-Control": "no-store"})


def signed_archive(
    dependencies: AppDependencies,
    principal: Principal,
    job_id: JobId,
    checkpoint_id: CheckpointId,
    *,
    has_doubtful: bool,
) -> str:
    """Return the address of a checkpoint as one archive, signed for an hour, and audit the read.

    Raises:
        NotFoundError: the visible job has no such checkpoint.
        ConflictError: it is not to be read, or the store's process does not reach it.
    """
    found = _readable(dependencies, principal, job_id, checkpoint_id, has_doubtful=has_doubtful, what="archive")
    return _signed(dependencies, found, None).url


@router.post(
    "/downloads",
    openapi_extra=described_by(CheckpointFileNames),
    dependencies=[refusing_also(ConflictError, UnavailableError)],
)
def sign_checkpoint_downloads(
    job_id: str,
    checkpoint_id: str,
    request: Request,
    principal: Reader,
    wanted: Annotated[CheckpointFileNames, json_body(CheckpointFileNames)],
) -> documents.CheckpointDownloads:
    """Sign downloads of files of a checkpoint, each with ranges. The read is audited."""
    dependencies = dependencies_of(request)
    found = _readable(
        dependencies,
        principal,
        JobId(require_id("job", job_id)),
        CheckpointId(require_id("checkpoint", checkpoint_id)),
        has_doubtful=wanted.unverified,
        what=wanted.files[0] if len(wanted.files) == 1 else f"{len(wanted.files)} files",
    )
    signed = [_signed(dependencies, found, name) for name in wanted.files]
    return {
        "generation": found.generation,
        "sha256": found.manifest,
        "files": [{"url": one.url, "headers": dict(one.headers)} for one in signed],
    }


def _readable(
    dependencies: AppDependencies,
    principal: Principal,
    job_id: JobId,
    checkpoint_id: CheckpointId,
    *,
    has_doubtful: bool,
    what: str,
) -> ReadableCheckpoint:
    """Return what may be read. A refusal leaves no audit entry. Raises ConflictError."""
    store = dependencies.required_store()

    def once() -> ReadableCheckpoint:
        with dependencies.units.begin(principal, checkpoint_reads.READ) as unit:
            found = checkpoint_reads.read_checkpoint(unit, job_id, checkpoint_id, has_doubtful=has_doubtful, what=what)
            _require_reached(store, found)
            return found

    return retrying(once)


def _require_reached(store: ObjectStore, found: ReadableCheckpoint) -> None:
    """Raise ConflictError, which says where the checkpoint is and what to do, unless the store's process reaches it."""
    if found.store is not None:
        advice = (
            "`muster ckpt get` reads it with your own credentials (AWS_…). Or copy it: `aws s3 cp --recursive "
            f"{found.store} DIR/{found.generation}`, then `muster ckpt verify DIR`."
        )
        raise ConflictError(f"the checkpoint is {found.store}, of which Muster has no key", suggestion=advice)
    if not store.reads_checkpoints_of(found.folder):
        where = found.place if found.folder is not None else f"{found.place} in the hosts' own folder of checkpoints"
        words = f"the checkpoint is {where}, which the control plane does not read"
        raise ConflictError(words, suggestion=_OPERATORS_WORDS)


def _signed(dependencies: AppDependencies, found: ReadableCheckpoint, name: str | None) -> SignedRequest:
    store, now = dependencies.required_store(), dependencies.units.clock()
    saved_as = name or f"{found.generation.replace('/', '-')}.tar"
    return store.checkpoint(found.tenant_id, found.manifest, found.place, name, now, saved_as=saved_as)
