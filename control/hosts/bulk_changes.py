"""Cordons, releases and drains of all nodes that a selector matches."""

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Final

from sqlalchemy import ColumnElement, exists, select, true

from control.attempts.attempts import lock_job
from control.core.bulk import BulkRequest, BulkResult, Subjects, change_matching
from control.core.unit_of_work import UnitOfWork, declare_action
from control.fleet import cordons
from control.fleet.gpu_locks import lock_gpus
from control.hosts import drains
from control.hosts.node_lists import NodeFilter, conditions_on
from muster.db.models import Cordon, Gpu, Node
from muster.domain.ids import NodeId
from muster.domain.principals import Permission

CORDON: Final = declare_action("nodes.cordon")
UNCORDON: Final = declare_action("nodes.uncordon")
DRAIN: Final = declare_action("nodes.drain")
BY_PERSONS: Final = (cordons.BY_PERSON, drains.REASON_CODE)
"""Reason codes of cordons that ``uncordon`` ends; rules' and maintenance windows' cordons stand."""


def cordon(unit: UnitOfWork, wanted: NodeFilter, request: BulkRequest, *, until: datetime | None = None) -> BulkResult:
    """Set a cordon on each node that has none by a person. Raises as ``change_matching`` does."""
    unit.principal.require(Permission.NODE_WRITE)
    return change_matching(
        unit,
        request,
        _subjects(unit, wanted, ~_has_cordon(unit, [cordons.BY_PERSON])),
        lambda node_id: cordons.create(unit, reason=request.reason, node_id=NodeId(node_id), until=until),
    )


def uncordon(unit: UnitOfWork, wanted: NodeFilter, request: BulkRequest) -> BulkResult:
    """End the cordons that persons set on each node, also by a drain. Raises as ``change_matching`` does."""
    unit.principal.require(Permission.NODE_WRITE)
    subjects = _subjects(unit, wanted, _has_cordon(unit, BY_PERSONS))
    return change_matching(unit, request, subjects, partial(_release_all, unit, request.reason))


def drain(
    unit: UnitOfWork,
    wanted: NodeFilter,
    request: BulkRequest,
    *,
    until: datetime | None = None,
    deadline_s: float | None = None,
    despite_budget: str | None = None,
) -> BulkResult:
    """Drain each node that is not being drained. Raises as ``change_matching`` does."""
    unit.principal.require(Permission.NODE_WRITE)
    return change_matching(
        unit,
        request,
        _subjects(unit, wanted, ~_has_cordon(unit, [drains.REASON_CODE])),
        lambda node_id: drains.drain(
            unit,
            node_id,
            reason=request.reason,
            until=until,
            deadline_s=deadline_s,
            despite_budget=despite_budget,
        ),
        lock=partial(_lock_all, unit),
    )


def _subjects(unit: UnitOfWork, wanted: NodeFilter, is_due: ColumnElement[bool]) -> Subjects:
    return Subjects(Node.id, Node.name, list(conditions_on(wanted, unit.now)), is_due, true())


def _has_cordon(unit: UnitOfWork, reason_codes: Sequence[str]) -> ColumnElement[bool]:
    stands = cordons.those_that_stand(unit.now)
    return exists().where(Cordon.node_id == Node.id, Cordon.reason_code.in_(reason_codes), stands)


def _release_all(unit: UnitOfWork, reason: str, node_id: str) -> None:
    query = select(Cordon.id).where(
        Cordon.node_id == node_id, Cordon.reason_code.in_(BY_PERSONS), cordons.those_that_stand(unit.now)
    )
    for cordon_id in unit.session.scalars(query.order_by(Cordon.id)).all():
        cordons.release(unit, cordon_id, reason=reason)


def _lock_all(unit: UnitOfWork, node_ids: Sequence[str]) -> None:
    """Lock the jobs of all nodes, in id order, then their GPUs: each drain by itself would lock GPUs before jobs."""
    for job_id in sorted({job_id for node_id in node_ids for job_id in drains.jobs_on(unit, NodeId(node_id))}):
        lock_job(unit, job_id)
    lock_gpus(unit, unit.session.scalars(select(Gpu.uuid).where(Gpu.node_id.in_(node_ids))).all())
