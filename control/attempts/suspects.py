"""Suspect programs: a job whose attempts end with one symptom on GPUs that have nothing in common is HELD.

While it is, its evidence on those GPUs is suspended: it has no weight in a score and condemns no GPU. A GPU that is
QUARANTINED already stays so until a burn-in passes or a person dismisses the evidence against it (I11). Only an
operator's release states that the program was not to blame: then the evidence counts again, and attempts placed before
the release no longer count against the program.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import ColumnElement, Row, and_, func, or_, select, update
from sqlalchemy.orm import Session

from control.core.unit_of_work import UnitOfWork
from control.evidence.rows import weighs
from control.incidents import incidents
from health.suspect_program import FailedAttempt, Suspicion, suspicion_of
from muster.db.models import Allocation, AllocationGpu, Attempt, EvidenceRow, Gpu, Incident, Job
from muster.domain.evidence.findings import Severity
from muster.domain.evidence.incidents import IncidentKind
from muster.domain.ids import AttemptId, EvidenceId, GpuUuid, JobId
from muster.domain.policy.document import Policy
from muster.domain.states import Cause
from muster.domain.times import to_ms

KIND: Final = IncidentKind.SUSPECT_PROGRAM
_ENDS_ON_GPUS: Final = (Cause.GPU_FAULT, Cause.NCCL_TIMEOUT, Cause.CORRUPTION)
"""Causes that are a symptom by themselves, of every GPU that the attempt held."""


def suspicion_about(unit: UnitOfWork, job: Job, policy: Policy) -> Suspicion | None:
    """Return the suspicion against the program of a locked job, by the ends of its attempts; None without one."""
    unit.session.flush()
    since = unit.now - timedelta(seconds=policy.suspicion.window_s)
    query = (
        select(Attempt.id, Attempt.cause, Attempt.ended_at, AllocationGpu.gpu_uuid, EvidenceRow.fault_key)
        .join(Allocation, Allocation.attempt_id == Attempt.id)
        .join(AllocationGpu, AllocationGpu.allocation_id == Allocation.id)
        .outerjoin(EvidenceRow, and_(_came_with_attempt(), EvidenceRow.severity >= int(Severity.WARNING), weighs()))
        .where(Attempt.job_id == job.id, Attempt.ended_at > since, Attempt.cause != Cause.SUCCEEDED)
        .where(or_(EvidenceRow.id.is_not(None), Attempt.cause.in_(_ENDS_ON_GPUS)))
        .order_by(Attempt.ended_at, Attempt.id)
    )
    released_at = _released_at(unit, job.id)
    if released_at is not None:
        query = query.where(Attempt.placed_at > released_at)
    return suspicion_of(_troubles(unit.session.execute(query).all()), policy.suspicion, to_ms(unit.now))


def text_of(suspicion: Suspicion) -> str:
    gpus = "; ".join(", ".join(each) for each in suspicion.gpu_sets)
    return (
        f"suspect program: {suspicion.symptom} on {len(suspicion.gpu_sets)} sets of GPUs without one in common"
        f" ({gpus}); an operator decides"
    )[:2000]


def open_suspicion(unit: UnitOfWork, job: Job, suspicion: Suspicion) -> None:
    """Open an incident for a person, and suspend the evidence. The caller holds the job."""
    if open_suspicion_of(unit, job.id) is not None:
        return
    payload = {
        "job_id": job.id,
        "tenant_id": job.tenant_id,
        "symptom": suspicion.symptom,
        "attempt_ids": list(suspicion.attempt_ids),
        "gpu_sets": [list(each) for each in suspicion.gpu_sets],
        "evidence_ids": [],
    }
    incident = incidents.open_incident(unit, KIND, "job", job.id, f"job {job.id}: {text_of(suspicion)}", payload)
    suspend_evidence(unit, incident)


def open_suspicion_of(unit: UnitOfWork, job_id: JobId) -> Incident | None:
    found = incidents.open_about(unit, KIND, [job_id])
    return found[0] if found else None


def suspend_evidence(unit: UnitOfWork, incident: Incident) -> None:
    """Suspend evidence of the suspected attempts on their GPUs, also where it arrives later."""
    found = not_yet_suspended(unit.session, incident)
    if found:
        known: list[str] = incident.payload["evidence_ids"]
        incident.payload = {**incident.payload, "evidence_ids": [*known, *found]}
        _set_suspended(unit, found, is_suspended=True)


def not_yet_suspended(session: Session, incident: Incident) -> Sequence[EvidenceId]:
    gpus = [GpuUuid(uuid) for each in incident.payload["gpu_sets"] for uuid in each]
    query = (
        select(EvidenceRow.id)
        .join(AllocationGpu, AllocationGpu.gpu_uuid == EvidenceRow.gpu_uuid)
        .join(Allocation, Allocation.id == AllocationGpu.allocation_id)
        .join(Attempt, Attempt.id == Allocation.attempt_id)
        .where(Attempt.id.in_(incident.payload["attempt_ids"]), EvidenceRow.gpu_uuid.in_(gpus), _came_with_attempt())
        .where(EvidenceRow.is_suspended.is_(False))
        .distinct()
        .order_by(EvidenceRow.id)
    )
    return session.scalars(query).all()


def open_suspicions(session: Session) -> Sequence[Incident]:
    query = select(Incident).where(Incident.kind == KIND, Incident.closed_at.is_(None))
    return session.scalars(query.order_by(Incident.opened_at)).all()


def close_suspicion(unit: UnitOfWork, incident: Incident, *, reason: str | None) -> None:
    """End the suspicion: the program is not to blame, and the evidence counts again.

    The caller leaves the audit entry.
    """
    incidents.close_incident(unit, incident, reason=reason)
    evidence_ids = [EvidenceId(each) for each in incident.payload["evidence_ids"]]
    _set_suspended(unit, evidence_ids, is_suspended=False)


def _came_with_attempt() -> ColumnElement[bool]:
    """Return the condition on evidence about a GPU of the attempt that began while it lived, and is not dismissed."""
    return and_(
        EvidenceRow.gpu_uuid == AllocationGpu.gpu_uuid,
        EvidenceRow.dismissed_at.is_(None),
        EvidenceRow.onset_at >= Attempt.placed_at,
        EvidenceRow.onset_at <= Attempt.ended_at,
    )


def _troubles(
    rows: Sequence[Row[AttemptId, Cause | None, datetime | None, GpuUuid, str]],
) -> list[FailedAttempt]:
    """Return each attempt's symptoms: by evidence, of the GPUs it is about; by cause, of all GPUs that were held."""
    ended: dict[AttemptId, int] = {}
    shown: dict[AttemptId, dict[str, set[GpuUuid]]] = {}
    for attempt_id, cause, ended_at, gpu_uuid, fault_key in rows:
        ended[attempt_id] = to_ms(ended_at)
        symptoms = shown.setdefault(attempt_id, {})
        for symptom in (fault_key, cause if cause in _ENDS_ON_GPUS else None):
            if symptom is not None:
                symptoms.setdefault(str(symptom), set()).add(gpu_uuid)
    return [
        FailedAttempt(attempt_id, ended[attempt_id], {name: frozenset(gpus) for name, gpus in symptoms.items()})
        for attempt_id, symptoms in shown.items()
    ]


