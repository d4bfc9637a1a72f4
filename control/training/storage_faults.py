"""Evidence on storage or on a host from failed saves, in the transaction of their report.

By the pure rule of ``health.storage``. No GPU is judged by it: it is reported, and about a node or a place. An incident
that opens closes itself, once saves succeed again or nothing has failed for the policy's window
(``storage_attribution``).
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from sqlalchemy import ColumnElement, select, update
from sqlalchemy.dialects.postgresql import insert

from control.attempts.attempts import LoadedAttempt
from control.attempts.ranks import host_of_rank
from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory, declare_action
from control.incidents.incidents import close_incident, open_about, open_incident
from control.incidents.storage_attribution import (
    BLAMED_BY,
    blamed_at,
    is_standing,
    nodes_that_failed_at,
    subject_of,
    take_turn,
    window_begins,
)
from control.policy.policies import active_policy
from health.storage import Blamed, Failing
from muster.db.models import Incident, Job, Node, StorageFault
from muster.domain.evidence.incidents import IncidentKind
from muster.domain.ids import NodeId
from muster.domain.policy.training import StoragePolicy
from muster.domain.principals import system_principal
from muster.domain.states import TERMINAL_JOB_STATES
from muster.wire.training import SaveFault

SETTLE: Final = declare_action("storage.settle")

STORAGE_FAULT_TEXTS: Final = {
    "no_space": "no space is left",
    "read_only": "it is read-only",
    "stale": "its handles are stale",
    "timeout": "it did not answer in time",
    "refused": "it refuses, or a quota is used up",
    "io": "input or output failed",
}
"""Text about a place by kind of fault."""
MOST_PLACES: Final = 4
"""Number of places at which one job's saves from one host may stand as failing: programs could invent any number."""
_OF_THE_PLACE: Final = ("no_space", "read_only")
"""Kinds about a shared place and not the host that met it: any job's good save refutes them."""
_PRINCIPAL: Final = system_principal("storage")
_WHY_CLOSED: Final = "checkpoints are saved again, or none has failed for long, or another is to blame"


def note_failed(
    unit: UnitOfWork, loaded: LoadedAttempt, reported: Sequence[object], at: datetime, policy: StoragePolicy
) -> None:
    """Store the ``SaveFault``s in ``reported``; anything else, or of a rank that is not this attempt's, is ignored."""
    at = min(at, unit.now)  # a clock that is ahead must not make it stand for longer
    if at <= window_begins(unit.now, policy):
        return
    faults = [fault for each in reported if (fault := _fault_in(each)) is not None]
    by_host = {
        (fault.place, host.node_id): fault for fault in faults if (host := host_of_rank(loaded, fault.rank)) is not None
    }
    if not by_host:
        return
    take_turn(unit)
    for (_, node_id), fault in sorted(by_host.items(), key=lambda item: item[0]):
        _count(unit, loaded, node_id, fault, at, policy)
    _judge(unit, {place for place, _ in by_host}, {node_id for _, node_id in by_host}, policy)


def _fault_in(reported: object) -> SaveFault | None:
    try:
        return msgspec.convert(reported, SaveFault)
    except msgspec.ValidationError:
        return None


def _count(
    unit: UnitOfWork, loaded: LoadedAttempt, node_id: NodeId, fault: SaveFault, at: datetime, policy: StoragePolicy
) -> None:
    unit.session.flush()
    theirs = (StorageFault.node_id == node_id, StorageFault.job_id == loaded.job.id)
    standing = unit.session.scalars(select(StorageFault.place).where(*theirs, is_standing(unit.now, policy))).all()
    is_news = fault.place not in standing
    if is_news and len(standing) >= MOST_PLACES:
        return
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
        payload = {
            "job_id": loaded.job.id,
            "place": fault.place,
            "kind": fault.kind,
            "reason": STORAGE_FAULT_TEXTS[fault.kind],
        }
        unit.emit("node.saves_fail", "node", node_id, payload=payload)


def note_saved(unit: UnitOfWork, loaded: LoadedAttempt, place: str, policy: StoragePolicy) -> None:
    """Clear faults after all of the attempt's hosts have saved at ``place``. Nearly always there are none."""
    standing = select(StorageFault).where(is_standing(unit.now, policy), _is_refuted(loaded, place))
    if unit.session.scalars(standing.limit(1)).first() is None:
        return
    take_turn(unit)
    rows = unit.session.scalars(standing.execution_options(populate_existing=True)).all()
    for row in rows:
        row.num_saves_since += 1
        if row.num_saves_since >= policy.clears_after_saves:
            row.cleared_at = unit.now
            payload = {"job_id": row.job_id, "place": row.place, "kind": row.kind, "saves": row.num_saves_since}
            unit.emit("node.saves_succeed", "node", row.node_id, payload=payload)
    _judge(unit, {row.place for row in rows}, {row.node_id for row in rows}, policy)


