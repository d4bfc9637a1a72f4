"""The newest errors of attempts, lost hosts and failed saves, one by one."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import func, select, true

from control.core.paging import Span
from control.core.unit_of_work import UnitOfWork
from control.core.visibility import visible_rows
from control.jobs.failures import EXPECTED, NODE_LOST, SAVE_FAILED, happened
from ledger.figures.faults import Fault, causes_of
from muster.db.models import Attempt, Event, Job, Node, NodeContactChange
from muster.domain.ids import JobId, NodeId
from muster.domain.principals import Permission
from muster.domain.states import Cause, Contact

_NO_FAULTS: Final = sorted({*EXPECTED, *causes_of(Fault.MOVED)})


@dataclass(frozen=True, slots=True)
class EndedBadly:
    """An attempt that ended by a fault, and what proved it."""

    job_id: JobId
    name: str
    number: int
    cause: Cause
    proof: str
    at: datetime


@dataclass(frozen=True, slots=True)
class LostHost:
    """A host that was lost. ``back_at``: when it was live again; None: it is not."""

    node_id: NodeId
    name: str
    at: datetime
    back_at: datetime | None


@dataclass(frozen=True, slots=True)
class FailedSave:
    job_id: JobId
    name: str
    step: int | None
    why: str
    at: datetime


@dataclass(frozen=True, slots=True)
class NewestFaults:
    """``lost``: None for a reader who sees no hosts."""

    ended: Sequence[EndedBadly]
    lost: Sequence[LostHost] | None
    failed_saves: Sequence[FailedSave]


def newest_faults(unit: UnitOfWork, span: Span, *, limit: int) -> NewestFaults:
    """Return at most ``limit`` of each, the newest first; a tenant sees its own."""
    unit.principal.require(Permission.JOB_READ)
    sees_hosts = unit.principal.sees_all_tenants
    return NewestFaults(
        _ended(unit, span, limit), _lost(unit, span, limit) if sees_hosts else None, _saves(unit, span, limit)
    )


def _ended(unit: UnitOfWork, span: Span, limit: int) -> list[EndedBadly]:
    columns = Job.id, Job.name, Attempt.number, Attempt.cause, func.coalesce(Attempt.proof, ""), Attempt.ended_at
    within = *span.conditions(Attempt.ended_at), Attempt.cause.not_in(_NO_FAULTS)
    query = select(*columns).join(Job, Job.id == Attempt.job_id)
    query = query.where(*within, visible_rows(unit.principal, Attempt.tenant_id))
    rows = unit.session.execute(query.order_by(Attempt.ended_at.desc(), Attempt.id).limit(limit))
    return [
        EndedBadly(job_id, name, number, cause, proof, at)
        for job_id, name, number, cause, proof, at in rows
        if cause is not None and at is not None
    ]


def _lost(unit: UnitOfWork, span: Span, limit: int) -> list[LostHost]:
    back = (
        select(NodeContactChange.at)
        .where(NodeContactChange.node_id == Node.id, NodeContactChange.at > Event.at)
        .where(NodeContactChange.contact == Contact.LIVE)
        .order_by(NodeContactChange.at)
        .limit(1)
        .lateral()
    )
    query = (
        select(Node.id, Node.name, Event.at, back.c.at)
        .select_from(Event)
        .join(Node, Node.id == Event.subject_id)
        .join(back, true(), isouter=True)
        .where(*happened(unit, span, NODE_LOST))
    )
    return [LostHost(*row) for row in unit.session.execute(query.order_by(Event.position.desc()).limit(limit))]


def _saves(unit: UnitOfWork, span: Span, limit: int) -> list[FailedSave]:
    step = Event.payload["step"].as_integer()
    query = (
        select(Job.id, Job.name, step, func.coalesce(Event.payload["why"].astext, ""), Event.at)
        .select_from(Event)
        .join(Attempt, Attempt.id == Event.subject_id)
        .join(Job, Job.id == Attempt.job_id)
        .where(*happened(unit, span, SAVE_FAILED))
    )
    return [FailedSave(*row) for row in unit.session.execute(query.order_by(Event.position.desc()).limit(limit))]