def _released_at(unit: UnitOfWork, job_id: JobId) -> datetime | None:
    query = select(func.max(Incident.closed_at)).where(Incident.kind == KIND, Incident.subject_id == job_id)
    return unit.session.scalar(query)


def _set_suspended(unit: UnitOfWork, evidence_ids: Sequence[EvidenceId], *, is_suspended: bool) -> None:
    """Set the evidence's suspension.

    GPUs are locked first, in the order of every caller; then they are judged again.
    """
    about = select(EvidenceRow.gpu_uuid).where(EvidenceRow.id.in_(evidence_ids))
    locked = select(Gpu.uuid).where(Gpu.uuid.in_(about)).order_by(Gpu.uuid).with_for_update(key_share=True)
    gpus = unit.session.scalars(locked).all()
    plainly = {"synchronize_session": False}
    rows = update(EvidenceRow).where(EvidenceRow.id.in_(evidence_ids)).values(is_suspended=is_suspended)
    unit.session.execute(rows.execution_options(**plainly))
    unit.session.execute(update(Gpu).where(Gpu.uuid.in_(gpus)).values(judge_at=unit.now).execution_options(**plainly))
    word = "suspended" if is_suspended else "counts_again"
    for uuid in gpus:
        unit.emit(f"evidence.{word}", "gpu", uuid, payload={"evidence_ids": list(evidence_ids)})
