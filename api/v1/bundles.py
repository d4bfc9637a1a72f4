"""Routes of bundles: the work folders that jobs start in. Their chunks go straight to the content store."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse
from pydantic import Field, StringConstraints

from api.bodies import described_by, json_body
from api.changes import Answer, Changing
from api.dependencies import dependencies_of
from api.lists import Cursor, Moment, PageRequest, order_of, span_of
from api.manifest_bodies import SUBMITTER, described_as_manifest, manifest_body
from api.permissions import requires
from api.reading import PRINTABLE, Limit, PageOf, reading
from api.refusals import refusing_also
from api.views import time_of
from control.content import bundles
from control.content.manifests import Reading
from control.content.types import FolderFound, StoredFolderRecord, Upload, WantedObject
from control.core.unit_of_work import retrying
from muster import documents
from muster.domain.errors import ConflictError, NotFoundError, TenantLimitError, UnavailableError
from muster.domain.ids import TenantId
from muster.domain.job.bundle_spec import bundle_digest
from muster.domain.principals import Permission, Principal
from muster.domain.stored_content import FolderState
from muster.domain.strict import StrictModel
from muster.store.keys import object_key
from muster.store.objects import ObjectStore
from muster.wire.content import MAX_UPLOADS

router = APIRouter(tags=["bundles"])
_WITHOUT_STORE: Final = "Submit jobs whose program is on the hosts, without a bundle."

OfTenant = Annotated[
    str | None,
    Query(max_length=64, pattern=PRINTABLE, description="the tenant whose bundle it is; for operators"),
]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class Uploaded(StrictModel):
    """Digests of objects that the store has taken since the last request."""

    uploaded: Annotated[list[Digest], Field(max_length=MAX_UPLOADS)]


@router.get("/content")
def content_limits(
    request: Request, principal: Annotated[Principal, SUBMITTER], tenant_id: OfTenant = None
) -> documents.ContentLimits:
    """Return the limits of a tenant's content and how much it stores; a client checks its folder before it reads it."""
    dependencies = dependencies_of(request)
    owner = _tenant(tenant_id)
    found = reading(dependencies.units, principal, bundles.READ, lambda unit: bundles.limits_of(unit, tenant_id=owner))
    return {
        "has_store": dependencies.store is not None,
        "bundle_bytes": found.bundle_bytes,
        "bundle_files": found.bundle_files,
        "manifest_bytes": found.manifest_bytes,
        "tenant_bytes": found.tenant_bytes,
        "used_bytes": found.used_bytes,
        "num_package_hosts": found.hosts.num_hosts,
        "num_source_hosts": found.hosts.num_for_source,
    }


@router.post(
    "/bundles",
    response_model=documents.BegunBundle,
    openapi_extra=described_as_manifest(),
    dependencies=[refusing_also(TenantLimitError)],
)
def begin_bundle(
    request: Request,
    principal: Annotated[Principal, SUBMITTER],
    manifest: Annotated[Reading, manifest_body],
    change: Changing,
    tenant_id: OfTenant = None,
) -> JSONResponse:
    """Begin the upload of a bundle by its manifest, or continue it; the answer has what the store lacks.

    The same manifest again is the same bundle, so no Idempotency-Key is kept for it.
    """
    dependencies = dependencies_of(request)
    store = dependencies.required_store(_WITHOUT_STORE)
    owner = _tenant(tenant_id)

    def render(found: Upload) -> Answer:
        # A dry run stores nothing, so there is nothing to upload yet.
        shown = [] if change.is_dry_run else _signed(store, found, dependencies.units.clock())
        return Answer(upload_view(found, shown))

    return change.without_key().run(
        principal,
        bundles.BEGIN,
        lambda unit: bundles.begin(unit, manifest, tenant_id=owner, store=store.place),
        render,
    )


@router.post(
    "/bundles/{bundle}/uploads",
    openapi_extra=described_by(Uploaded),
    dependencies=[refusing_also(ConflictError, UnavailableError)],
)
def confirm_uploads(
    request: Request,
    principal: Annotated[Principal, SUBMITTER],
    done: Annotated[Uploaded, json_body(Uploaded)],
    bundle: str,
    tenant_id: OfTenant = None,
) -> documents.BundleUpload:
    """Confirm what the store has taken, and get the next uploads. With the last one the bundle is complete."""
    dependencies = dependencies_of(request)
    store, owner = dependencies.required_store(_WITHOUT_STORE), _tenant(tenant_id)
    named = _require_digest(bundle)

    def once() -> Upload:
        with dependencies.units.begin(principal, bundles.CONFIRM, quiet=True) as unit:
            return bundles.confirm(unit, named, done.uploaded, tenant_id=owner, store=store.place)

    found = retrying(once)
    return upload_view(found, _signed(store, found, dependencies.units.clock()))


