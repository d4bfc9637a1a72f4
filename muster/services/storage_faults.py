"""Saves that fail become evidence on storage or on a host, in the transaction of the word that tells of them.

By the pure rule of ``health.storage``. No GPU is judged by it: it is reported, and about a node or a place. What opens
closes itself, once saves from there succeed again.
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert

from health.storage import Blamed, Failing, blamed_for
from muster.db.models import Incident, Node, StorageFault
from muster.domain.ids import NodeId
from muster.domain.incidents import IncidentKind
from muster.domain.policy import StoragePolicy
from muster.services.attempts import LoadedAttempt
from muster.services.incidents import close_incident, open_incident
from muster.services.lives import spec_of
from muster.services.unit_of_work import UnitOfWork
from muster.wire.training import SaveFault

WORDS: Final = {
    "no_space": "no space is left",
    "read_only": "it is read-only",
    "stale": "its handles are stale",
    "timeout": "it did not answer in time",
    "refused": "it refuses, or a quota is used up",
    "io": "input or output failed",
}
"""Kind of a fault → what is said of a place."""
_LOCK: Final = 0x5AFE_D15C
"""Who opens or closes such incidents takes turns: they are few, and two jobs may fail at one place in one moment."""
_BY_RULE: Final = {Blamed.STORAGE: IncidentKind.STORAGE, Blamed.NODE: IncidentKind.NODE_STORAGE}


def note_failed(
    unit: UnitOfWork, loaded: LoadedAttempt, told: Sequence[object], at: datetime, policy: StoragePolicy
) -> None:
    """``told``: what may be ``SaveFault``s; what is none, or of a rank that is not this attempt's, is passed over."""
    faults = [fault for each in told if (fault := _fault_in(each)) is not None]
    ranks_per_node = spec_of(loaded.job).shape.num_ranks_per_node
    by_host = {
        (fault.place, loaded.hosts[fault.rank // ranks_per_node].node_id): fault
        for fault in faults
        if fault.rank < len(loaded.hosts) * ranks_per_node
    }
    if not by_host:
        return
    _take_turn(unit)
    for (_, node_id), fault in sorted(by_host.items(), key=lambda item: item[0]):
        _count(unit, loaded, node_id, fault, at)
    _judge(unit, {place for place, _ in by_host}, {node_id for _, node_id in by_host}, policy)


def _fault_in(told: object) -> SaveFault | None:
    try:
        return msgspec.convert(told, SaveFault)
    except msgspec.ValidationError:
        return None


def _take_turn(unit: UnitOfWork) -> None:
    unit.session.execute(select(func.pg_advisory_xact_lock(_LOCK)))


def _count(unit: UnitOfWork, loaded: LoadedAttempt, node_id: NodeId, fault: SaveFault, at: datetime) -> None:
    unit.session.flush()
    row = unit.session.get(StorageFault, (fault.place, node_id, loaded.job.id), populate_existing=True)
    is_news = row is None or row.cleared_at is not None
    known: dict[str, Any] = {
        "is_shared": fault.is_shared,
        "kind": fault.kind,
        "num_saves_since": 0,
        "last_at": at,
        "cleared_at": None,
    }
    known |= {"num_failures": 1, "first_at": at} if is_news else {"num_failures": StorageFault.num_failures + 1}
    key = {"place": fault.place, "node_id": node_id, "job_id": loaded.job.id}
    statement = insert(StorageFault).values({**key, **known, "num_failures": 1, "first_at": at})
    unit.session.execute(statement.on_conflict_do_update(index_elements=list(key), set_=known))
    if is_news:
        payload = {"job_id": loaded.job.id, "place": fault.place, "kind": fault.kind, "reason": WORDS[fault.kind]}
        unit.emit("node.saves_fail", "node", node_id, payload=payload)


def note_saved(unit: UnitOfWork, loaded: LoadedAttempt, place: str, policy: StoragePolicy) -> None:
    """All of the attempt's hosts have just saved at ``place``. Nearly always nothing is held against them."""
    nodes = [host.node_id for host in loaded.hosts]
    standing = select(StorageFault).where(
        StorageFault.place == place, StorageFault.node_id.in_(nodes), StorageFault.cleared_at.is_(None)
    )
    if unit.session.scalars(standing.limit(1)).first() is None:
        return
    _take_turn(unit)
    for row in unit.session.scalars(standing.execution_options(populate_existing=True)).all():
        if row.kind == "refused" and row.job_id != loaded.job.id:
            continue  # that this job may write there says nothing of another's rights
        row.num_saves_since += 1
        if row.num_saves_since >= policy.clears_after_saves:
            row.cleared_at = unit.now
            payload = {"job_id": row.job_id, "place": place, "kind": row.kind, "saves": row.num_saves_since}
            unit.emit("node.saves_succeed", "node", row.node_id, payload=payload)
    _judge(unit, {place}, set(nodes), policy)


def standing_on(unit: UnitOfWork, node_id: NodeId) -> Sequence[StorageFault]:
    """What stands of a host, the newest first. The caller may see the node."""
    query = select(StorageFault).where(StorageFault.node_id == node_id, StorageFault.cleared_at.is_(None))
    return unit.session.scalars(query.order_by(StorageFault.last_at.desc(), StorageFault.place)).all()


def _judge(unit: UnitOfWork, places: Collection[str], node_ids: Collection[NodeId], policy: StoragePolicy) -> None:
    """Open and close what the rule says of these places and of all hosts that ever failed at them."""
    unit.session.flush()
    told = select(StorageFault.node_id).where(StorageFault.place.in_(places))
    nodes = set(node_ids) | set(unit.session.scalars(told))
    is_standing = StorageFault.cleared_at.is_(None)
    theirs = select(StorageFault.place).where(is_standing, StorageFault.node_id.in_(nodes))
    # Of each place all that stands: whether a host fails alone is seen by the others.
    query = select(StorageFault).where(is_standing, StorageFault.place.in_(places) | StorageFault.place.in_(theirs))
    rows = unit.session.scalars(query.execution_options(populate_existing=True)).all()
    blamed = blamed_for([_failing(row) for row in rows], policy)
    by_storage = _by_subject(blamed, Blamed.STORAGE)
    by_node = _by_subject(blamed, Blamed.NODE)
    _settle(unit, IncidentKind.STORAGE, "storage", set(places), by_storage)
    _settle(unit, IncidentKind.NODE_STORAGE, "node", set(nodes), by_node)


def _failing(row: StorageFault) -> Failing:
    return Failing(row.place, row.is_shared, row.node_id, row.job_id, row.kind, row.num_failures)


def _by_subject(blamed: dict[Failing, Blamed], who: Blamed) -> dict[str, list[Failing]]:
    found: dict[str, list[Failing]] = {}
    for failing, whose in blamed.items():
        if whose is who:
            found.setdefault(failing.place if who is Blamed.STORAGE else failing.node_id, []).append(failing)
    return found


def _settle(
    unit: UnitOfWork, kind: IncidentKind, subject: str, judged: Collection[str], wanted: dict[str, list[Failing]]
) -> None:
    open_now = {row.subject_id: row for row in _open_of(unit, kind, judged)}
    for subject_id in sorted(set(judged) & wanted.keys() - open_now.keys()):
        failing = wanted[subject_id]
        payload = {
            "places": sorted({each.place for each in failing}),
            "kinds": sorted({each.kind for each in failing}),
            "node_ids": sorted({each.node_id for each in failing}),
            "job_ids": sorted({each.job_id for each in failing}),
            "num_failures": sum(each.num_failures for each in failing),
        }
        open_incident(unit, kind, subject, subject_id, _summary(unit, kind, failing), payload)
    for subject_id in sorted(open_now.keys() - wanted.keys()):
        close_incident(unit, open_now[subject_id], reason="checkpoints are saved again, or another is to blame")


def _open_of(unit: UnitOfWork, kind: IncidentKind, subject_ids: Collection[str]) -> Sequence[Incident]:
    query = select(Incident).where(
        Incident.kind == kind, Incident.closed_at.is_(None), Incident.subject_id.in_(subject_ids)
    )
    return unit.session.scalars(query.order_by(Incident.id).with_for_update()).all()


def _summary(unit: UnitOfWork, kind: IncidentKind, failing: Sequence[Failing]) -> str:
    places = ", ".join(sorted({each.place for each in failing}))
    why = " and ".join(sorted({WORDS[each.kind] for each in failing}))
    nodes = sorted({each.node_id for each in failing})
    names = unit.session.scalars(select(Node.name).where(Node.id.in_(nodes[:3])).order_by(Node.name)).all()
    named = ", ".join(names) + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")  # as above
    if kind is IncidentKind.STORAGE:
        return f"checkpoints cannot be saved to {places}: {why}, seen from {named}"
    return f"{named} cannot save checkpoints to {places}: {why}, and no other host fails there"
