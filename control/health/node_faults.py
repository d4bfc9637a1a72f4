"""Evidence about a node that its GPUs' faults give together (``health.detectors.node.gpus_at_fault``)."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from sqlalchemy import func, select, true
from sqlalchemy.orm import Session

from control.core.unit_of_work import UnitOfWork
from control.evidence.rows import REMEMBERED, add_evidence, change_evidence, evidence_about, evidence_of
from control.health.cases import cases_of
from health.detectors.node import gpus_at_fault
from health.evidence.evidence import close
from health.evidence.index import EvidenceIndex, of_detector, of_fault
from health.evidence.merge import Place, merge
from health.standing.gpu_case import condemning_of
from muster.db.models import EvidenceRow, Gpu
from muster.db.pipeline.packed_arrays import within
from muster.domain.evidence.findings import Evidence, Finding, Severity, Trust
from muster.domain.ids import EvidenceId, NodeId
from muster.domain.policy.health import HealthPolicy
from muster.domain.states import Standing
from muster.domain.times import to_ms
from muster.identity import new_id


def nodes_in_question(
    session: Session, now: datetime, policy: HealthPolicy, node_ids: Collection[NodeId] | None = None
) -> set[NodeId]:
    """Return nodes with enough condemned GPUs within the rule's window, and nodes with open evidence of the same.

    ``node_ids``: only these nodes, by an index.
    """
    rule = policy.detectors.gpus_at_fault
    is_one = true() if node_ids is None else within(EvidenceRow.node_id, node_ids)
    condemned = (
        select(EvidenceRow.node_id)
        .join(Gpu, Gpu.uuid == EvidenceRow.gpu_uuid)
        .where(
            is_one,
            Gpu.node_id == EvidenceRow.node_id,
            Gpu.standing != Standing.RETIRED,
            EvidenceRow.severity == int(Severity.CONDEMNING),
            EvidenceRow.trust == Trust.MEASURED,
            EvidenceRow.dismissed_at.is_(None),
            EvidenceRow.last_seen_at > now - timedelta(seconds=rule.window_s),
        )
        .group_by(EvidenceRow.node_id)
        .having(func.count(EvidenceRow.gpu_uuid.distinct()) >= rule.gpus)
    )
    told = select(EvidenceRow.node_id).where(
        is_one,
        EvidenceRow.gpu_uuid.is_(None),
        EvidenceRow.detector == gpus_at_fault.NAME,
        EvidenceRow.closed_at.is_(None),
        EvidenceRow.last_seen_at > now - REMEMBERED,
    )
    return {*session.scalars(condemned), *session.scalars(told)}


def report_gpus_together(
    unit: UnitOfWork, node_ids: Collection[NodeId], maintained: Collection[NodeId], policy: HealthPolicy
) -> None:
    """Store what the nodes' GPUs show together. The caller holds the nodes' rows.

    The read of GPUs may be a moment old: the next round reads them again.
    """
    some = sorted(nodes_in_question(unit.session, unit.now, policy, node_ids))
    if not some:
        return
    condemning, known, rows = (
        _condemning_of(unit, some),
        defaultdict[NodeId, EvidenceIndex](EvidenceIndex),
        dict[str, EvidenceRow](),
    )
    for row in evidence_about(unit, (), some):
        rows[row.id] = row
        known[row.node_id].put(evidence_of(row))
    now_ms = to_ms(unit.now)
    for node_id in some:
        of_node = known[node_id]
        told = of_node.on(of_detector(gpus_at_fault.NAME))
        for said in gpus_at_fault.news(node_id, condemning[node_id], told, policy, now_ms):
            if not isinstance(said, Finding):
                for each in of_node.on(of_fault(said.fault_key)):
                    change_evidence(rows[each.id], close(each, said))
                continue
            place = Place(of_node, is_in_maintenance=node_id in maintained)
            for noted in merge(said, place, policy, now_ms, lambda: EvidenceId(new_id("evidence"))):
                if noted.is_new:
                    rows[noted.evidence.id] = add_evidence(unit, noted.evidence)
                else:
                    change_evidence(rows[noted.evidence.id], noted.evidence)
    unit.session.flush()


def _condemning_of(unit: UnitOfWork, node_ids: Sequence[NodeId]) -> dict[NodeId, list[Evidence]]:
    query = select(Gpu).where(Gpu.node_id.in_(node_ids), Gpu.standing != Standing.RETIRED).order_by(Gpu.uuid)
    gpus = unit.session.scalars(query).all()
    cases, found = cases_of(unit, gpus), defaultdict[NodeId, list[Evidence]](list)
    for gpu in gpus:
        found[gpu.node_id] += condemning_of(cases[gpu.uuid])
    return found
