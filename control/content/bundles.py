"""Bundles: the work folders that tenants store for their jobs.

A bundle is begun by its manifest, uploaded object by object straight to the store, and complete when the client has
confirmed each. Until then no job may use it. Everything that is already there, from any bundle of the tenant, is
not uploaded again; so an upload that was broken off continues where it was.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from operator import attrgetter
from types import MappingProxyType
from typing import Final

from sqlalchemy import Select, func, select

from control.content import rows
from control.content.folders import begin_folder, confirm_folder, upload_of
from control.content.manifests import Reading
from control.content.types import ContentLimits, FolderFound, StoredFolderRecord, Upload
from control.content.uses import remove_ended_uses, require_unused
from control.core.paging import ALWAYS, Part, Sort, SortKey, Span, number_in
from control.core.records import record_of
from control.core.unit_of_work import UnitOfWork, declare_action
from control.core.visibility import visible_rows
from control.fleet.package_hosts import package_hosts
from control.policy.policies import active_policy
from muster.db.models import ContentUse, FolderJob, Job, StoredFolder, Tenant
from muster.db.models.jobs import IS_OPEN
from muster.domain.errors import NotFoundError, ValidationFailedError
from muster.domain.ids import TenantId
from muster.domain.principals import Permission
from muster.domain.residency import StorePlace
from muster.domain.stored_content import FolderKind, FolderState

BEGIN: Final = declare_action("bundle.begin")
CONFIRM: Final = declare_action("bundle.confirm")
DELETE: Final = declare_action("bundle.delete")
READ: Final = declare_action("bundle.read")


def begin(
    unit: UnitOfWork, manifest: Reading, *, tenant_id: TenantId | None = None, store: StorePlace | None = None
) -> Upload:
    """Begin the upload of a bundle to ``store``, or continue it. Return what the store lacks.

    Raises:
        ValidationFailedError: it is larger than a bundle may be, no such tenant, or its residency rule excludes the
            store.
        TenantLimitError: the tenant would store more than it may.
    """
    unit.principal.require(Permission.JOB_SUBMIT)
    owner = _owner_of(unit, tenant_id)
    begun = begin_folder(unit, owner, FolderKind.BUNDLE, manifest, active_policy(unit.session).content, store)
    if begun.is_news:
        _report(unit, begun.folder, "bundle.begin", "bundle.begun")
    return upload_of(unit, begun.folder)


def confirm(
    unit: UnitOfWork,
    digest: str,
    uploaded: Sequence[str],
    *,
    tenant_id: TenantId | None = None,
    store: StorePlace | None = None,
) -> Upload:
    """Note what was uploaded; the bundle is complete with the last of it. Return the next uploads.

    Raises:
        NotFoundError: no such bundle, or another tenant's.
        ValidationFailedError: the tenant's residency rule excludes ``store``.
    """
    unit.principal.require(Permission.JOB_SUBMIT)
    owner = _owner_of(unit, tenant_id)
    found = confirm_folder(unit, owner, FolderKind.BUNDLE, digest, uploaded, store)
    if found is None:
        raise NotFoundError
    if found.is_news:
        _report(unit, found.folder, "bundle.complete", "bundle.completed")
    return upload_of(unit, found.folder)


def delete(unit: UnitOfWork, digest: str, *, tenant_id: TenantId | None = None) -> StoredFolderRecord:
    """Delete a bundle. Its chunks leave the store a day later, unless another bundle has them.

    Raises:
        NotFoundError: no such bundle, or another tenant's.
        ConflictError: a job that has not ended uses it.
    """
    unit.principal.require(Permission.JOB_SUBMIT)
    owner = _owner_of(unit, tenant_id)
    use = rows.lock_use(unit, owner)
    folder = rows.lock_bundle(unit, owner, digest, is_to_go=True)
    if folder is None:
        raise NotFoundError
    require_unused(unit, folder)
    remove_ended_uses(unit, folder)
    found = record_of(folder, StoredFolderRecord)
    _report(unit, folder, "bundle.delete", "bundle.deleted")
    rows.remove_folder(unit, use, folder)
    return found


class BundleOrder(StrEnum):
    """The order of a list of bundles: by the time of their upload's begin, or the largest first."""

    NEWEST = "newest"
    OLDEST = "oldest"
    LARGEST = "largest"


