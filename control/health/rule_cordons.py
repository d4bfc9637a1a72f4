"""Node holds: a node with faulty ports, fabric or host takes nothing new, and none of its GPUs is quarantined.

A hold is a rule cordon that stands as long as its evidence does (``health.standing.rule_cordon``). Running programs
continue. A person's release outlives the evidence that existed then: only later evidence holds the node again. A hold
that the circuit breaker does not admit is a proposal, and the node takes new work as before.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory, declare_action, retrying
from control.evidence.rows import REMEMBERED, change_evidence, evidence_of, is_pending, store_outlasted
from control.fleet import cordons, maintenance
from control.fleet.gpu_locks import lock_gpus
from control.health import proposals
from control.health.capacity import NODE_FAULT, admit_takings, gpus_of, true_up_once
from control.health.node_faults import nodes_in_question, report_gpus_together
from control.health.proposals import Proposal
from control.policy.policies import active_policy
from health.detectors.registry import NATURES
from health.evidence.evidence import after_maintenance
from health.standing.account import Way
from health.standing.breaker import Taking
from health.standing.rule_cordon import holding, lookback_ms
from muster.db.models import BreakerProposal, Cordon, EvidenceRow, Node
from muster.domain.evidence.findings import Evidence, Severity, Suppression
from muster.domain.evidence.traits import LASTING
from muster.domain.ids import NodeId
from muster.domain.policy.health import HealthPolicy
from muster.domain.principals import Principal
from muster.domain.states import Contact
from muster.domain.times import to_ms

CORDON: Final = declare_action("judge.cordon_nodes")
REASON_CODE: Final = NODE_FAULT
MAINTENANCE_CODES: Final = ("drain", maintenance.REASON_CODE)
"""Cordons under which a person works on a node: reports about the node itself then have no weight."""
NODES_AT_ONCE: Final = 200
_REASON_LENGTH_MAX: Final = 500


def hold_nodes_once(units: UnitOfWorkFactory, principal: Principal) -> int:
    """Hold exactly the nodes that their evidence holds and the breaker admits. Return how many holds began or ended."""
    true_up_once(units, principal)
    with units.read() as session:
        maintained = _reported_in_maintenance(session, units.clock())
    for node_id in maintained:
        retrying(lambda node_id=node_id: _end_maintenance(units, principal, node_id))  # type: ignore[misc]  # bound at once
    with units.read() as session:
        policy = active_policy(session).health
        since = units.clock() - _lookback(policy)
        told = session.scalars(select(EvidenceRow.node_id).where(*_about_nodes(since)).distinct())
        held = session.scalars(select(Cordon.node_id).where(*_is_ours()))
        proposed = session.scalars(select(BreakerProposal.subject_id).where(BreakerProposal.way == Way.NODE_HOLD))
        together = nodes_in_question(session, units.clock(), policy)
        node_ids = sorted({*told, *together, *map(NodeId, proposed), *(each for each in held if each is not None)})
    changed = 0
    for start in range(0, len(node_ids), NODES_AT_ONCE):
        some = node_ids[start : start + NODES_AT_ONCE]
        changed += retrying(lambda some=some: _hold(units, principal, some))  # type: ignore[misc]  # bound at once
    return changed


def _reported_in_maintenance(session: Session, now: datetime) -> Sequence[NodeId]:
    """Return live nodes that are no longer in maintenance and have faults from that time, which may still stand."""
    worked_on = select(Cordon.node_id).where(
        Cordon.reason_code.in_(MAINTENANCE_CODES), Cordon.node_id.is_not(None), cordons.those_that_stand(now)
    )
    query = (
        select(EvidenceRow.node_id)
        .join(Node, Node.id == EvidenceRow.node_id)
        .where(*_set_aside_and_open(now), Node.contact == Contact.LIVE, EvidenceRow.node_id.not_in(worked_on))
    )
    return session.scalars(query.distinct().order_by(EvidenceRow.node_id)).all()


def _set_aside_and_open(now: datetime) -> tuple[ColumnElement[bool], ...]:
    return (
        EvidenceRow.suppressed_by.contains([Suppression.MAINTENANCE]),
        EvidenceRow.closed_at.is_(None),
        EvidenceRow.detector.in_([name for name, nature in NATURES.items() if nature in LASTING]),
        EvidenceRow.last_seen_at > now - REMEMBERED,
    )


def _end_maintenance(units: UnitOfWorkFactory, principal: Principal, node_id: NodeId) -> None:
    with units.begin(principal, CORDON, quiet=True) as unit:
        if not lock_nodes(unit, [node_id]) or nodes_in_maintenance(unit, [node_id]):
            return
        told = select(EvidenceRow).where(EvidenceRow.node_id == node_id, *_set_aside_and_open(unit.now))
        uuids = {row.gpu_uuid for row in unit.session.scalars(told) if row.gpu_uuid is not None}
        for gpu in lock_gpus(unit, sorted(uuids)):
            gpu.judge_at = unit.now
        for row in unit.session.scalars(told.execution_options(populate_existing=True)):
            change_evidence(row, after_maintenance(evidence_of(row), to_ms(unit.now)))


def lock_nodes(unit: UnitOfWork, node_ids: Collection[NodeId]) -> list[NodeId]:
    """Lock the nodes and return their ids, in id order.

    Every caller uses that order, and locks nodes before their GPUs: evidence about a node is written under its lock.
    """
    query = select(Node.id).where(Node.id.in_(list(node_ids))).order_by(Node.id).with_for_update(key_share=True)
    return list(unit.session.scalars(query)) if node_ids else []


def nodes_in_maintenance(unit: UnitOfWork, node_ids: Collection[NodeId]) -> frozenset[NodeId]:
    """Return the nodes among ``node_ids`` that are drained for maintenance, or in a maintenance window."""
    query = select(Cordon.node_id).where(
        Cordon.node_id.in_(list(node_ids)),
        Cordon.reason_code.in_(MAINTENANCE_CODES),
        cordons.those_that_stand(unit.now),
    )
    return frozenset(each for each in unit.session.scalars(query) if each is not None)


def _hold(units: UnitOfWorkFactory, principal: Principal, node_ids: Sequence[NodeId]) -> int:
    with units.begin(principal, CORDON, quiet=True) as unit:
        lock_nodes(unit, node_ids)
        policy = active_policy(unit.session).health
        report_gpus_together(unit, node_ids, nodes_in_maintenance(unit, node_ids), policy)
        wanted = _wanted(unit, node_ids, policy)
        standing = select(Cordon).where(Cordon.node_id.in_(node_ids), *_is_ours()).order_by(Cordon.id)
        held = {cordon.node_id: cordon for cordon in unit.session.scalars(standing)}
        over = {node_id: cordon for node_id, cordon in held.items() if node_id is not None and node_id not in wanted}
        new = {node_id: found for node_id, found in wanted.items() if node_id not in held}
        for cordon in over.values():
            cordons.end(unit, cordon, "its fault is over")
        admitted = _admitted(unit, new, sorted(over), policy) if new or over else frozenset[NodeId]()
        for node_id in sorted(admitted):
            cordons.stand(unit, REASON_CODE, _words(new[node_id]), node_id=node_id)
        proposed = {node_id: Proposal(_words(found)) for node_id, found in new.items() if node_id not in admitted}
        proposals.keep(unit, Way.NODE_HOLD, node_ids, proposed)
        return len(over) + len(admitted)


def _admitted(
    unit: UnitOfWork, new: Mapping[NodeId, tuple[Evidence, ...]], over: Sequence[NodeId], policy: HealthPolicy
) -> frozenset[NodeId]:
    """Return the nodes among ``new`` that may be held. ``over``: the nodes whose hold has ended."""
    gpus = gpus_of(unit.session, [*new, *over])
    takings = [
        Taking(node_id, gpus[node_id], Way.NODE_HOLD, any(each.threatens_correctness for each in found))
        for node_id, found in new.items()
    ]
    ended = {Way.NODE_HOLD: [uuid for node_id in over for uuid in gpus[node_id]]}
    allowed = admit_takings(unit, takings, policy, ended)
    return frozenset(node_id for node_id in new if node_id in allowed)


def _words(evidence: Sequence[Evidence]) -> str:
    return "; ".join(each.summary for each in evidence)[:_REASON_LENGTH_MAX]


def _wanted(unit: UnitOfWork, node_ids: Sequence[NodeId], policy: HealthPolicy) -> dict[NodeId, tuple[Evidence, ...]]:
    """Return the nodes that are to be held, each with the evidence for it."""
    mine = (*_about_nodes(unit.now - _lookback(policy)), EvidenceRow.node_id.in_(node_ids))
    store_outlasted(unit, unit.session.scalars(select(EvidenceRow).where(*mine, is_pending())).all())
    released = _released_by_persons(unit, node_ids)
    found: dict[NodeId, list[Evidence]] = {}
    for row in unit.session.scalars(select(EvidenceRow).where(*mine).order_by(EvidenceRow.id)):
        if row.node_id not in released or row.onset_at > released[row.node_id]:
            found.setdefault(row.node_id, []).append(evidence_of(row))
    judged = {node_id: holding(told, policy, to_ms(unit.now)) for node_id, told in sorted(found.items())}
    return {node_id: held_by for node_id, held_by in judged.items() if held_by}


def _released_by_persons(unit: UnitOfWork, node_ids: Sequence[NodeId]) -> dict[NodeId, datetime]:
    """Return when an actor other than the judge last ended a hold."""
    query = (
        select(Cordon.node_id, func.max(Cordon.released_at))
        .where(Cordon.node_id.in_(node_ids), Cordon.reason_code == REASON_CODE)
        .where(Cordon.released_by != Cordon.owner)
        .group_by(Cordon.node_id)
    )
    rows = unit.session.execute(query)
    return {node_id: at for node_id, at in rows if node_id is not None and at is not None}


def _lookback(policy: HealthPolicy) -> timedelta:
    return timedelta(milliseconds=lookback_ms(policy))


def _about_nodes(since: datetime) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions on evidence that is about a node itself and severe enough to hold it."""
    return (
        EvidenceRow.gpu_uuid.is_(None),
        EvidenceRow.last_seen_at > since,
        EvidenceRow.severity >= int(Severity.DEGRADED),
    )


def _is_ours() -> tuple[ColumnElement[bool], ...]:
    """Return the conditions on a cordon that is a node hold and stands."""
    return (Cordon.reason_code == REASON_CODE, Cordon.released_at.is_(None), Cordon.node_id.is_not(None))
