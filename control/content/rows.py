"""Rows of stored content: statements over thousands of objects at once."""

from collections.abc import Sequence
from typing import Final

from sqlalchemy import Boolean, ColumnElement, TextClause, delete, func, literal_column, select, text, update

from control.content.types import WantedObject
from control.core.unit_of_work import UnitOfWork
from muster.db.models import ContentUse, FolderObject, StoredFolder, StoredObject
from muster.db.sessions import note_change
from muster.domain.errors import ValidationFailedError
from muster.domain.ids import TenantId
from muster.domain.stored_content import FolderKind, ObjectKind, ObjectState

_NAMED: Final = """
    WITH named AS (
        SELECT substring(CAST(:digests AS bytea) FROM CAST(32 * (n - 1) + 1 AS integer) FOR 32) AS digest, size
        FROM unnest(CAST(:sizes AS bigint[])) WITH ORDINALITY AS given (size, n)
    )
"""
"""The objects that a folder names. A parameter of a megabyte costs less than one for each object."""


def _of_named(statement: str) -> TextClause:
    return text(f"{_NAMED}{statement}")


_DIFFERING: Final = _of_named("""
    SELECT encode(named.digest, 'hex') AS digest, named.size, stored.num_bytes
    FROM named JOIN stored_objects AS stored
        ON stored.tenant_id = :tenant_id AND stored.kind = :kind AND stored.digest = named.digest
    WHERE stored.num_bytes <> named.size LIMIT 1
""")
_ADD: Final = _of_named(""", added AS (
        INSERT INTO stored_objects (tenant_id, kind, digest, num_bytes, state)
        SELECT :tenant_id, :kind, named.digest, named.size, 'wanted' FROM named
        WHERE NOT EXISTS (
            SELECT FROM stored_objects AS stored
            WHERE stored.tenant_id = :tenant_id AND stored.kind = :kind AND stored.digest = named.digest
        )
        RETURNING num_bytes
    )
    SELECT CAST(coalesce(sum(num_bytes), 0) AS bigint) FROM added
""")
_WAKE: Final = _of_named(""", woken AS (
        UPDATE stored_objects AS stored SET idle_at = NULL FROM named
        WHERE stored.tenant_id = :tenant_id AND stored.kind = :kind AND stored.digest = named.digest
            AND stored.idle_at IS NOT NULL
        RETURNING stored.num_bytes
    )
    SELECT CAST(coalesce(sum(num_bytes), 0) AS bigint) FROM woken
""")
_LINK: Final = _of_named("""
    INSERT INTO folder_objects (folder_id, object_id)
    SELECT :folder_id, stored.id FROM named JOIN stored_objects AS stored
        ON stored.tenant_id = :tenant_id AND stored.kind = :kind AND stored.digest = named.digest
""")
_UNLINK: Final = text("""
    WITH left_over AS (
        UPDATE stored_objects AS stored SET idle_at = :now
        WHERE stored.id = ANY(CAST(:ids AS bigint[]))
            AND NOT EXISTS (
                SELECT FROM folder_objects AS other
                WHERE other.object_id = stored.id AND other.folder_id <> :folder_id
            )
        RETURNING num_bytes
    )
    SELECT CAST(coalesce(sum(num_bytes), 0) AS bigint) FROM left_over
""")
_NAME_FILES: Final = text("""
    INSERT INTO folder_files (folder_id, number, path, num_bytes)
    SELECT :folder_id, number, path, size
    FROM unnest(CAST(:paths AS text[]), CAST(:sizes AS bigint[])) WITH ORDINALITY AS given (path, size, number)
""")
_MAKE_USE: Final = text(
    "INSERT INTO content_use (tenant_id, num_bytes) SELECT id, 0 FROM tenants WHERE id = :tenant_id FOR KEY SHARE"
    " ON CONFLICT DO NOTHING"
)
MOST_UNLINKED: Final = 20_000
"""Objects of one statement. All of a large bundle take longer than a statement may, and the keeper would never end."""
_LARGEST_PAGE_BYTES: Final = 256 << 20
"""Bytes of the uploads that are offered at once: over a line of 1 MB/s they take a twelfth of an address's validity."""


def lock_use(unit: UnitOfWork, tenant_id: TenantId) -> ContentUse:
    """Return the tenant's row, locked until the commit: others that change its content wait.

    Raises ValidationFailedError: the tenant was deleted meanwhile.
    """
    row = unit.session.get(ContentUse, tenant_id, with_for_update={"key_share": True}, populate_existing=True)
    if row is not None:
        return row
    # As plain text: a row that only carries the lock is no change that leaves a trace.
    unit.session.execute(_MAKE_USE, {"tenant_id": tenant_id})
    row = unit.session.get(ContentUse, tenant_id, with_for_update={"key_share": True}, populate_existing=True)
    if row is None:
        raise ValidationFailedError.at("tenant_id", "unknown_tenant", "there is no such tenant")
    return row


def lock_bundle(unit: UnitOfWork, tenant_id: TenantId, digest: str, *, is_to_go: bool = False) -> StoredFolder | None:
    """Return a tenant's bundle, locked: of a deletion and a submission with it at once, the second sees the first."""
    return lock_folder(unit, tenant_id, FolderKind.BUNDLE, digest, is_to_go=is_to_go)


