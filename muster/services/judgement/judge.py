"""The judge: events of agents become evidence, scores and moves. Any number may run; each takes its own signals.

What is judged is marked in the same transaction, so a signal has effect once, whoever dies when.
"""

from collections.abc import Sequence
from typing import Final

from sqlalchemy import select

from health.detectors.registry import closings_of, judge_signal
from health.evidence import close, join
from muster.db.models import Gpu, PolicyVersion, StoredSignal
from muster.domain.evidence import Evidence, Finding, GpuSignal
from muster.domain.ids import EvidenceId, GpuUuid
from muster.domain.policy import Policy
from muster.domain.principals import Permission, Principal
from muster.identity import new_id
from muster.services.judgement.moves import judge_gpus, lock_gpus
from muster.services.judgement.rows import evidence_about, signal_of, store_evidence
from muster.services.lives import to_ms
from muster.services.policies import active_policy
from muster.services.unit_of_work import UnitOfWork, UnitOfWorkFactory, declare_action, retrying

SIGNALS: Final = declare_action("judge.signals")
TIME: Final = declare_action("judge.time")
BATCH: Final = 200


def judge_once(units: UnitOfWorkFactory, principal: Principal) -> int:
    """One round: the oldest unjudged events, then the GPUs whose time has come. Returns how many were looked at."""

    def signals() -> int:
        with units.begin(principal, SIGNALS, quiet=True) as unit:
            return _judge_signals(unit)

    def time() -> int:
        with units.begin(principal, TIME, quiet=True) as unit:
            return _judge_due(unit)

    return retrying(signals) + retrying(time)


def judge_findings(unit: UnitOfWork, findings: Sequence[Finding], signals: Sequence[GpuSignal] = ()) -> int:
    """Findings become evidence, and the GPUs they are about are judged. Returns how many moved."""
    unit.principal.require(Permission.SYSTEM_RUN)
    policy = active_policy(unit.session)
    about = {finding.gpu_uuid for finding in findings} | {signal.gpu_uuid for signal in signals}
    gpus = lock_gpus(unit, sorted(uuid for uuid in about if uuid is not None))
    known_gpus: set[GpuUuid] = {gpu.uuid for gpu in gpus}
    nodes = {finding.node_id for finding in findings} | {signal.node_id for signal in signals}
    remembered = {each.id: each for each in evidence_about(unit, known_gpus, nodes)}
    for finding in findings:
        if finding.gpu_uuid is None or finding.gpu_uuid in known_gpus:
            _note(unit, finding, remembered, policy)
    for signal in signals:
        _close(unit, signal, remembered)
    unit.session.flush()
    return judge_gpus(unit, gpus, policy.health, _policy_version(unit))


def _judge_signals(unit: UnitOfWork) -> int:
    query = (
        select(StoredSignal)
        .where(StoredSignal.judged_at.is_(None))
        .order_by(StoredSignal.received_at, StoredSignal.node_id, StoredSignal.signal_id)
        .limit(BATCH)
        .with_for_update(skip_locked=True)
    )
    rows = unit.session.scalars(query).all()
    if not rows:
        return 0
    policy = active_policy(unit.session)
    signals = [signal_of(row) for row in rows]
    findings = [finding for signal in signals for finding in judge_signal(signal, policy.health)]
    for row in rows:
        row.judged_at = unit.now
    judge_findings(unit, findings, signals)
    return len(rows)


def _judge_due(unit: UnitOfWork) -> int:
    """GPUs on which time alone has an effect: decay, dwell, the end of a probation."""
    due = select(Gpu.uuid).where(Gpu.judge_at <= unit.now).order_by(Gpu.judge_at).limit(BATCH)
    uuids = unit.session.scalars(due).all()
    if not uuids:
        return 0
    gpus = lock_gpus(unit, uuids)
    judge_gpus(unit, gpus, active_policy(unit.session).health, _policy_version(unit))
    return len(gpus)


def _note(unit: UnitOfWork, finding: Finding, remembered: dict[EvidenceId, Evidence], policy: Policy) -> None:
    fresh_id = EvidenceId(new_id("evidence"))
    joined = join(finding, remembered.values(), policy.health, to_ms(unit.now), fresh_id)
    if not joined.is_new and remembered[joined.evidence.id] == joined.evidence:
        return
    remembered[joined.evidence.id] = joined.evidence
    store_evidence(unit, joined.evidence, is_new=joined.is_new)


def _close(unit: UnitOfWork, signal: GpuSignal, remembered: dict[EvidenceId, Evidence]) -> None:
    for closing in closings_of(signal):
        for evidence in tuple(remembered.values()):
            closed = close(evidence, closing)
            if closed != evidence:
                remembered[evidence.id] = closed
                store_evidence(unit, closed, is_new=False)


def _policy_version(unit: UnitOfWork) -> int | None:
    return unit.session.scalar(select(PolicyVersion.version).where(PolicyVersion.is_active))