@router.get("/bundles", response_model=documents.BundlePage)
def list_bundles(
    request: Request,
    principal: Annotated[Principal, requires(Permission.JOB_READ)],
    tenant_id: OfTenant = None,
    state: Annotated[FolderState | None, Query()] = None,
    since: Moment = None,
    until: Moment = None,
    order: Annotated[bundles.BundleOrder, Query()] = bundles.BundleOrder.NEWEST,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> PageOf[documents.BundleFound]:
    """Return bundles, the newest first unless ``order`` says otherwise.

    ``since`` and ``until`` are about the time at which their upload began.
    """
    wanted = bundles.BundleFilter(_tenant(tenant_id), state, span_of(since, until))
    return PageRequest(request, principal, bundles.BUNDLE_SORTS[order], cursor, limit).answer(
        bundles.READ,
        {"tenant_id": tenant_id, "who": principal.tenant_id},
        lambda unit, part: bundles.list_bundles(unit, wanted, part),
        found_view,
        newer={
            "state": state,
            "since": since,
            "until": until,
            "order": order_of(order, bundles.BundleOrder.NEWEST),
        },
    )


@router.get("/bundles/{bundle}")
def show_bundle(
    request: Request,
    principal: Annotated[Principal, requires(Permission.JOB_READ)],
    bundle: str,
    tenant_id: OfTenant = None,
) -> documents.BundleFound:
    """Return one bundle."""
    named, owner = _require_digest(bundle), _tenant(tenant_id)
    units = dependencies_of(request).units
    return found_view(reading(units, principal, bundles.READ, lambda unit: bundles.show(unit, named, tenant_id=owner)))


@router.delete("/bundles/{bundle}", response_model=documents.DeletedBundle)
def delete_bundle(
    principal: Annotated[Principal, SUBMITTER], bundle: str, change: Changing, tenant_id: OfTenant = None
) -> JSONResponse:
    """Delete a bundle that no job uses which has not ended. What it alone has leaves the store a day later."""
    named, owner = _require_digest(bundle), _tenant(tenant_id)
    return change.run(
        principal,
        bundles.DELETE,
        lambda unit: bundles.delete(unit, named, tenant_id=owner),
        lambda gone: Answer(bundle_view(gone)),
    )


def bundle_view(folder: StoredFolderRecord) -> documents.Bundle:
    return {
        "digest": folder.digest,
        "tenant_id": folder.tenant_id,
        "state": folder.state,
        "num_bytes": folder.num_bytes,
        "num_files": folder.num_files,
        "created_by": folder.created_by,
        "created_at": time_of(folder.created_at),
        "active_at": time_of(folder.active_at),
        "completed_at": time_of(folder.completed_at),
    }


def found_view(found: FolderFound) -> documents.BundleFound:
    return {**bundle_view(found.folder), "num_live_jobs": found.num_live_jobs}


def upload_view(found: Upload, uploads: Sequence[documents.ObjectUpload]) -> documents.BundleUpload:
    return {
        **bundle_view(found.folder),
        "uploads": list(uploads),
        "num_missing": found.num_missing,
        "missing_bytes": found.missing_bytes,
        "num_waiting": found.num_waiting,
    }


def _signed(store: ObjectStore, found: Upload, now: datetime) -> list[documents.ObjectUpload]:
    def signed(one: WantedObject) -> documents.ObjectUpload:
        key = object_key(found.folder.tenant_id, one.kind, one.digest)
        request = store.upload(key, one.num_bytes, one.digest, now)
        return {
            "kind": one.kind,
            "digest": one.digest,
            "num_bytes": one.num_bytes,
            "method": request.method,
            "url": request.url,
            "headers": dict(request.headers),
        }

    return [signed(one) for one in found.wanted]


def _require_digest(text: str) -> str:
    """Return the digest. Raises ``NotFoundError`` for a text that is none: the same answer as for a missing one."""
    try:
        return bundle_digest(text)
    except ValueError:
        raise NotFoundError from None


def _tenant(text: str | None) -> TenantId | None:
    return None if text is None else TenantId(text)
