"""Objects that the store has lost, or has with other bytes: the next use of their folders stores them again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import ARRAY, BigInteger, ColumnElement, LargeBinary, any_, bindparam, select, update

from control.content import rows
from control.content.types import ObjectName, StoredAs
from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory
from muster.db.models import FolderObject, StoredFolder, StoredObject
from muster.domain.ids import TenantId
from muster.domain.stored_content import FolderKind, FolderState, ObjectKind, ObjectState


@dataclass(frozen=True, slots=True)
class Marked:
    """``folders``: all that have one of the objects. ``num_incomplete``: folders that are incomplete now."""

    num_objects: int
    folders: Sequence[StoredFolder]
    num_incomplete: int


def mark_lost(unit: UnitOfWork, tenant_id: TenantId, names: Sequence[ObjectName]) -> Marked:
    """Make bundles and environments incomplete that need lost objects, and the objects wanted.

    One that was stored again since its name was read stays as it is: that one was not found lost. One that no folder
    needs is wanted by the next one that does, or deleted with the others of its age.
    """
    rows.lock_use(unit, tenant_id)
    ids = _ids_of(unit, tenant_id, names)
    if not ids:
        return Marked(0, (), 0)
    # One parameter: a statement has 65,535 at most, and a store may have lost more than so many objects.
    are_lost = bindparam("ids", ids, ARRAY(BigInteger))
    naming = select(FolderObject.folder_id).where(FolderObject.object_id == any_(are_lost))
    folders = unit.session.scalars(select(StoredFolder).where(StoredFolder.id.in_(naming)).with_for_update()).all()
    # No client has a job's outputs to upload again: the rest of them stays to be read.
    incomplete = [folder for folder in folders if folder.kind is not FolderKind.OUTPUTS]
    for folder in incomplete:
        folder.state, folder.completed_at, folder.active_at = FolderState.UPLOADING, None, unit.now
    for folder in folders:
        noun, payload = folder.kind.value, {"num_missing": len(ids)}
        unit.emit(f"{noun}.incomplete", noun, folder.digest, tenant_id=tenant_id, payload=payload)
    unit.session.flush()
    wanted = update(StoredObject).where(StoredObject.id == any_(are_lost)).values(state=ObjectState.WANTED)
    unit.session.execute(wanted.execution_options(synchronize_session=False))
    return Marked(len(ids), folders, len(incomplete))


def with_folders(units: UnitOfWorkFactory, names: Sequence[ObjectName]) -> dict[ObjectName, tuple[str, ...]]:
    """Return the objects with the digests of the folders that need each."""
    found: dict[ObjectName, tuple[str, ...]] = dict.fromkeys(names, ())
    with units.read() as session:
        for tenant_id, of_tenant in by_tenant(names).items():
            by_object = {(name.kind, name.digest): name for name in of_tenant}
            query = (
                select(StoredObject.kind, StoredObject.digest, StoredFolder.digest)
                .join(FolderObject, FolderObject.object_id == StoredObject.id)
                .join(StoredFolder, StoredFolder.id == FolderObject.folder_id)
                .where(StoredObject.tenant_id == tenant_id, _is_one_of(of_tenant))
                .order_by(StoredFolder.id)
            )
            for kind, digest, folder in session.execute(query):
                if (name := by_object.get((kind, digest.hex()))) is not None:
                    found[name] += (folder,)
    return found


def by_tenant(names: Sequence[ObjectName]) -> Mapping[TenantId, list[ObjectName]]:
    found: dict[TenantId, list[ObjectName]] = {}
    for name in names:
        found.setdefault(name.tenant_id, []).append(name)
    return found


def _ids_of(unit: UnitOfWork, tenant_id: TenantId, names: Sequence[ObjectName]) -> list[int]:
    """Return the objects that the store should have, and has taken as often as when their names were read.

    The caller has the lock of the tenant's content, without which no object is noted as stored.
    """
    ids: list[int] = []
    for kind in ObjectKind:
        of_kind = {bytes.fromhex(name.digest): name for name in names if name.kind is kind}
        query = select(StoredObject.digest, StoredObject.id, StoredObject.num_stored).where(
            StoredObject.tenant_id == tenant_id,
            StoredObject.kind == kind,
            _is_one_of(list(of_kind.values())),
            StoredObject.state == ObjectState.PRESENT,
        )
        for digest, number, num_stored in unit.session.execute(query):
            if of_kind[digest].stored_as in {None, StoredAs(number, num_stored)}:
                ids.append(number)
    return ids


def _is_one_of(names: Sequence[ObjectName]) -> ColumnElement[bool]:
    """Return whether an object has one of these digests, as one parameter: a statement has 65,535 at most."""
    digests = [bytes.fromhex(name.digest) for name in names]
    return StoredObject.digest == any_(bindparam("digests", digests, ARRAY(LargeBinary)))
