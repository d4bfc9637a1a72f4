"""GPU faults measured while an attempt lived, as ``domain.exit.exits`` needs them: whether a GPU ended it.

Agents report XIDs at once, and the judge makes evidence of them later: signals that are not judged yet are read as the
judge would. Faults that arrive after the exit record are read again when the pause before the next attempt is over
(``reconcile``): the cause of an ended attempt stays as it is, and the restart that it cost is given back.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import select

from control.attempts.mapping import job_request
from control.core.unit_of_work import UnitOfWork
from control.evidence.inbox import findings_of
from control.evidence.rows import weighs
from health.detectors.gpu import gpu_lost, xid
from health.detectors.links import nvlink_down
from health.detectors.memory import ecc_uncorrected
from health.evidence.suppression import is_weightless
from muster.db.models import Allocation, AllocationGpu, Attempt, AttemptHost, EvidenceRow, Job, StoredSignal
from muster.domain.evidence.findings import Finding, Severity, Trust
from muster.domain.exit.causes import CAUSE_RULES, Budget
from muster.domain.exit.exits import GpuFault, KnownFaults, classify, parse_exit_record
from muster.domain.ids import NodeId
from muster.domain.policy.document import Policy
from muster.domain.states import Cause
from muster.domain.times import to_ms

_ENDS_PROGRAMS: Final = (xid.NAME, ecc_uncorrected.NAME, gpu_lost.NAME, nvlink_down.NAME)
"""Detectors of faults that end programs or falsify results; the others find a GPU that computes on, if slowly."""
_LEAST: Final = Severity.DEGRADED
"""Least severity. XIDs that a program causes by itself are INFO, XIDs that only need observation WARNING."""

Faults = Mapping[NodeId, Sequence[GpuFault]]
Measured = tuple[AllocationGpu, str, int]
"""The GPU, the fault as text, and its onset in milliseconds of Unix time."""


def faults_of(unit: UnitOfWork, attempt: Attempt, job: Job, policy: Policy) -> Faults:
    """Return faults of all GPUs of the attempt, measured since its placement, by host and in order of their onset."""
    measured = [*_by_evidence(unit, attempt, policy), *_not_yet_judged(unit, attempt, policy)]
    if not measured:
        return {}
    shape = job_request(job).shape
    found: dict[NodeId, list[GpuFault]] = {}
    for gpu, words, onset_ms in sorted(measured, key=lambda each: (each[2], each[0].gpu_uuid)):
        rank = gpu.node_rank * shape.num_ranks_per_node + gpu.local_index
        ranks = frozenset({rank} if shape.has_a_gpu_for_each_rank else ())
        found.setdefault(gpu.node_id, []).append(GpuFault(gpu.gpu_uuid, words, onset_ms, ranks))
    return found


def known_on(faults: Faults, node_id: NodeId, policy: Policy) -> KnownFaults:
    return KnownFaults(tuple(faults.get(node_id, ())), round(policy.dispatch.gpu_fault_window_s * 1000))


def excuse_for(unit: UnitOfWork, job: Job, policy: Policy) -> str | None:
    """Return the proof that the job's last attempt, which was charged to it, ended by a GPU after all; else None."""
    last = select(Attempt).where(Attempt.job_id == job.id).order_by(Attempt.number.desc()).limit(1)
    attempt = unit.session.scalar(last)
    if attempt is None or attempt.cause is None or CAUSE_RULES[attempt.cause].budget is not Budget.JOB:
        return None
    faults = faults_of(unit, attempt, job, policy)
    if not faults:
        return None
    parts = select(AttemptHost).where(AttemptHost.attempt_id == attempt.id).order_by(AttemptHost.node_rank)
    for part in unit.session.scalars(parts):
        if part.exit_record:
            known = known_on(faults, part.node_id, policy)
            record, codes = parse_exit_record(part.exit_record), job_request(job).rerun_exit_codes
            verdict = classify(record, attempt.stop_reason, faults=known, rerun_codes=codes)
            if verdict.cause is Cause.GPU_FAULT:
                return verdict.proof
    return None


def _by_evidence(unit: UnitOfWork, attempt: Attempt, policy: Policy) -> list[Measured]:
    query = (
        select(AllocationGpu, EvidenceRow.summary, EvidenceRow.onset_at)
        .join(Allocation, Allocation.id == AllocationGpu.allocation_id)
        .join(EvidenceRow, EvidenceRow.gpu_uuid == AllocationGpu.gpu_uuid)
        .where(
            Allocation.attempt_id == attempt.id,
            EvidenceRow.onset_at.between(attempt.placed_at, _until(unit, attempt, policy)),
            EvidenceRow.detector.in_(_ENDS_PROGRAMS),
            EvidenceRow.severity >= int(_LEAST),
            EvidenceRow.trust == Trust.MEASURED,
            EvidenceRow.dismissed_at.is_(None),
            EvidenceRow.is_suspended.is_(False),
            weighs(),
        )
    )
    return [(gpu, summary, to_ms(onset_at)) for gpu, summary, onset_at in unit.session.execute(query)]


def _not_yet_judged(unit: UnitOfWork, attempt: Attempt, policy: Policy) -> list[Measured]:
    query = (
        select(AllocationGpu, StoredSignal)
        .join(Allocation, Allocation.id == AllocationGpu.allocation_id)
        .join(StoredSignal, StoredSignal.gpu_uuid == AllocationGpu.gpu_uuid)
        .where(
            Allocation.attempt_id == attempt.id,
            StoredSignal.judged_at.is_(None),
            StoredSignal.at.between(attempt.placed_at, _until(unit, attempt, policy)),
        )
    )
    return [
        (gpu, each.summary, each.onset_ms)
        for gpu, signal in unit.session.execute(query)
        for each in findings_of([signal], policy.health)
        if isinstance(each, Finding)
        and each.detector in _ENDS_PROGRAMS
        and each.severity >= _LEAST
        and each.trust is Trust.MEASURED
        and not is_weightless(each)
    ]


def _until(unit: UnitOfWork, attempt: Attempt, policy: Policy) -> datetime:
    if attempt.ended_at is None:
        return unit.now
    return min(unit.now, attempt.ended_at + timedelta(seconds=policy.dispatch.gpu_fault_window_s))
