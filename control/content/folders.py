"""Uploads of folders of any kind: begun by a manifest, uploaded object by object, complete with the last confirmation.

Everything that is already there, from any folder of the tenant, is not uploaded again; so an upload that was broken off
continues where it was. Callers check permissions, and report what happened.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from control.content import rows
from control.content.manifests import Reading
from control.content.residency import require_permitted
from control.content.types import StoredFolderRecord, Upload
from control.core.records import record_of
from control.core.unit_of_work import UnitOfWork
from muster.db.models import StoredFolder
from muster.domain.errors import FieldFault, TenantLimitError, ValidationFailedError
from muster.domain.ids import TenantId
from muster.domain.policy.content import ContentPolicy
from muster.domain.residency import StorePlace
from muster.domain.stored_content import FolderKind, FolderState, ObjectKind
from muster.sizes import size_in_words
from muster.wire.content import MAX_UPLOADS

_TRY_AGAIN_S: Final = 60
_LIMITS_OF_KINDS: Final = {
    FolderKind.BUNDLE: ("bundle_bytes", "bundle_files"),
    FolderKind.OUTPUTS: ("outputs_bytes", "outputs_files"),
    FolderKind.ENVIRONMENT: ("environment_bytes", "environment_files"),
}
"""Kind → the fields of the content policy that bound its bytes and files."""


@dataclass(frozen=True, slots=True)
class Progress:
    """A step of a folder's upload. ``is_news``: the folder is new, or has just become complete."""

    folder: StoredFolder
    is_news: bool


def begin_folder(
    unit: UnitOfWork,
    owner: TenantId,
    kind: FolderKind,
    manifest: Reading,
    policy: ContentPolicy,
    store: StorePlace | None,
) -> Progress:
    """Begin the upload of a folder to ``store``, or continue it; the tenant's row is locked from now on.

    Raises:
        ValidationFailedError: it is larger than a folder of its kind may be, or the tenant's residency rule excludes
            the store.
        TenantLimitError: the tenant would store more than it may.
    """
    _require_within(manifest, kind, policy)
    require_permitted(unit.session, owner, store)
    use = rows.lock_use(unit, owner)
    found = rows.lock_folder(unit, owner, kind, manifest.digest)
    if found is not None:
        return Progress(found, is_news=False)
    folder = _new_folder(unit, owner, kind, manifest)
    unit.session.add(folder)
    unit.session.flush()
    own = bytes.fromhex(manifest.digest)
    added = rows.name_objects(unit, folder, ObjectKind.CHUNK, manifest.chunks, manifest.sizes)
    added += rows.name_objects(unit, folder, ObjectKind.MANIFEST, own, [manifest.manifest_bytes])
    _require_room(use.num_bytes, added, kind, policy)
    if kind is FolderKind.OUTPUTS:
        rows.name_files(unit, folder, manifest.paths, manifest.path_sizes)
    use.num_bytes += added
    return Progress(folder, is_news=True)


def _new_folder(unit: UnitOfWork, owner: TenantId, kind: FolderKind, manifest: Reading) -> StoredFolder:
    return StoredFolder(
        tenant_id=owner,
        kind=kind,
        digest=manifest.digest,
        num_bytes=manifest.num_bytes,
        num_files=manifest.num_files,
        state=FolderState.UPLOADING,
        created_by=unit.principal.name,
        created_at=unit.now,
        active_at=unit.now,
    )


def confirm_folder(
    unit: UnitOfWork,
    owner: TenantId,
    kind: FolderKind,
    digest: str,
    uploaded: Sequence[str],
    store: StorePlace | None,
) -> Progress | None:
    """Note what was uploaded; the folder is complete with the last of it. Return None: there is no such folder.

    Raises ValidationFailedError: the tenant's residency rule excludes ``store`` by now.
    """
    require_permitted(unit.session, owner, store)
    rows.lock_use(unit, owner)
    folder = rows.lock_folder(unit, owner, kind, digest)
    if folder is None:
        return None
    if uploaded:
        rows.mark_present(unit, folder, [bytes.fromhex(each) for each in uploaded])
        folder.active_at = unit.now
    if folder.state is FolderState.COMPLETE or upload_of(unit, folder).num_missing:
        return Progress(folder, is_news=False)
    folder.state, folder.completed_at, folder.active_at = FolderState.COMPLETE, unit.now, unit.now
    return Progress(folder, is_news=True)


def upload_of(unit: UnitOfWork, folder: StoredFolder) -> Upload:
    """Return how far the folder's upload is, with the next objects."""
    unit.session.flush()
    found = record_of(folder, StoredFolderRecord)
    if folder.state is FolderState.COMPLETE:
        return Upload(found, (), 0, 0, 0)
    num_missing, missing_bytes, num_waiting = rows.missing(unit, folder)
    return Upload(found, rows.wanted(unit, folder, MAX_UPLOADS), num_missing, missing_bytes, num_waiting)


def _require_within(manifest: Reading, kind: FolderKind, policy: ContentPolicy) -> None:
    for_bytes, for_files = _LIMITS_OF_KINDS[kind]
    most_bytes, most_files = getattr(policy, for_bytes), getattr(policy, for_files)
    if manifest.num_bytes > most_bytes:
        sizes = f"{size_in_words(manifest.num_bytes)}, and {size_in_words(most_bytes)} are accepted"
        raise ValidationFailedError.at("/", "too_large", f"the folder has {sizes} (content.{for_bytes})")
    if manifest.num_files > most_files:
        counts = f"{manifest.num_files:,} files, and {most_files:,} are accepted"
        raise ValidationFailedError.at("/", "too_many_files", f"the folder has {counts} (content.{for_files})")


def _require_room(used: int, added: int, kind: FolderKind, policy: ContentPolicy) -> None:
    """Raise TenantLimitError unless the tenant may store ``added`` bytes more."""
    most = policy.tenant_bytes
    if used + added <= most:
        return
    name = "folder of outputs" if kind is FolderKind.OUTPUTS else kind
    found = (
        f"the {name} adds {size_in_words(added)} to the {size_in_words(used)} that the tenant stores, and"
        f" {size_in_words(most)} are allowed in all"
    )
    raise TenantLimitError(
        f"{found} (content.tenant_bytes)",
        suggestion="Delete bundles that you do not need with `muster bundle delete`: `muster bundle list` shows them. "
        "An operator may raise content.tenant_bytes in the policy.",
        faults=(FieldFault("", "tenant_bytes", found),),
        retry_after_s=_TRY_AGAIN_S,
        limit="content.tenant_bytes",
    )
