"""What cannot be judged is set aside: it waits, an incident tells of it, and the rest goes on."""

from collections.abc import Collection
from datetime import timedelta
from typing import Final

from sqlalchemy import select

from muster.db.models import Gpu, Incident, StoredSignal
from muster.domain.ids import GpuUuid
from muster.identity import new_id
from muster.services.unit_of_work import UnitOfWork

AGAIN_AFTER: Final = timedelta(minutes=10)
"""It is tried again: the release that mends the judge loses nothing."""
KIND: Final = "judge_failed"
_FAULT_LENGTH_MAX: Final = 500


def set_signal_aside(unit: UnitOfWork, signal: StoredSignal, error: Exception) -> None:
    signal.judge_after, signal.judge_fault = unit.now + AGAIN_AFTER, _words(error)
    about = f" about {signal.gpu_uuid}" if signal.gpu_uuid is not None else ""
    _open(unit, signal.signal_id, f"signal {signal.signal_id} of {signal.node_id}{about} cannot be judged", error)


def set_gpu_aside(unit: UnitOfWork, gpu: Gpu, error: Exception) -> None:
    gpu.judge_at = unit.now + AGAIN_AFTER
    _open(unit, gpu.uuid, f"{gpu.uuid} cannot be judged: its standing stays {gpu.standing}", error)


def close_for(unit: UnitOfWork, signals: Collection[StoredSignal], gpus: Collection[GpuUuid]) -> None:
    """Incidents about what has been judged after all."""
    subjects = [*(signal.signal_id for signal in signals if signal.judge_fault is not None), *gpus]
    if not subjects:
        return
    for incident in _open_about(unit, subjects):
        incident.closed_at, incident.closed_by = unit.now, unit.principal.name
        unit.emit("incident.closed", "incident", incident.id, payload={"kind": KIND, "reason": "judged after all"})


def _open(unit: UnitOfWork, subject_id: str, summary: str, error: Exception) -> None:
    if _open_about(unit, [subject_id]):
        return
    incident_id = new_id("incident")
    payload = {"subject_id": subject_id, "fault": _words(error), "again_at": (unit.now + AGAIN_AFTER).isoformat()}
    unit.session.add(Incident(id=incident_id, kind=KIND, summary=summary, payload=payload, opened_at=unit.now))
    unit.emit("incident.opened", "incident", incident_id, payload={"kind": KIND, "reason": summary, **payload})


def _open_about(unit: UnitOfWork, subject_ids: Collection[str]) -> list[Incident]:
    query = select(Incident).where(
        Incident.closed_at.is_(None),
        Incident.kind == KIND,
        Incident.payload["subject_id"].astext.in_(list(subject_ids)),
    )
    return list(unit.session.scalars(query.order_by(Incident.id).with_for_update()))


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".replace("\x00", "")[:_FAULT_LENGTH_MAX]