_ID: Final = SortKey(StoredFolder.id, attrgetter("folder.id"), number_in)
_BEGUN: Final = SortKey(StoredFolder.created_at, attrgetter("folder.created_at"), datetime.fromisoformat)
_BYTES: Final = SortKey(StoredFolder.num_bytes, attrgetter("folder.num_bytes"), number_in)
BUNDLE_SORTS: Final = MappingProxyType(
    {
        BundleOrder.NEWEST: Sort((_BEGUN, _ID), is_descending=True),
        BundleOrder.OLDEST: Sort((_BEGUN, _ID)),
        BundleOrder.LARGEST: Sort((_BYTES, _ID), is_descending=True),
    }
)


@dataclass(frozen=True, slots=True)
class BundleFilter:
    """Conditions on a bundle; None sets no condition. ``span``: in which its upload began."""

    tenant_id: TenantId | None = None
    state: FolderState | None = None
    span: Span = ALWAYS


def list_bundles(unit: UnitOfWork, wanted: BundleFilter, part: Part) -> list[FolderFound]:
    """Return the bundles that the reader may see, the newest first unless ``part`` says otherwise."""
    unit.principal.require(Permission.JOB_READ)
    query = _with_jobs().where(
        visible_rows(unit.principal, StoredFolder.tenant_id), *wanted.span.conditions(StoredFolder.created_at)
    )
    if wanted.tenant_id is not None:
        query = query.where(StoredFolder.tenant_id == wanted.tenant_id)
    if wanted.state is not None:
        query = query.where(StoredFolder.state == wanted.state)
    return [_found(*row) for row in unit.session.execute(part.of(query, BUNDLE_SORTS[BundleOrder.NEWEST]))]


def show(unit: UnitOfWork, digest: str, *, tenant_id: TenantId | None = None) -> FolderFound:
    """Return one bundle. Raises NotFoundError for a missing one and for another tenant's alike.

    An operator names the tenant where several have a bundle of this digest.
    """
    unit.principal.require(Permission.JOB_READ)
    query = _with_jobs().where(visible_rows(unit.principal, StoredFolder.tenant_id), StoredFolder.digest == digest)
    if tenant_id is not None:
        query = query.where(StoredFolder.tenant_id == tenant_id)
    found = unit.session.execute(query.order_by(StoredFolder.id).limit(1)).one_or_none()
    if found is None:
        raise NotFoundError
    return _found(*found)


def limits_of(unit: UnitOfWork, *, tenant_id: TenantId | None = None) -> ContentLimits:
    """Return the limits of the tenant's content, and how much it stores.

    Raises ValidationFailedError: no such tenant.
    """
    unit.principal.require(Permission.JOB_SUBMIT)
    owner = _owner_of(unit, tenant_id)
    policy = active_policy(unit.session)
    use = unit.session.get(ContentUse, owner)
    return ContentLimits(
        bundle_bytes=policy.content.bundle_bytes,
        bundle_files=policy.content.bundle_files,
        manifest_bytes=policy.limits.manifest_bytes,
        tenant_bytes=policy.content.tenant_bytes,
        used_bytes=0 if use is None else use.num_bytes,
        hosts=package_hosts(unit.session),
    )


def _owner_of(unit: UnitOfWork, requested: TenantId | None) -> TenantId:
    own = unit.principal.tenant_id
    if own is not None:
        if requested not in {None, own}:
            raise ValidationFailedError.at("tenant_id", "foreign_tenant", "a tenant has bundles of its own only")
        return own
    if requested is None:
        raise ValidationFailedError.at("tenant_id", "missing", "an operator names the tenant whose bundle it is")
    if unit.session.get(Tenant, requested) is None:
        raise ValidationFailedError.at("tenant_id", "unknown_tenant", "there is no such tenant")
    return requested


def _with_jobs() -> Select[StoredFolder, int]:
    live = (
        select(func.count())
        .select_from(FolderJob)
        .join(Job, Job.id == FolderJob.job_id)
        .where(FolderJob.folder_id == StoredFolder.id, IS_OPEN)
        .correlate(StoredFolder)
        .scalar_subquery()
    )
    return select(StoredFolder, live).where(StoredFolder.kind == FolderKind.BUNDLE)


def _found(folder: StoredFolder, num_live_jobs: int) -> FolderFound:
    return FolderFound(record_of(folder, StoredFolderRecord), num_live_jobs)


def _report(unit: UnitOfWork, folder: StoredFolder, action: str, kind: str) -> None:
    detail = {"num_bytes": folder.num_bytes, "num_files": folder.num_files}
    unit.audit(action, "bundle", folder.digest, tenant_id=folder.tenant_id, detail=detail)
    unit.emit(kind, "bundle", folder.digest, tenant_id=folder.tenant_id, payload=detail)
