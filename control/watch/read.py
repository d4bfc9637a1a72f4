"""Verdicts, to read: one listing for the API and the console."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final

from sqlalchemy import select

from control.core.paging import ALWAYS, Part, SortKey, Span, TimeOrder, by_time
from control.core.records import record_of, records_of
from control.core.unit_of_work import UnitOfWork, declare_action
from control.core.visibility import may_see, visible_rows
from control.watch.types import VerdictRecord
from muster.db.models import Attempt, Node, StallReport, VerdictRow
from muster.domain.errors import NotFoundError
from muster.domain.ids import AttemptId, JobId, NodeId, TenantId, VerdictId
from muster.domain.job.verdicts import VerdictKind, VerdictState
from muster.domain.principals import Permission
from watch.forensics.documents import from_document
from watch.reports import HostReport

READ: Final = declare_action("verdict.read")
SORTS: Final = by_time(SortKey(VerdictRow.id, attrgetter("id")))


@dataclass(frozen=True, slots=True)
class VerdictFilter:
    """Conditions on a verdict; None and empty set no condition. ``span``: in which it was made."""

    job_id: JobId | None = None
    node_id: NodeId | None = None
    tenant_id: TenantId | None = None
    kinds: Sequence[VerdictKind] = ()
    state: VerdictState | None = None
    span: Span = ALWAYS


def list_verdicts(unit: UnitOfWork, wanted: VerdictFilter, part: Part) -> Sequence[VerdictRecord]:
    """Return verdicts, the newest first unless ``part`` says otherwise, of the caller's own tenant."""
    unit.principal.require(Permission.JOB_READ)
    query = select(VerdictRow).where(
        visible_rows(unit.principal, VerdictRow.tenant_id), *wanted.span.conditions(VerdictRow.created_at)
    )
    for column, value in (
        (VerdictRow.job_id, wanted.job_id),
        (VerdictRow.node_id, wanted.node_id),
        (VerdictRow.tenant_id, wanted.tenant_id),
        (VerdictRow.state, wanted.state),
    ):
        if value is not None:
            query = query.where(column == value)
    if wanted.kinds:
        query = query.where(VerdictRow.kind.in_(wanted.kinds))
    return records_of(unit.session.scalars(part.of(query, SORTS[TimeOrder.NEWEST])), VerdictRecord)


def reports_about(unit: UnitOfWork, attempt_id: AttemptId, *, first: NodeId | None, limit: int) -> Sequence[HostReport]:
    """Return the newest reports of hosts about an attempt that made no progress, of ``first`` first; empty without one.

    Raises:
        NotFoundError: the caller may not see the attempt.
    """
    unit.principal.require(Permission.LOG_READ)  # lines and stacks are a tenant's as its output is
    tenant_id = unit.session.scalar(select(Attempt.tenant_id).where(Attempt.id == attempt_id))
    if tenant_id is None or not may_see(unit.principal, tenant_id):
        raise NotFoundError
    query = (
        select(StallReport.report, Node.name)
        .join(Node, Node.id == StallReport.node_id)
        .where(StallReport.attempt_id == attempt_id)
        .order_by(StallReport.node_id.is_distinct_from(first), StallReport.node_id)
        .limit(limit)
    )
    return [replace(from_document(report), node=name) for report, name in unit.session.execute(query)]


def get(unit: UnitOfWork, verdict_id: VerdictId) -> VerdictRecord:
    """Raise ``NotFoundError`` if there is no such verdict, or the caller may not see it."""
    unit.principal.require(Permission.JOB_READ)
    found = unit.session.get(VerdictRow, verdict_id)
    if found is None or not may_see(unit.principal, found.tenant_id):
        raise NotFoundError
    return record_of(found, VerdictRecord)