def _is_refuted(loaded: LoadedAttempt, place: str) -> ColumnElement[bool]:
    """Return the condition on faults that a good save of the attempt at ``place`` refutes.

    Any fault of its own job on its hosts is refuted: the place it failed at may have another name now, such as another
    address of one file server, or ``/`` while a share was not mounted.
    """
    is_here = StorageFault.node_id.in_([host.node_id for host in loaded.hosts])
    is_own = StorageFault.job_id == loaded.job.id
    is_there = StorageFault.place == place
    not_rights = StorageFault.kind != "refused"  # a right of this job proves no right of another
    of_the_place = is_there & StorageFault.is_shared & StorageFault.kind.in_(_OF_THE_PLACE)
    return (is_here & (is_own | (is_there & not_rights))) | of_the_place


def settle_once(units: UnitOfWorkFactory) -> int:
    """Close incidents without a standing fault, though no save has been reported. Return how many were checked.

    A refusal of a job that has ended no longer counts: its rights ended with it.
    """
    with units.begin(_PRINCIPAL, SETTLE, quiet=True) as unit:
        policy = active_policy(unit.session).training.storage
        is_open = Incident.kind.in_(BLAMED_BY) & Incident.closed_at.is_(None)
        of_ended = StorageFault.job_id.in_(select(Job.id).where(Job.state.in_(TERMINAL_JOB_STATES)))
        is_over = StorageFault.cleared_at.is_(None) & (StorageFault.kind == "refused") & of_ended
        if unit.session.scalar(select(select(Incident.id).where(is_open).exists() | select(1).where(is_over).exists())):
            take_turn(unit)
            unit.session.execute(update(StorageFault).where(is_over).values(cleared_at=unit.now))
            found = unit.session.execute(select(Incident.kind, Incident.subject_id).where(is_open)).all()
            places = {subject_id for kind, subject_id in found if BLAMED_BY[kind] is Blamed.STORAGE}
            node_ids = {subject_id for kind, subject_id in found if BLAMED_BY[kind] is Blamed.NODE}
            _judge(unit, places, node_ids, policy)
            return len(found)
    return 0


def _judge(unit: UnitOfWork, places: Collection[str], node_ids: Collection[str], policy: StoragePolicy) -> None:
    """Open and close incidents by the rule's verdict on these places and on all hosts that ever failed at them."""
    unit.session.flush()
    nodes = set(node_ids) | nodes_that_failed_at(unit, places)
    blamed = blamed_at(unit, places, nodes, policy)
    _settle(unit, IncidentKind.STORAGE, "storage", set(places), _by_subject(blamed, Blamed.STORAGE))
    _settle(unit, IncidentKind.NODE_STORAGE, "node", nodes, _by_subject(blamed, Blamed.NODE))


def _by_subject(blamed: dict[Failing, Blamed], at_fault: Blamed) -> dict[str, list[Failing]]:
    found: dict[str, list[Failing]] = {}
    for failing, whose in blamed.items():
        if whose is at_fault:
            found.setdefault(subject_of(failing, at_fault), []).append(failing)
    return found


def _settle(
    unit: UnitOfWork, kind: IncidentKind, subject: str, judged: Collection[str], wanted: dict[str, list[Failing]]
) -> None:
    open_now = {row.subject_id: row for row in open_about(unit, kind, judged)}
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
        close_incident(unit, open_now[subject_id], reason=_WHY_CLOSED)


def _summary(unit: UnitOfWork, kind: IncidentKind, failing: Sequence[Failing]) -> str:
    places = ", ".join(sorted({each.place for each in failing}))
    why = " and ".join(sorted({STORAGE_FAULT_TEXTS[each.kind] for each in failing}))
    nodes = sorted({each.node_id for each in failing})
    names = unit.session.scalars(select(Node.name).where(Node.id.in_(nodes[:3])).order_by(Node.name)).all()
    named = ", ".join(names) + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")  # as above
    if kind is IncidentKind.STORAGE:
        return f"checkpoints cannot be saved to {places}: {why}, seen from {named}"
    return f"{named} cannot save checkpoints to {places}: {why}, and no other host fails there"
