"""Findings become evidence, under the lock of the GPU or node that they are about: nodes first, then GPUs.

Agents report each hour that all is well, so most reports end faults that do not exist. That costs one read, and no
lock. But where another judge still has a signal about the same place, a fault may be in progress, and is waited for.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from sqlalchemy import or_, select, tuple_

from control.core.unit_of_work import UnitOfWork
from control.evidence.inbox import Reported
from control.evidence.rows import (
    REMEMBERED,
    add_evidence,
    change_evidence,
    evidence_about,
    evidence_of,
    shown_on_node,
)
from control.fleet.gpu_locks import lock_gpus
from control.fleet.maintenance import Window, windows_of
from control.health.burn_ins.orders import order_diagnoses
from control.health.programs import newest_diagnosis_ms
from control.health.rule_cordons import lock_nodes, nodes_in_maintenance
from health.detectors.detector import Closing
from health.evidence.evidence import close, place_of
from health.evidence.index import EvidenceIndex
from health.evidence.merge import Place, merge
from health.evidence.state import counts, is_open
from muster.db.models import EvidenceRow, Gpu, StoredSignal
from muster.domain.evidence.findings import Evidence, Finding
from muster.domain.ids import EvidenceId, GpuUuid, NodeId
from muster.domain.policy.health import HealthPolicy
from muster.domain.times import to_ms
from muster.identity import new_id

_NO_SIGNALS: Final[Sequence[StoredSignal]] = ()


def record_evidence(
    unit: UnitOfWork, reported: Sequence[Reported], policy: HealthPolicy, taken: Sequence[StoredSignal] = _NO_SIGNALS
) -> list[Gpu]:
    """Store findings and closings, and return the locked GPUs that have or had a fault by them.

    ``taken``: the signals that reported them.
    """
    heard = _with_effect(unit, reported, taken)
    if not heard:
        return []
    node_ids = lock_nodes(unit, {each.node_id for each in heard if each.gpu_uuid is None})
    gpus = lock_gpus(unit, sorted({each.gpu_uuid for each in heard if each.gpu_uuid is not None}))
    places = {*node_ids, *(gpu.uuid for gpu in gpus)}
    nodes = {each.node_id for each in heard}
    known = _EvidenceIndex(unit, policy, nodes_in_maintenance(unit, nodes), windows_of(unit, nodes))
    for row in evidence_about(unit, [gpu.uuid for gpu in gpus], node_ids):
        known.remember(evidence_of(row), row)
    for said_now in heard:
        if _place(said_now) in places:
            known.take(said_now)
    unit.session.flush()
    order_diagnoses(unit, gpus, known.requested, policy)
    told = known.changed | {_place(each) for each in heard if isinstance(each, Finding)}
    return [gpu for gpu in gpus if gpu.uuid in told]


def _place(each: Reported | Evidence) -> str:
    return place_of(each.gpu_uuid, each.node_id)


@dataclass(slots=True)
class _EvidenceIndex:
    """Evidence of the locked places.

    ``changed``: the places where some evidence has changed. ``requested``: GPU → text of the new finding that asks for
    a burn-in.
    """

    unit: UnitOfWork
    policy: HealthPolicy
    maintained: frozenset[NodeId]
    windows: Mapping[NodeId, tuple[Window, ...]]
    changed: set[str] = field(default_factory=set)
    requested: dict[GpuUuid, str] = field(default_factory=dict)
    _at: dict[str, EvidenceIndex] = field(default_factory=lambda: defaultdict(EvidenceIndex))
    _open: dict[tuple[str, str], set[EvidenceId]] = field(default_factory=lambda: defaultdict(set))
    _rows: dict[EvidenceId, EvidenceRow] = field(default_factory=dict)

    def remember(self, evidence: Evidence, row: EvidenceRow) -> None:
        place = _place(evidence)
        self._rows[evidence.id] = row
        self._at[place].put(evidence)
        if is_open(evidence):
            self._open[place, evidence.fault_key].add(evidence.id)

    def take(self, reported: Reported) -> None:
        if isinstance(reported, Closing):
            self._close(reported)
        else:
            self._note(reported)

    def _note(self, finding: Finding) -> None:
        place = Place(
            self._at[_place(finding)],
            partial(shown_on_node, self.unit, finding),
            finding.node_id in self.maintained,
            any(window.holds(finding.onset_ms) for window in self.windows.get(finding.node_id, ())),
            partial(newest_diagnosis_ms, self.unit, finding.gpu_uuid),
        )
        for noted in merge(finding, place, self.policy, to_ms(self.unit.now), _fresh_id):
            self._store(noted.evidence, is_new=noted.is_new)
            if noted.is_new and noted.evidence.detector in self.policy.burn_in.requested_by and counts(noted.evidence):
                self._ask(noted.evidence)

    def _ask(self, evidence: Evidence) -> None:
        if evidence.gpu_uuid is not None:
            self.requested[evidence.gpu_uuid] = evidence.summary

    def _close(self, closing: Closing) -> None:
        place = _place(closing)
        for evidence_id in sorted(self._open.get((place, closing.fault_key), ())):
            evidence = self._at[place].get(evidence_id)
            closed = None if evidence is None else close(evidence, closing)
            if closed is not None and closed != evidence:
                self._store(closed, is_new=False)

    def _store(self, evidence: Evidence, *, is_new: bool) -> None:
        if is_new:
            row = add_evidence(self.unit, evidence)
        else:
            row = self._rows[evidence.id]
            change_evidence(row, evidence)
        self.remember(evidence, row)
        self.changed.add(_place(evidence))


def _with_effect(unit: UnitOfWork, reported: Sequence[Reported], taken: Sequence[StoredSignal]) -> Sequence[Reported]:
    """Return everything except closings of faults that are neither open nor in progress."""
    closings = [each for each in reported if isinstance(each, Closing)]
    if not closings or not taken:
        return reported
    waited_for = {_place(each) for each in reported if isinstance(each, Finding)}
    waited_for |= _on_their_way(unit, closings, taken)  # before the open faults are read: theirs are stored then
    faults = _open_faults(unit, [each for each in closings if _place(each) not in waited_for])
    return [
        each
        for each in reported
        if isinstance(each, Finding) or _place(each) in waited_for or (_place(each), each.fault_key) in faults
    ]


def _on_their_way(unit: UnitOfWork, closings: Sequence[Closing], taken: Sequence[StoredSignal]) -> set[str]:
    """Return the places about which there are signals no later than ``taken`` that other judges hold."""
    mine = tuple_(StoredSignal.node_id, StoredSignal.signal_id).in_([(row.node_id, row.signal_id) for row in taken])
    query = select(StoredSignal.gpu_uuid, StoredSignal.node_id).where(
        StoredSignal.judged_at.is_(None),
        StoredSignal.received_at <= max(row.received_at for row in taken),
        StoredSignal.node_id.in_({each.node_id for each in closings}),
        ~mine,
    )
    return {place for row in unit.session.execute(query.distinct()) for place in row if place is not None}


def _open_faults(unit: UnitOfWork, closings: Sequence[Closing]) -> set[tuple[str, str]]:
    """Return place and fault of each closing whose fault evidence has open."""
    gpus = {each.gpu_uuid for each in closings if each.gpu_uuid is not None}
    nodes = {each.node_id for each in closings if each.gpu_uuid is None}
    query = select(EvidenceRow.gpu_uuid, EvidenceRow.node_id, EvidenceRow.fault_key).where(
        or_(EvidenceRow.gpu_uuid.in_(gpus), EvidenceRow.gpu_uuid.is_(None) & EvidenceRow.node_id.in_(nodes)),
        EvidenceRow.fault_key.in_({each.fault_key for each in closings}),
        EvidenceRow.last_seen_at > unit.now - REMEMBERED,
        EvidenceRow.closed_at.is_(None),
    )
    return {(place_of(gpu, node), fault) for gpu, node, fault in unit.session.execute(query.distinct())}


def _fresh_id() -> EvidenceId:
    return EvidenceId(new_id("evidence"))
