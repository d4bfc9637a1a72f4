"""Garbage collection of stored content: unused folders by age, then the objects that no folder names any more.

An object leaves the store in three steps, with the store's calls outside of any transaction:

1. It was idle for ``content.idle_hours``: it becomes DOOMED. From then on no address for its upload is given, and
   all addresses that were given have expired.
2. The store deletes it. Each request is signed with the time of step 1, and the store refuses it ``OWN_S`` later. So a
   keeper that was stopped in the middle deletes nothing when it continues.
3. ``SETTLED_S`` after step 1 no request of it can have an effect any more. If no folder names it, its row goes. If one
   does by now, it becomes WANTED: the upload that waited for it continues.

Where a keeper dies between these steps, another one repeats them from the first on.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import structlog
from sqlalchemy import ColumnElement, delete, exists, or_, select, update

from control.content import rows
from control.content.uses import keeps, remove_ended_uses
from control.core.unit_of_work import UnitOfWorkFactory, declare_action
from control.policy.policies import active_policy
from muster.db.models import Checkpoint, EnvironmentBuild, Job, JobOutput, StoredFolder, StoredObject
from muster.domain.ids import TenantId
from muster.domain.job.environment_builds import BuildState
from muster.domain.principals import system_principal
from muster.domain.states import CheckpointStatus
from muster.domain.stored_content import FolderKind, FolderState, ObjectState
from muster.store.faults import StoreError
from muster.store.keys import object_key
from muster.store.objects import OWN_S, ObjectStore

FORGET: Final = declare_action("content.forget_outputs")
EXPIRE: Final = declare_action("content.expire")
FORGET_BUILDS: Final = declare_action("content.forget_builds")
DOOM: Final = declare_action("content.doom")
SETTLE: Final = declare_action("content.settle")
BATCH: Final = 500
SETTLED_S: Final = OWN_S + 60
"""After the validity of a deletion, and 60 s between the clocks of store and control plane."""
_DELETE_S: Final = OWN_S - 20
"""A batch ends so long after its decision: a slow store would refuse the rest, and none of it would be noted."""
_PRINCIPAL: Final = system_principal("content")
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Doomed:
    """Objects whose deletion was decided in one transaction, at ``decided_at``."""

    ids: tuple[int, ...]
    keys: tuple[str, ...]
    decided_at: datetime


def keep_once(units: UnitOfWorkFactory, store: ObjectStore | None) -> bool:
    """Run one round. Return whether more is left to do at once."""
    forget_builds(units)
    num_expired = max(forget_outputs_once(units), expire_once(units))
    if store is None:
        return num_expired >= BATCH
    doomed = doom_once(units)
    is_answered = _delete(units, store, doomed)
    settle_once(units)
    return is_answered and max(num_expired, len(doomed.ids)) >= BATCH


def _delete(units: UnitOfWorkFactory, store: ObjectStore, doomed: Doomed) -> bool:
    """Delete the objects, as many as the store takes in time, and return whether it answers.

    The rows of the others stay DOOMED, and a later round repeats them.
    """
    num_asked, is_answered, until = 0, True, doomed.decided_at + timedelta(seconds=_DELETE_S)

    def in_time() -> Iterator[str]:
        nonlocal num_asked
        for key in doomed.keys:
            if units.clock() >= until:
                return
            num_asked += 1
            yield key

    try:
        store.delete(in_time(), decided_at=doomed.decided_at)
        num_gone = num_asked
    except StoreError as error:
        # The store deletes one after the other, and has not deleted the last one that it was asked for.
        num_gone, is_answered = max(num_asked - 1, 0), False
        left = len(doomed.ids) - num_gone
        _log.warning("content_not_deleted", fault=error.detail, num_objects=left)
    if num_gone:
        note_gone(units, doomed.ids[:num_gone])
    return is_answered


def forget_outputs_once(units: UnitOfWorkFactory) -> int:
    """Forget outputs whose job ended ``outputs_keep_days`` ago, or whose upload was given up. Return how many.

    Outputs of a pinned checkpoint are kept as long as it is. The folders that no job's outputs name any more are
    deleted by ``expire_once``.
    """
    with units.begin(_PRINCIPAL, FORGET, quiet=True) as unit:
        policy = active_policy(unit.session).content
        is_pinned = exists().where(
            Checkpoint.id == JobOutput.checkpoint_id,
            Checkpoint.pinned_at.is_not(None),
            Checkpoint.status != CheckpointStatus.EXPIRED,
        )
        is_old = (Job.finished_at < unit.now - timedelta(days=policy.outputs_keep_days)) & ~is_pinned
        stale = unit.now - timedelta(hours=max(policy.upload_hours, policy.outputs_upload_hours))
        is_given_up = (StoredFolder.state == FolderState.UPLOADING) & (StoredFolder.active_at < stale)
        due = (
            select(JobOutput.id)
            .join(Job, Job.id == JobOutput.job_id)
            .join(StoredFolder, StoredFolder.id == JobOutput.folder_id)
            .where(or_(is_old, is_given_up))
            .limit(BATCH)
        )
        ids = unit.session.scalars(due).all()
        gone = delete(JobOutput).where(JobOutput.id.in_(ids)).returning(JobOutput.job_id)
        found = Counter(unit.session.scalars(gone, execution_options={"synchronize_session": False}).all())
        for job_id, number in sorted(found.items()):
            tenant_id = unit.session.get_one(Job, job_id).tenant_id
            unit.emit("job.outputs_expired", "job", job_id, tenant_id=tenant_id, payload={"num_outputs": number})
    return len(ids)


def expire_once(units: UnitOfWorkFactory) -> int:
    """Delete folders that were unused for long, and uploads that were given up. Return how many.

    A folder of outputs goes as soon as no job's outputs name it.
    """
    with units.read() as session:
        policy = active_policy(session).content
        now = units.clock()
        unused, stale = now - timedelta(days=policy.unused_days), now - timedelta(hours=policy.upload_hours)
        is_old = or_(
            (StoredFolder.state == FolderState.COMPLETE) & (StoredFolder.active_at < unused),
            (StoredFolder.state == FolderState.UPLOADING) & (StoredFolder.active_at < stale),
        )
        is_of_outputs = StoredFolder.kind == FolderKind.OUTPUTS
        is_named = exists().where(JobOutput.folder_id == StoredFolder.id)
        is_over = (~is_of_outputs & is_old & ~keeps(unused)) | (is_of_outputs & ~is_named)
        query = select(StoredFolder.id, StoredFolder.tenant_id).where(is_over).order_by(StoredFolder.active_at)
        found = session.execute(query.limit(BATCH)).all()
    for folder_id, tenant_id in found:
        with units.begin(_PRINCIPAL, EXPIRE) as unit:
            use = rows.lock_use(unit, tenant_id)
            # Read again under the locks: it may have been submitted, or continued, since.
            again = select(StoredFolder).where(StoredFolder.id == folder_id, is_over).with_for_update()
            folder = unit.session.scalars(again.execution_options(populate_existing=True)).one_or_none()
            if folder is None:
                continue
            remove_ended_uses(unit, folder)
            payload = {"num_bytes": folder.num_bytes, "num_files": folder.num_files, "state": folder.state}
            noun = folder.kind.value
            unit.emit(f"{noun}.expired", noun, folder.digest, tenant_id=folder.tenant_id, payload=payload)
            rows.remove_folder(unit, use, folder)
    return len(found)


def forget_builds(units: UnitOfWorkFactory) -> None:
    """Forget environments that were not built, and that no job asked for in a long time."""
    with units.begin(_PRINCIPAL, FORGET_BUILDS, quiet=True) as unit:
        unused = unit.now - timedelta(days=active_policy(unit.session).content.unused_days)
        is_unbuilt = EnvironmentBuild.state.in_((BuildState.WAITING, BuildState.FAILED))
        old = select(EnvironmentBuild.id).where(is_unbuilt, EnvironmentBuild.changed_at < unused)
        old = old.order_by(EnvironmentBuild.changed_at).limit(BATCH).with_for_update(skip_locked=True)
        statement = delete(EnvironmentBuild).where(EnvironmentBuild.id.in_(unit.session.scalars(old).all()))
        unit.session.execute(statement.execution_options(synchronize_session=False))


def doom_once(units: UnitOfWorkFactory, *, batch: int = BATCH) -> Doomed:
    """Doom objects that were idle for long enough, and again those whose deletion was not answered in time."""
    with units.begin(_PRINCIPAL, DOOM, quiet=True) as unit:
        idle = unit.now - timedelta(hours=active_policy(unit.session).content.idle_hours)
        late = unit.now - timedelta(seconds=SETTLED_S)
        is_due = StoredObject.idle_at.is_not(None) & or_(
            (StoredObject.state != ObjectState.DOOMED) & (StoredObject.idle_at < idle),
            (StoredObject.doomed_at < late) & StoredObject.gone_at.is_(None),
        )
        due = select(StoredObject.id).where(is_due).order_by(StoredObject.id).limit(batch)
        ids = unit.session.scalars(due.with_for_update(skip_locked=True)).all()
        # A row that an upload has named while this one waited for its lock is not idle, and is left alone.
        statement = update(StoredObject).where(StoredObject.id.in_(ids), is_due)
        statement = statement.values(state=ObjectState.DOOMED, doomed_at=unit.now, gone_at=None)
        columns = (StoredObject.id, StoredObject.tenant_id, StoredObject.kind, StoredObject.digest)
        found = unit.session.execute(statement.returning(*columns).execution_options(synchronize_session=False)).all()
        keys = tuple(object_key(tenant_id, kind, digest.hex()) for _, tenant_id, kind, digest in found)
        return Doomed(tuple(row.id for row in found), keys, unit.now)


def note_gone(units: UnitOfWorkFactory, ids: Sequence[int]) -> None:
    """Note that the store has deleted the objects."""
    with units.begin(_PRINCIPAL, SETTLE, quiet=True) as unit:
        still = StoredObject.id.in_(ids) & (StoredObject.state == ObjectState.DOOMED)
        statement = update(StoredObject).where(still).values(gone_at=unit.now)
        unit.session.execute(statement.execution_options(synchronize_session=False))


def settle_once(units: UnitOfWorkFactory) -> int:
    """Remove the rows of deleted objects; if a folder names one by now, it is wanted again. Return how many."""
    with units.read() as session:
        before = units.clock() - timedelta(seconds=SETTLED_S)
        is_over = StoredObject.doomed_at.is_not(None) & (StoredObject.doomed_at < before)
        is_gone = is_over & StoredObject.idle_at.is_not(None) & StoredObject.gone_at.is_not(None)
        is_needed = is_over & StoredObject.idle_at.is_(None)
        tenant_ids = session.scalars(select(StoredObject.tenant_id).where(is_gone | is_needed).distinct()).all()
    return sum(_settle(units, tenant_id, is_gone, is_needed) for tenant_id in tenant_ids)


def _settle(
    units: UnitOfWorkFactory, tenant_id: TenantId, is_gone: ColumnElement[bool], is_needed: ColumnElement[bool]
) -> int:
    with units.begin(_PRINCIPAL, SETTLE, quiet=True) as unit:
        # So no upload of this tenant is just naming one of them.
        rows.lock_use(unit, tenant_id)
        of_tenant = StoredObject.tenant_id == tenant_id
        wanted = update(StoredObject).where(of_tenant, is_needed).returning(StoredObject.id)
        wanted = wanted.values(state=ObjectState.WANTED, doomed_at=None, gone_at=None)
        gone = delete(StoredObject).where(of_tenant, is_gone).returning(StoredObject.id)
        options = {"synchronize_session": False}
        return sum(len(unit.session.execute(each, execution_options=options).all()) for each in (wanted, gone))