def lock_folder(
    unit: UnitOfWork, tenant_id: TenantId, kind: FolderKind, digest: str, *, is_to_go: bool = False
) -> StoredFolder | None:
    """Return a tenant's folder of this kind, locked as a bundle is."""
    query = select(StoredFolder).where(
        StoredFolder.tenant_id == tenant_id, StoredFolder.kind == kind, StoredFolder.digest == digest
    )
    query = query.with_for_update(key_share=not is_to_go).execution_options(populate_existing=True)
    return unit.session.scalars(query).one_or_none()


def name_objects(unit: UnitOfWork, folder: StoredFolder, kind: ObjectKind, digests: bytes, sizes: Sequence[int]) -> int:
    """Store that ``folder`` consists of these objects; the tenant's row is locked. Return how many bytes are new.

    ``digests``: 32 bytes of each. Raises ValidationFailedError: an object has another size than before.
    """
    given = {
        "tenant_id": folder.tenant_id,
        "kind": kind.value,
        "folder_id": folder.id,
        "digests": digests,
        "sizes": list(sizes),
    }
    note_change(unit.session)
    found = unit.session.execute(_DIFFERING, given).one_or_none()
    if found is not None:
        known = (
            f"the chunk {found.digest[:12]}… has {found.size:,} bytes here, and {found.num_bytes:,} in another folder"
        )
        raise ValidationFailedError.at("/", "size_differs", f"{known}: make the manifest again")
    num_bytes = unit.session.execute(_ADD, given).scalar_one() + unit.session.execute(_WAKE, given).scalar_one()
    unit.session.execute(_LINK, given)
    return int(num_bytes)


def name_files(unit: UnitOfWork, folder: StoredFolder, paths: Sequence[str], sizes: Sequence[int]) -> None:
    """Store which files the folder has, in the order of their paths."""
    note_change(unit.session)
    unit.session.execute(_NAME_FILES, {"folder_id": folder.id, "paths": list(paths), "sizes": list(sizes)})


def remove_folder(unit: UnitOfWork, use: ContentUse, folder: StoredFolder) -> None:
    """Remove a folder that no job row uses; objects that no other names are idle from now on."""
    note_change(unit.session)
    named = select(FolderObject.object_id).where(FolderObject.folder_id == folder.id)
    ids = unit.session.scalars(named.order_by(FolderObject.object_id)).all()
    for start in range(0, len(ids), MOST_UNLINKED):
        given = {"folder_id": folder.id, "now": unit.now, "ids": list(ids[start : start + MOST_UNLINKED])}
        use.num_bytes -= unit.session.execute(_UNLINK, given).scalar_one()
    unit.session.flush()
    unit.session.execute(delete(StoredFolder).where(StoredFolder.id == folder.id))


def mark_present(unit: UnitOfWork, folder: StoredFolder, digests: Sequence[bytes]) -> None:
    """Store that these objects of the folder were uploaded. Other objects, and doomed ones, stay as they are."""
    named = select(FolderObject.object_id).where(FolderObject.folder_id == folder.id)
    is_meant = (
        (StoredObject.tenant_id == folder.tenant_id)
        & (StoredObject.state == ObjectState.WANTED)
        & StoredObject.digest.in_(digests)
        & StoredObject.id.in_(named)
    )
    changed = {"state": ObjectState.PRESENT, "num_stored": StoredObject.num_stored + 1}
    statement = update(StoredObject).where(is_meant).values(changed)
    unit.session.execute(statement.execution_options(synchronize_session=False))


def missing(unit: UnitOfWork, folder: StoredFolder) -> tuple[int, int, int]:
    """Return how many objects of the folder the store lacks, their bytes, and how many are just being deleted."""
    num_doomed = func.count().filter(StoredObject.state == ObjectState.DOOMED)
    counts = select(func.count(), func.coalesce(func.sum(StoredObject.num_bytes), 0), num_doomed)
    found = unit.session.execute(counts.where(*_absent_of(folder))).one()
    return int(found[0]), int(found[1]), int(found[2])


def wanted(unit: UnitOfWork, folder: StoredFolder, most: int) -> list[WantedObject]:
    """Return the next objects to upload: at most ``most``, and at least one if any is left."""
    columns = select(StoredObject.kind, StoredObject.digest, StoredObject.num_bytes)
    query = columns.where(*_absent_of(folder), StoredObject.state == ObjectState.WANTED).order_by(StoredObject.id)
    page: list[WantedObject] = []
    left = _LARGEST_PAGE_BYTES
    for kind, digest, num_bytes in unit.session.execute(query.limit(most)):
        if page and num_bytes > left:
            break
        left -= num_bytes
        page.append(WantedObject(kind, digest.hex(), num_bytes))
    return page


def has_chunks(unit: UnitOfWork, folder_id: int, digests: Sequence[str]) -> bool:
    """Return whether the folder has all these chunks."""
    named = {bytes.fromhex(digest) for digest in digests}
    query = (
        select(func.count())
        .select_from(FolderObject)
        .join(StoredObject, StoredObject.id == FolderObject.object_id)
        .where(
            FolderObject.folder_id == folder_id,
            StoredObject.kind == ObjectKind.CHUNK,
            StoredObject.digest.in_(named),
        )
    )
    return not named or unit.session.scalar(query) == len(named)


def _absent_of(folder: StoredFolder) -> tuple[ColumnElement[bool], ...]:
    named = select(FolderObject.object_id).where(FolderObject.folder_id == folder.id)
    is_absent: ColumnElement[bool] = literal_column("stored_objects.state <> 'present'", Boolean())  # as its index
    return StoredObject.tenant_id == folder.tenant_id, is_absent, StoredObject.id.in_(named)
