"""Objects that hosts could not read: the control plane reads each one itself, and marks it lost where it cannot either.

A host's word alone changes nothing: its disk or its network may be wrong. Where one object of a
folder is lost, the others of it are read too, so that one upload repairs them all.
"""

from datetime import timedelta
from typing import Final, Literal

import structlog
from sqlalchemy import delete, select, text, update
from sqlalchemy.dialects.postgresql import insert

from control.content.lost import by_tenant, mark_lost
from control.content.reading import NUMBERED, fault_in, numbered
from control.content.types import ObjectName
from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory, declare_action
from muster.db.models import FolderObject, ObjectReport, StoredObject
from muster.domain.ids import NodeId
from muster.domain.principals import system_principal
from muster.domain.stored_content import ObjectState
from muster.store.faults import StoreError
from muster.store.objects import ObjectStore

CHECK: Final = declare_action("content.check_reports")
MARK_LOST: Final = declare_action("content.mark_lost")
BATCH: Final = 50
_WORK_S: Final = 10.0
"""So long a round reads at most."""
_COUNTS_S: Final = 600.0
"""An object that was read and found right is not read again for so long, whatever hosts report."""
_FORGOTTEN_S: Final = 86_400.0
_PRINCIPAL: Final = system_principal("content")
_log = structlog.get_logger(__name__)
Found = Literal["reading", "lost", "whole"]
_ALSO: Final = text("""
    INSERT INTO object_reports (object_id, reported_at)
    SELECT DISTINCT other.object_id, CAST(:now AS timestamptz)
    FROM folder_objects AS named
        JOIN folder_objects AS other ON other.folder_id = named.folder_id
        JOIN stored_objects AS stored ON stored.id = other.object_id
    WHERE named.object_id = ANY(CAST(:ids AS bigint[])) AND stored.state = 'present'
    ON CONFLICT (object_id) DO NOTHING
""")


def note_report(unit: UnitOfWork, folder_id: int, digest: str, node_id: NodeId) -> Found | None:
    """Note that a host could not read this object of a folder. Return what the control plane knows of it.

    ``reading``: it will be read. None: the folder has no such object.
    """
    query = (
        select(StoredObject)
        .join(FolderObject, FolderObject.object_id == StoredObject.id)
        .where(FolderObject.folder_id == folder_id, StoredObject.digest == bytes.fromhex(digest))
    )
    found = unit.session.scalars(query.order_by(StoredObject.id).limit(1)).one_or_none()
    if found is None:
        return None
    if found.state is not ObjectState.PRESENT:
        return "lost"
    known = unit.session.get(ObjectReport, found.id)
    if known is not None and known.checked_at is None:
        return "reading"
    if known is not None and known.checked_at is not None:
        if known.checked_at > unit.now - timedelta(seconds=_COUNTS_S):
            return "whole"
        known.checked_at, known.reported_at, known.node_id = None, unit.now, node_id
        return "reading"
    row = {"object_id": found.id, "node_id": node_id, "reported_at": unit.now}
    unit.session.execute(insert(ObjectReport).values(row).on_conflict_do_nothing())
    return "reading"


def check_reports_once(units: UnitOfWorkFactory, store: ObjectStore | None) -> bool:
    """Read reported objects, and mark the lost ones. Return whether more is left to read."""
    due = [] if store is None else _due(units)
    if store is None or not due:
        return False
    until = units.clock() + timedelta(seconds=_WORK_S)
    whole: list[int] = []
    lost: dict[ObjectName, int] = {}
    for object_id, name in due:
        if units.clock() >= until:
            break
        try:
            fault = fault_in(store, name)
        except StoreError as error:
            _log.warning("content_report_not_checked", fault=error.detail, digest=name.digest)
            break
        if fault is None:
            whole.append(object_id)
        else:
            _log.error("content_lost", tenant_id=name.tenant_id, digest=name.digest, fault=fault)
            lost[name] = object_id
    _settle(units, whole)
    for tenant_id, names in by_tenant(list(lost)).items():
        with units.begin(_PRINCIPAL, MARK_LOST) as unit:
            if not mark_lost(unit, tenant_id, names).num_objects:
                continue  # all of them were stored again since they were read: they are read again
            ids = [lost[name] for name in names]
            unit.session.execute(_ALSO, {"now": unit.now, "ids": ids})
            _forget(unit, ids)
    return len(whole) + len(lost) == BATCH


def _due(units: UnitOfWorkFactory) -> list[tuple[int, ObjectName]]:
    """Return the next objects to read: the ones that hosts reported come first."""
    query = NUMBERED.join(ObjectReport, ObjectReport.object_id == StoredObject.id)
    query = query.where(ObjectReport.checked_at.is_(None), StoredObject.state == ObjectState.PRESENT)
    query = query.order_by(ObjectReport.node_id.is_(None), ObjectReport.reported_at, ObjectReport.object_id)
    with units.read() as session:
        return numbered(session, query.limit(BATCH))


def _settle(units: UnitOfWorkFactory, whole: list[int]) -> None:
    """Note which objects are right, and forget old reports."""
    with units.begin(_PRINCIPAL, CHECK, quiet=True) as unit:
        options = {"synchronize_session": False}
        read = update(ObjectReport).where(ObjectReport.object_id.in_(whole)).values(checked_at=unit.now)
        unit.session.execute(read, execution_options=options)
        old = unit.now - timedelta(seconds=_FORGOTTEN_S)
        unit.session.execute(delete(ObjectReport).where(ObjectReport.reported_at < old), execution_options=options)


def _forget(unit: UnitOfWork, ids: list[int]) -> None:
    statement = delete(ObjectReport).where(ObjectReport.object_id.in_(ids))
    unit.session.execute(statement.execution_options(synchronize_session=False))
